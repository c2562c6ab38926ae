// The production body of Executor, Timers and FdWatcher: one thread, one epoll.
//
// Every state machine of a process (the coordinator's decisions, a worker's step loop) lives on one
// EventLoop. Nothing that runs on it may block: a task that takes longer than a few milliseconds
// delays every timer and every peer.
#pragma once

#include <sys/epoll.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/event_poll.h"
#include "base/executor.h"
#include "base/fd_watcher.h"
#include "base/unique_fd.h"

namespace layercake::base {

// Post and Stop from any thread; Run from one thread; the rest from tasks on the loop, or before
// Run from the thread that will call it.
class EventLoop final : public Executor, public Timers, public FdWatcher, public EventPoll {
 public:
  struct Options {
    size_t max_posted = 1 << 16;  // tasks waiting; Post refuses beyond
  };
  static absl::StatusOr<std::unique_ptr<EventLoop>> Create(const Clock& clock, Options options);
  static absl::StatusOr<std::unique_ptr<EventLoop>> Create(const Clock& clock) {
    return Create(clock, Options{});
  }
  ~EventLoop() override;

  // Runs tasks, timers and watches until Stop. Posted tasks that wait when Stop is seen still run.
  void Run();
  void Stop();

  bool Post(Task task) override;
  TimerId At(Instant when, Task task) override;
  bool Cancel(TimerId id) override;
  absl::Status Watch(int fd, Task on_readable) override;
  void Unwatch(int fd) override;
  void PollUntil(Instant until) override { poll_until_ = until; }

  const Clock& clock() const { return clock_; }

 private:
  struct WatchEntry {
    Task on_readable;
    bool removed = false;
  };

  EventLoop(const Clock& clock, Options options, UniqueFd epoll, UniqueFd wake);
  void RunPosted();
  void RunDueTimers();
  void WaitForEvents();
  // How many events there are: looks for them without sleeping as long as it is asked to, then
  // sleeps.
  int Await(absl::Span<epoll_event> events);
  int Sleep(absl::Span<epoll_event> events, Instant until);
  void DrainWake();

  const Clock& clock_;
  const Options options_;
  const UniqueFd epoll_;
  const UniqueFd wake_;  // eventfd: a task was posted while the loop slept

  absl::Mutex mutex_;
  std::deque<Task> posted_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // Run has returned
  bool sleeping_ ABSL_GUARDED_BY(mutex_) = false;

  // Loop thread only.
  Instant poll_until_;
  bool fine_timers_ = true;  // until the kernel says that it has only those of milliseconds
  uint64_t next_timer_ = 1;
  std::map<std::pair<Instant, uint64_t>, Task> timers_;
  absl::flat_hash_map<uint64_t, Instant> timer_due_;
  absl::flat_hash_map<int, std::shared_ptr<WatchEntry>> watches_;  // shared with a running callback
};

}  // namespace layercake::base
