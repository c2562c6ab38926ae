#include "tests/gpu/bounded_process.h"

#include <signal.h>
#include <sys/prctl.h>
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
    : clock_(clock), child_(base::StartPipedChild(std::move(words))) {
  if (child_.pid > 0) pidfd_.Reset(static_cast<int>(syscall(SYS_pidfd_open, child_.pid, 0)));
}

BoundedProcess::~BoundedProcess() {
  Signal(SIGKILL);
  AwaitEnd(kLastWait);
}

bool BoundedProcess::Write(const std::string& line) { return base::WriteLine(child_, line); }

std::optional<std::string> BoundedProcess::ReadLine(absl::Duration limit) {
  const base::Instant latest = clock_.Now() + limit;
  for (;;) {
    if (const size_t end = read_.find('\n'); end != std::string::npos) {
      const std::string line = read_.substr(0, end);
      read_.erase(0, end + 1);
      return line;
    }
    std::array<char, 4096> more{};
    if (!AwaitReadable(child_.output.get(), latest - clock_.Now(), clock_)) return std::nullopt;
    const ssize_t size = read(child_.output.get(), more.data(), more.size());
    if (size <= 0) return std::nullopt;
    read_.append(more.data(), static_cast<size_t>(size));
  }
}

void BoundedProcess::Signal(int number) const {
  if (child_.pid > 0) kill(child_.pid, number);
}

std::optional<absl::Duration> BoundedProcess::AwaitEnd(absl::Duration limit) {
  const base::Instant began = clock_.Now();
  if (child_.pid <= 0) return absl::ZeroDuration();
  if (!AwaitReadable(pidfd_.get(), limit, clock_)) return std::nullopt;
  waitpid(child_.pid, nullptr, 0);
  child_.pid = -1;
  return clock_.Now() - began;
}

void EndWithParent(absl::Duration limit) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(static_cast<unsigned>(absl::ToInt64Seconds(limit)));
}

}  // namespace layercake::testing
