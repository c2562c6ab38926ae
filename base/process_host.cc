#include "base/process_host.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/posix_error.h"

extern char** environ;

namespace layercake::base {
namespace {

// The memory of a GPU is given back inside the process's end, by the driver: seconds.
constexpr absl::Duration kDestructorWait = absl::Seconds(10);

// What the child does between fork and exec, prepared beforehand: only calls that are safe after a
// fork of a process with threads may follow.
struct ChildPlan {
  std::vector<char*> argv;
  std::vector<char*> environment;
  std::vector<int> fds;  // fds[i] becomes descriptor kParentPipeFd + i
  int error_fd = -1;     // close-on-exec; errno is written here when exec fails
  pid_t parent = 0;
};

std::vector<std::string> MergeEnvironment(
    const std::vector<std::pair<std::string, std::string>>& overrides) {
  std::vector<std::string> merged;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    bool replaced = false;
    for (const auto& [key, value] : overrides) replaced = replaced || key == name;
    if (!replaced) merged.push_back(text);
  }
  for (const auto& [key, value] : overrides) merged.push_back(absl::StrCat(key, "=", value));
  return merged;
}

std::vector<char*> PointersTo(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

[[noreturn]] void FailChild(int error_fd) {
  const int error = errno;
  // The parent reports a child that says nothing by its exit code.
  if (write(error_fd, &error, sizeof(error)) < 0) _exit(126);
  _exit(127);
}

void ResetSignals() {
  for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void RunChild(ChildPlan& plan) {
  ResetSignals();
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) FailChild(plan.error_fd);
  if (getppid() != plan.parent) _exit(126);  // it died before the prctl
  setpgid(0, 0);
  // Two passes, because a target number may be another descriptor's present number.
  const int count = static_cast<int>(plan.fds.size());
  const int clear_of_targets = kParentPipeFd + count + 1;
  plan.error_fd = fcntl(plan.error_fd, F_DUPFD_CLOEXEC, clear_of_targets);
  for (int& fd : plan.fds) {
    fd = fcntl(fd, F_DUPFD_CLOEXEC, clear_of_targets);
    if (fd < 0) FailChild(plan.error_fd);
  }
  for (int i = 0; i < count; ++i) {
    if (dup2(plan.fds[static_cast<size_t>(i)], kParentPipeFd + i) < 0) FailChild(plan.error_fd);
  }
  execve(plan.argv[0], plan.argv.data(), plan.environment.data());
  FailChild(plan.error_fd);
}

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> MakePipe(absl::string_view purpose) {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return PosixError(absl::StrCat("create a pipe for ", purpose), errno);
  }
  return std::make_pair(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

// 0 when the child has reached exec; else its errno.
int ReadExecError(int fd) {
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(fd, &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  return got == static_cast<ssize_t>(sizeof(error)) ? error : 0;
}

}  // namespace

std::string DescribeExit(const ProcessExit& exit) {
  if (!exit.signaled) return absl::StrCat("exit code ", exit.code);
  const char* name = sigdescr_np(exit.code);
  return absl::StrCat("signal ", exit.code, " (", name != nullptr ? name : "unknown", ")");
}

absl::StatusOr<std::unique_ptr<PosixProcessHost>> PosixProcessHost::Create(FdWatcher& watcher) {
  auto pipe = MakePipe("children to see their parent's end");
  if (!pipe.ok()) return pipe.status();
  return std::unique_ptr<PosixProcessHost>(
      new PosixProcessHost(watcher, std::move(pipe->first), std::move(pipe->second)));
}

PosixProcessHost::PosixProcessHost(FdWatcher& watcher, UniqueFd pipe_read, UniqueFd pipe_write)
    : watcher_(watcher), pipe_read_(std::move(pipe_read)), pipe_write_(std::move(pipe_write)) {}

PosixProcessHost::~PosixProcessHost() {
  for (auto& [id, child] : children_) {
    watcher_.Unwatch(child.pidfd.get());
    kill(child.pid, SIGKILL);
  }
  // A child that hangs in the kernel must not hang its parent.
  const SystemClock clock;
  const Instant until = clock.Now() + kDestructorWait;
  for (auto& [id, child] : children_) {
    pollfd ready{.fd = child.pidfd.get(), .events = POLLIN, .revents = 0};
    const int64_t left_ms = absl::ToInt64Milliseconds(until - clock.Now());
    if (poll(&ready, 1, static_cast<int>(std::max<int64_t>(left_ms, 0))) > 0) {
      waitpid(child.pid, nullptr, WNOHANG);
    }
  }
}

absl::StatusOr<ProcessId> PosixProcessHost::Spawn(SpawnOptions options, OnExit on_exit) {
  if (options.argv.empty()) return absl::InvalidArgumentError("start a child: argv is empty");
  auto error_pipe = MakePipe("a child's exec error");
  if (!error_pipe.ok()) return error_pipe.status();

  std::vector<std::string> environment = MergeEnvironment(options.environment);
  ChildPlan plan{.argv = PointersTo(options.argv),
                 .environment = PointersTo(environment),
                 .fds = {pipe_read_.get()},
                 .error_fd = error_pipe->second.get(),
                 .parent = getpid()};
  for (const UniqueFd& fd : options.inherited) plan.fds.push_back(fd.get());

  const pid_t pid = fork();
  if (pid < 0) return PosixError(absl::StrCat("fork for ", options.argv[0]), errno);
  if (pid == 0) RunChild(plan);
  error_pipe->second.Reset();

  const int exec_error = ReadExecError(error_pipe->first.get());
  if (exec_error != 0) {
    waitpid(pid, nullptr, 0);  // it is in _exit
    return PosixError(absl::StrCat("execute ", options.argv[0]), exec_error);
  }
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  absl::Status watched = absl::OkStatus();
  const ProcessId id = static_cast<ProcessId>(next_id_++);
  if (!pidfd.valid()) {
    watched = PosixError(absl::StrCat("open a pidfd of process ", pid), errno);
  } else {
    watched = watcher_.Watch(pidfd.get(), [this, id] { Reap(id); });
  }
  if (!watched.ok()) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return watched;
  }
  children_.emplace(id,
                    Child{.pid = pid, .pidfd = std::move(pidfd), .on_exit = std::move(on_exit)});
  return id;
}

absl::Status PosixProcessHost::Kill(ProcessId id, int signal_number) {
  const auto child = children_.find(id);
  if (child == children_.end()) return absl::NotFoundError("the process has ended");
  // The child is ours and unreaped, so its pid cannot have passed to another process.
  if (kill(child->second.pid, signal_number) != 0) {
    return PosixError(
        absl::StrCat("send signal ", signal_number, " to process ", child->second.pid), errno);
  }
  return absl::OkStatus();
}

int64_t PosixProcessHost::pid(ProcessId id) const {
  const auto child = children_.find(id);
  return child == children_.end() ? 0 : child->second.pid;
}

void PosixProcessHost::Reap(ProcessId id) {
  const auto found = children_.find(id);
  if (found == children_.end()) return;
  siginfo_t ended{};
  const pid_t pid = found->second.pid;
  if (waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOHANG) != 0 || ended.si_pid == 0) {
    return;  // not ended yet; the pidfd stays watched
  }
  Child child = std::move(found->second);
  children_.erase(found);
  watcher_.Unwatch(child.pidfd.get());
  child.on_exit(
      {.id = id, .pid = pid, .signaled = ended.si_code != CLD_EXITED, .code = ended.si_status});
}

}  // namespace layercake::base
