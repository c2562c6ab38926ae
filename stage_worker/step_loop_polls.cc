// Staying awake: a thread that slept for milliseconds takes 50 to 100 microseconds to wake, and a
// hop wakes three of them, one after the other (docs/architecture.md). So this loop, and with it
// the device's thread, look for what they wait for in a short window around the time when it
// usually comes. Nothing depends on it: what comes at another time wakes them as ever.
#include <memory>
#include <thread>
#include <utility>

#include "stage_worker/step_loop.h"

namespace layercake::stage_worker {

void StepLoop::CountWait(const Step& step) {
  if (!step.waited || !running_.empty()) return;
  arrival_forecast_.Record(clock_.Now() - std::max(last_done_, step.taken));
}

std::optional<WaitForecast::Window> StepLoop::ExpectNext() const {
  if (!running_.empty()) {
    return device_forecast_.Expect(std::max(running_.front()->submitted, last_done_));
  }
  if (queue_.empty()) return std::nullopt;
  return arrival_forecast_.Expect(std::max(last_done_, queue_.front()->taken));
}

void StepLoop::UpdatePolls() {
  if (options_.poll == nullptr) return;
  const std::optional<WaitForecast::Window> window = ExpectNext();
  const base::Instant now = clock_.Now();
  const bool ahead = window.has_value() && now < window->begin;
  if (poll_timer_ != base::TimerId::kNone && !(ahead && poll_timer_due_ == window->begin)) {
    timers_.Cancel(std::exchange(poll_timer_, base::TimerId::kNone));
  }
  if (ahead && poll_timer_ == base::TimerId::kNone) {
    poll_timer_due_ = window->begin;
    poll_timer_ = timers_.At(window->begin, [this] { OnPollTimer(); });
  }
  const bool open = window.has_value() && !ahead && now < window->end;
  options_.poll->PollUntil(open ? window->end : base::Instant());
  if (open && submitted_ == 0) KeepDeviceAwake(window->end);
}

void StepLoop::OnPollTimer() {
  poll_timer_ = base::TimerId::kNone;
  UpdatePolls();
}

void StepLoop::KeepDeviceAwake(base::Instant until) {
  device_awake_ = std::make_shared<std::atomic<bool>>(false);
  ++submitted_;
  device_.Submit(
      [&clock = clock_, until, go_on = device_awake_] {
        while (!go_on->load(std::memory_order_relaxed) && clock.Now() < until) {
          std::this_thread::yield();  // as EventLoop does
        }
        return absl::OkStatus();
      },
      [this, alive = alive_](const absl::Status& status) {
        if (!*alive || !TakeCompletion() || status.ok()) return;
        Fail(status);
      });
}

// After work was submitted, which it finds then.
void StepLoop::LetDeviceGo() {
  if (device_awake_ == nullptr) return;
  device_awake_->store(true, std::memory_order_relaxed);
  device_awake_.reset();
}

void StepLoop::EndPolls() {
  LetDeviceGo();
  if (options_.poll == nullptr) return;
  options_.poll->PollUntil(base::Instant());
  if (poll_timer_ != base::TimerId::kNone) {
    timers_.Cancel(std::exchange(poll_timer_, base::TimerId::kNone));
  }
}

}  // namespace layercake::stage_worker
