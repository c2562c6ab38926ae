// What a command that runs for a while stands on: the main thread's event loop, its signals and its
// child processes.
//
// Thread rule: created and run on the main thread; everything is used there.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/event_loop.h"
#include "base/process_host.h"
#include "base/signal_watch.h"

namespace layercake::cli {

class Foreground {
 public:
  // SIGINT, SIGTERM and SIGHUP (unless nohup had it ignored) arrive at `on_signal` on the loop,
  // whichever thread the kernel gives them to. SIGPIPE is ignored: a closed standard output is an
  // error of the write.
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
  std::unique_ptr<base::SignalWatch> signals_;
  std::function<void(int)> on_signal_;
};

}  // namespace layercake::cli
