// An event loop on a thread of its own, for tests of what posts to an executor.
#pragma once

#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "base/event_loop.h"

namespace layercake::testing {

class LoopThread {
 public:
  explicit LoopThread(base::EventLoop::Options options = {})
      : loop_(base::EventLoop::Create(clock_, options).value()),
        thread_([this] { loop_->Run(); }) {}
  ~LoopThread() {
    loop_->Stop();
    thread_.join();
  }

  base::EventLoop& loop() { return *loop_; }

  // Runs `task` on the loop and waits for it.
  template <class Function>
  void Run(Function task) {
    absl::Notification done;
    if (!loop_->Post([&] {
          task();
          done.Notify();
        })) {
      std::abort();
    }
    done.WaitForNotification();
  }

 private:
  base::SystemClock clock_;
  std::unique_ptr<base::EventLoop> loop_;
  std::thread thread_;
};

}  // namespace layercake::testing
