#include "tests/gpu/bounded_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "base/event_loop.h"

namespace layercake::testing {
namespace {

// For a killed child: the driver gives back its memory before it is gone.
constexpr absl::Duration kLastWait = absl::Seconds(10);

// False after `limit`.
bool AwaitReadable(int fd, absl::Duration limit, const base::Clock& clock) {
  const auto loop = base::EventLoop::Create(clock);
  if (!loop.ok()) return false;
  bool readable = false;
  (*loop)->At(clock.Now() + limit, [&] { (*loop)->Stop(); });
  if (fd >= 0) {
    const absl::Status watched = (*loop)->Watch(fd, [&] {
      readable = true;
      (*loop)->Unwatch(fd);
      (*loop)->Stop();
    });
    if (!watched.ok()) return false;
  }
  (*loop)->Run();
  return readable;
}

}  // namespace

void PauseFor(absl::Duration duration, const base::Clock& clock) {
  AwaitReadable(-1, duration, clock);
}

BoundedProcess::BoundedProcess(std::vector<std::string> words, const base::Clock& clock)
    : clock_(clock) {
  std::array<int, 2> to{-1, -1};
  std::array<int, 2> from{-1, -1};
  // Writes into a socket can do without SIGPIPE.
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, to.data()) != 0) return;
  const base::UniqueFd their_input(to[0]);
  input_.Reset(to[1]);
  if (pipe2(from.data(), O_CLOEXEC) != 0) return;
  const base::UniqueFd their_output(from[1]);
  output_.Reset(from[0]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, their_input.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, their_output.get(), STDOUT_FILENO);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const int error = posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    pid_ = -1;
    return;
  }
  pidfd_.Reset(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
}

BoundedProcess::~BoundedProcess() {
  Signal(SIGKILL);
  AwaitEnd(kLastWait);
}

bool BoundedProcess::Write(const std::string& line) {
  const std::string text = line + "\n";
  return send(input_.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(text.size());
}

std::optional<std::string> BoundedProcess::ReadLine(absl::Duration limit) {
  const base::Instant latest = clock_.Now() + limit;
  for (;;) {
    if (const size_t end = read_.find('\n'); end != std::string::npos) {
      const std::string line = read_.substr(0, end);
      read_.erase(0, end + 1);
      return line;
    }
    std::array<char, 4096> more{};
    if (!AwaitReadable(output_.get(), latest - clock_.Now(), clock_)) return std::nullopt;
    const ssize_t size = read(output_.get(), more.data(), more.size());
    if (size <= 0) return std::nullopt;
    read_.append(more.data(), static_cast<size_t>(size));
  }
}

void BoundedProcess::Signal(int number) const {
  if (pid_ > 0) kill(pid_, number);
}

std::optional<absl::Duration> BoundedProcess::AwaitEnd(absl::Duration limit) {
  const base::Instant began = clock_.Now();
  if (pid_ <= 0) return absl::ZeroDuration();
  if (!AwaitReadable(pidfd_.get(), limit, clock_)) return std::nullopt;
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
  return clock_.Now() - began;
}

void EndWithParent(absl::Duration limit) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(static_cast<unsigned>(absl::ToInt64Seconds(limit)));
}

}  // namespace layercake::testing
