#include "transport/ready_signal.h"

namespace layercake::transport {

void ReadySignal::Raise() {
  // Held over Post, so that Cancel can promise that the executor is not touched afterwards; Post
  // runs no callback.
  absl::MutexLock lock(&mutex_);
  if (posted_ || cancelled_) return;
  posted_ = executor_.Post([self = shared_from_this()] {
    {
      // Before on_ready looks: an event after this posts again.
      absl::MutexLock posted_lock(&self->mutex_);
      self->posted_ = false;
    }
    self->RunNow();
  });
}

void ReadySignal::RunNow() {
  if (!on_ready_) return;  // cancelled, or none was given
  const std::shared_ptr<ReadySignal> self = shared_from_this();
  running_ = true;
  on_ready_();
  running_ = false;
  absl::MutexLock lock(&mutex_);
  if (cancelled_) on_ready_ = nullptr;
}

void ReadySignal::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  if (!running_) on_ready_ = nullptr;
}

}  // namespace layercake::transport
