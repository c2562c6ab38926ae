// A whole chain on this machine: the coordinator on a thread of this process, one child process for
// each stage. Watches all of them; when one ends by itself, ends the rest.
//
// Thread rule: used on the event loop's thread, where its callbacks run too.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/event_loop.h"
#include "base/process_host.h"
#include "cli/chain_flags.h"
#include "coordinator/coordinator_process.h"
#include "layercake/v1/inference.pb.h"

namespace layercake::cli {

class LocalChain {
 public:
  struct Callbacks {
    std::function<void(const v1::GetStatusResponse&)> on_status;
    // Once, last: coordinator and all children are gone. OK after RequestShutdown; else what ended
    // first ("stage 1 (pid 77) ended: signal 9 (Killed)").
    std::function<void(const absl::Status&)> on_ended;
  };

  // Checks the model, binds the ports, then starts the workers. Fails before any child runs when
  // the model or a port is bad. `loop` and `processes` outlive the chain.
  static absl::StatusOr<std::unique_ptr<LocalChain>> Start(const ChainOptions& options,
                                                           const std::string& worker_binary,
                                                           base::EventLoop& loop,
                                                           base::ProcessHost& processes,
                                                           Callbacks callbacks);
  // Before on_ended it must not run: it would have to wait.
  ~LocalChain();

  std::string client_address() const { return coordinator_->client_address(); }

  // Running requests get their grace; on_ended follows. The second call cuts the grace short and
  // kills the children.
  void RequestShutdown();

 private:
  struct Worker {
    int stage = 0;
    base::ProcessId process = base::ProcessId::kNone;
    bool ended = false;
  };

  LocalChain(base::EventLoop& loop, base::ProcessHost& processes, Callbacks callbacks);
  absl::Status StartWorkers(const ChainOptions& options, const std::string& worker_binary);
  void StartCoordinatorThread();
  void OnWorkerExit(size_t index, const base::ProcessExit& exit);
  void OnCoordinatorEnded(absl::Status status);
  void EndCoordinatorBy(base::Instant when);
  void StopWorkers(bool at_once);
  void SignalWorkers(int signal_number);
  void FinishWhenAllGone();
  base::Instant After(absl::Duration duration) const { return loop_.clock().Now() + duration; }

  base::EventLoop& loop_;
  base::ProcessHost& processes_;
  Callbacks callbacks_;
  absl::Duration shutdown_grace_ = absl::ZeroDuration();
  std::unique_ptr<coordinator::CoordinatorProcess> coordinator_;
  std::thread coordinator_thread_;
  std::vector<Worker> workers_;
  bool shutdown_requested_ = false;
  bool coordinator_ended_ = false;
  bool coordinator_stuck_ = false;  // this process ends when its workers have
  bool stopping_workers_ = false;
  bool finished_ = false;
  absl::Status failure_ = absl::OkStatus();  // of the worker that ended first, by itself
  bool crashed_ = false;                     // failure_ is a signal or a bad exit code
  absl::Status coordinator_status_ = absl::OkStatus();
};

// The worker's binary, beside this process's own.
absl::StatusOr<std::string> FindWorkerBinary();

}  // namespace layercake::cli
