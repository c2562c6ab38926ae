#include "stage_worker/loading_thread.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace layercake::stage_worker {
namespace {

constexpr size_t kMaxTasks = 16;

}  // namespace

absl::StatusOr<std::unique_ptr<LoadingThread>> LoadingThread::Create() {
  std::unique_ptr<LoadingThread> loading(new LoadingThread);
  try {
    loading->thread_ = std::thread([thread = loading.get()] { thread->Loop(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("start the loading thread: ", error.what()));
  }
  return loading;
}

LoadingThread::~LoadingThread() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

bool LoadingThread::Post(base::Task task) {
  absl::MutexLock lock(&mutex_);
  if (stopping_ || tasks_.size() >= kMaxTasks) return false;
  tasks_.push_back(std::move(task));
  return true;
}

void LoadingThread::Loop() {
  for (;;) {
    base::Task task;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &LoadingThread::HasWork));
      if (stopping_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace layercake::stage_worker
