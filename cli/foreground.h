// What a command that runs for a while stands on: the main thread's event loop, its signals and its
// child processes.
//
// Thread rule: created and run on the main thread before any other thread starts (the signal mask
// is inherited); everything is used there.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/event_loop.h"
#include "base/process_host.h"
#include "base/unique_fd.h"

namespace layercake::cli {

class Foreground {
 public:
  // Blocks SIGINT, SIGTERM and SIGHUP for this and all later threads: they arrive at `on_signal` on
  // the loop. SIGPIPE is ignored: a closed standard output is an error of the write.
  static absl::StatusOr<std::unique_ptr<Foreground>> Create();
  ~Foreground();

  void OnSignal(std::function<void(int signal_number)> on_signal);

  const base::Clock& clock() const { return clock_; }
  base::EventLoop& loop() { return *loop_; }
  base::ProcessHost& processes() { return *processes_; }

 private:
  Foreground() = default;
  void ReadSignals();

  base::SystemClock clock_;
  std::unique_ptr<base::EventLoop> loop_;
  std::unique_ptr<base::PosixProcessHost> processes_;
  base::UniqueFd signals_;
  std::function<void(int)> on_signal_;
};

}  // namespace layercake::cli
