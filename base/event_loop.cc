#include "base/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/posix_error.h"

namespace layercake::base {

absl::StatusOr<std::unique_ptr<EventLoop>> EventLoop::Create(const Clock& clock, Options options) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return PosixError("create an epoll instance", errno);
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return PosixError("create an eventfd", errno);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = wake.get();
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return PosixError("add an eventfd to epoll", errno);
  }
  return std::unique_ptr<EventLoop>(
      new EventLoop(clock, options, std::move(epoll), std::move(wake)));
}

EventLoop::EventLoop(const Clock& clock, Options options, UniqueFd epoll, UniqueFd wake)
    : clock_(clock), options_(options), epoll_(std::move(epoll)), wake_(std::move(wake)) {}

EventLoop::~EventLoop() {
  std::deque<Task> unrun;
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    unrun.swap(posted_);
  }
}

void EventLoop::Run() {
  for (;;) {
    RunPosted();
    RunDueTimers();
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_ && posted_.empty()) {
        closed_ = true;
        return;
      }
      sleeping_ = posted_.empty();
    }
    WaitForEvents();
  }
}

void EventLoop::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  eventfd_write(wake_.get(), 1);
}

bool EventLoop::Post(Task task) {
  bool wake = false;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_ || posted_.size() >= options_.max_posted) return false;
    posted_.push_back(std::move(task));
    wake = std::exchange(sleeping_, false);
  }
  if (wake) eventfd_write(wake_.get(), 1);
  return true;
}

TimerId EventLoop::At(Instant when, Task task) {
  const uint64_t id = next_timer_++;
  timers_.emplace(std::make_pair(when, id), std::move(task));
  timer_due_.emplace(id, when);
  return static_cast<TimerId>(id);
}

bool EventLoop::Cancel(TimerId id) {
  const auto due = timer_due_.find(static_cast<uint64_t>(id));
  if (due == timer_due_.end()) return false;
  timers_.erase({due->second, due->first});
  timer_due_.erase(due);
  return true;
}

absl::Status EventLoop::Watch(int fd, Task on_readable) {
  auto entry = std::make_shared<WatchEntry>();
  entry->on_readable = std::move(on_readable);
  if (!watches_.emplace(fd, entry).second) {
    return absl::FailedPreconditionError(absl::StrCat("descriptor ", fd, " is watched already"));
  }
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    const int error = errno;
    watches_.erase(fd);
    return PosixError(absl::StrCat("watch descriptor ", fd), error);
  }
  return absl::OkStatus();
}

void EventLoop::Unwatch(int fd) {
  const auto watch = watches_.find(fd);
  if (watch == watches_.end()) return;
  watch->second->removed = true;
  watches_.erase(watch);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void EventLoop::RunPosted() {
  std::deque<Task> ready;
  {
    absl::MutexLock lock(&mutex_);
    ready.swap(posted_);
  }
  for (Task& task : ready) task();
}

void EventLoop::RunDueTimers() {
  if (timers_.empty()) return;
  const Instant now = clock_.Now();
  // A task may add timers; those that are due already run in the next turn, so that a timer that
  // re-arms itself at once cannot keep the loop here.
  const uint64_t last_id = next_timer_;
  while (!timers_.empty()) {
    auto first = timers_.begin();
    if (first->first.first > now || first->first.second >= last_id) return;
    Task task = std::move(first->second);
    timer_due_.erase(first->first.second);
    timers_.erase(first);
    task();
  }
}

int EventLoop::Await(absl::Span<epoll_event> events) {
  bool busy = false;
  {
    absl::MutexLock lock(&mutex_);
    busy = !sleeping_ || stopping_;
  }
  if (busy) return Sleep(events, Instant());
  const Instant due = timers_.empty() ? Instant::Infinite() : timers_.begin()->first.first;
  // A posted task rings wake_, so events are all there is to look for.
  const Instant poll_end = std::min(poll_until_, due);
  while (clock_.Now() < poll_end) {
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    if (count != 0) return count;
    // Only time that nobody else wants: the scheduler would let this thread finish its slice of
    // milliseconds while another that has just become ready, with the event perhaps, waits.
    std::this_thread::yield();
  }
  return Sleep(events, due);
}

int EventLoop::Sleep(absl::Span<epoll_event> events, Instant until) {
  const auto size = static_cast<int>(events.size());
  if (until == Instant::Infinite()) {
    return epoll_wait(epoll_.get(), events.data(), size, /*timeout=*/-1);
  }
  const absl::Duration wait =
      std::clamp(until - clock_.Now(), absl::ZeroDuration(), absl::Seconds(60));
  if (fine_timers_) {
    const timespec timeout = absl::ToTimespec(wait);
    const int count = epoll_pwait2(epoll_.get(), events.data(), size, &timeout, nullptr);
    // Sandboxes that do not know the call refuse it.
    if (count >= 0 || (errno != ENOSYS && errno != EPERM)) return count;
    fine_timers_ = false;
  }
  // Rounded up: a loop that wakes a little early would spin until the timer is due.
  const int64_t milliseconds = absl::ToInt64Milliseconds(absl::Ceil(wait, absl::Milliseconds(1)));
  return epoll_wait(epoll_.get(), events.data(), size, static_cast<int>(milliseconds));
}

void EventLoop::WaitForEvents() {
  std::array<epoll_event, 64> events;
  const int count = Await(absl::MakeSpan(events));
  {
    absl::MutexLock lock(&mutex_);
    sleeping_ = false;
  }
  for (int i = 0; i < count; ++i) {
    const int fd = events[static_cast<size_t>(i)].data.fd;
    if (fd == wake_.get()) {
      DrainWake();
      continue;
    }
    const auto watch = watches_.find(fd);
    if (watch == watches_.end()) continue;  // unwatched by an earlier callback of this turn
    const std::shared_ptr<WatchEntry> entry = watch->second;
    if (!entry->removed) entry->on_readable();
  }
}

void EventLoop::DrainWake() {
  eventfd_t ignored = 0;
  eventfd_read(wake_.get(), &ignored);
}

}  // namespace layercake::base
