// Carries "something may have changed" from any thread to a channel's on_ready.
//
// Thread rule: Raise from any thread; the rest on the executor's thread. Held by shared_ptr: a
// posted task and the other end of the channel may outlive the channel that made it.
#pragma once

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "base/executor.h"

namespace layercake::transport {

class ReadySignal : public std::enable_shared_from_this<ReadySignal> {
 public:
  ReadySignal(base::Executor& executor, absl::AnyInvocable<void()> on_ready)
      : executor_(executor), on_ready_(std::move(on_ready)) {}

  // Posts on_ready unless it is posted already, or cancelled. An executor that refuses has stopped,
  // or has tens of thousands of tasks waiting; the next event tries again, and the owner's deadline
  // reports.
  void Raise();
  // Runs on_ready now: from a watcher's callback, never inside a call of the channel.
  void RunNow();
  // on_ready never runs again and the executor is not touched again. May be called inside on_ready.
  void Cancel();

 private:
  base::Executor& executor_;

  absl::Mutex mutex_;
  bool posted_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;

  // Executor's thread.
  bool running_ = false;
  absl::AnyInvocable<void()> on_ready_;
};

}  // namespace layercake::transport
