// Child processes: start them, signal them, hear of their end.
//
// The seam under `serve` (and, later, under recovery): production uses PosixProcessHost, tests of
// what stands above may use a twin that has no processes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/fd_watcher.h"
#include "base/unique_fd.h"

namespace layercake::base {

// Never reused, unlike a pid.
enum class ProcessId : uint64_t { kNone = 0 };

struct ProcessExit {
  ProcessId id = ProcessId::kNone;
  int64_t pid = 0;
  bool signaled = false;
  int code = 0;  // exit code, or the signal's number
};
// "exit code 3" or "signal 9 (Killed)".
std::string DescribeExit(const ProcessExit& exit);

// Where a child finds the read end of a pipe whose write end only the parent holds: end of file
// there means that the parent is gone.
inline constexpr int kParentPipeFd = 3;

struct SpawnOptions {
  std::vector<std::string> argv;  // argv[0] is the path of the binary
  std::vector<std::pair<std::string, std::string>> environment;  // over the parent's own
  std::vector<UniqueFd> inherited;  // become descriptors 4, 5, ... of the child
};

// Thread rule: used on one executor; the callbacks run there too, never inside a call.
class ProcessHost {
 public:
  using OnExit = absl::AnyInvocable<void(const ProcessExit&)>;

  virtual ~ProcessHost() = default;
  // Starts a child in a process group of its own (a terminal's Ctrl-C reaches the parent only) with
  // default signal handling. NotFound, PermissionDenied and so on when it cannot be executed.
  virtual absl::StatusOr<ProcessId> Spawn(SpawnOptions options, OnExit on_exit) = 0;
  // NotFound when the child has been reaped; no signal ever reaches another process.
  virtual absl::Status Kill(ProcessId id, int signal_number) = 0;
  // 0 when the child has been reaped.
  virtual int64_t pid(ProcessId id) const = 0;
};

// Spawn blocks until the child has called exec (milliseconds). The kernel kills the children when
// the thread that spawned them ends (PR_SET_PDEATHSIG): that thread must live as long as they do.
class PosixProcessHost final : public ProcessHost {
 public:
  // `watcher` must outlive the host.
  static absl::StatusOr<std::unique_ptr<PosixProcessHost>> Create(FdWatcher& watcher);
  // Kills what still runs and waits up to 10 s until all of it is gone; no callback runs.
  ~PosixProcessHost() override;

  absl::StatusOr<ProcessId> Spawn(SpawnOptions options, OnExit on_exit) override;
  absl::Status Kill(ProcessId id, int signal_number) override;
  int64_t pid(ProcessId id) const override;

 private:
  struct Child {
    pid_t pid = 0;
    UniqueFd pidfd;
    OnExit on_exit;
  };

  PosixProcessHost(FdWatcher& watcher, UniqueFd pipe_read, UniqueFd pipe_write);
  void Reap(ProcessId id);

  FdWatcher& watcher_;
  const UniqueFd pipe_read_;   // children get copies
  const UniqueFd pipe_write_;  // close-on-exec: this process only
  uint64_t next_id_ = 1;
  absl::btree_map<ProcessId, Child> children_;
};

}  // namespace layercake::base
