// One thread that runs submitted work in order: what every Device is underneath.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/executor.h"
#include "kernels/device.h"

namespace layercake::kernels {

// Submit from any thread; `done` comes through the executor, which outlives this. The queue is as
// long as the caller has steps in flight. On destruction the work that runs is finished; work that
// has not begun is dropped and its `done` told Cancelled.
class WorkThread {
 public:
  // Throws std::system_error when the thread cannot be started.
  explicit WorkThread(base::Executor& on_done);
  ~WorkThread();
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;

  void Submit(Device::Work work, Device::Done done);

 private:
  struct Item {
    Device::Work work;
    Device::Done done;
  };

  void Loop();
  void Finish(Device::Done done, absl::Status status);

  base::Executor& on_done_;
  // Standard ones: ThreadSanitizer does not see through the distribution's Abseil.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;  // guarded by mutex_, like the next
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace layercake::kernels
