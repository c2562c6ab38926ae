// The worker's thread for what blocks on a disk or a wire while a model loads: opening files,
// paging weights in, reading tensors from the coordinator. The step thread goes on meanwhile.
#pragma once

#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/executor.h"

namespace layercake::stage_worker {

// Post from any thread. The destructor waits for the task that runs and drops the others: whoever
// posted it makes it end soon (FetchProgress, ModelProvider::Cancel).
class LoadingThread final : public base::Executor {
 public:
  // ResourceExhausted when the system has no thread left.
  static absl::StatusOr<std::unique_ptr<LoadingThread>> Create();
  ~LoadingThread() override;

  bool Post(base::Task task) override;

 private:
  LoadingThread() = default;
  void Loop();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !tasks_.empty();
  }

  absl::Mutex mutex_;
  std::deque<base::Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace layercake::stage_worker
