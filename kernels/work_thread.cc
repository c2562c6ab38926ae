#include "kernels/work_thread.h"

#include <new>
#include <utility>

#include "absl/status/status.h"

namespace layercake::kernels {
namespace {

// Work is ours and throws nothing of its own; its scratch memory may run out.
absl::Status RunFenced(Device::Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("the host ran out of memory inside a step");
  }
}

}  // namespace

WorkThread::WorkThread(base::Executor& on_done) : on_done_(on_done), thread_([this] { Loop(); }) {}

WorkThread::~WorkThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void WorkThread::Submit(Device::Work work, Device::Done done) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(work), std::move(done)});
  }
  changed_.notify_one();
}

void WorkThread::Finish(Device::Done done, absl::Status status) {
  // An executor that refuses has stopped; nobody waits for this completion any more.
  (void)on_done_.Post(
      [done = std::move(done), status = std::move(status)]() mutable { done(std::move(status)); });
}

void WorkThread::Loop() {
  while (true) {
    Item item;
    bool run = false;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      item = std::move(queue_.front());
      queue_.pop_front();
      run = !stopping_;
    }
    absl::Status status = run ? RunFenced(item.work)
                              : absl::CancelledError("the device closed before this work began");
    item.work = nullptr;  // what it holds is freed before anyone hears that it is done
    Finish(std::move(item.done), std::move(status));
  }
}

}  // namespace layercake::kernels
