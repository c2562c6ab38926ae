// What the loop waits for: names, deadlines, and the end of patience.
#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "stage_worker/step_loop.h"

namespace layercake::stage_worker {
namespace {

// A timer that runs this late says that this process stood still (stopped, starved). Others may
// then have done all that was asked of them, so they get time to be heard before they are judged.
constexpr absl::Duration kOwnStall = absl::Seconds(1);
constexpr absl::Duration kStallGrace = absl::Seconds(5);

}  // namespace

absl::Duration StepLoop::Patience(WaitKind kind) const {
  const int stage = options_.limits.stage;
  switch (kind) {
    case WaitKind::kDevice:
      return options_.step_timeout;
    case WaitKind::kActivation:  // every stage before this one, and then some: they judge first
      return options_.step_timeout * (stage + 1);
    case WaitKind::kToken:
    case WaitKind::kFeedbackSlot:  // the whole chain
      return options_.step_timeout * (options_.limits.stage_count + 1);
    case WaitKind::kPlanSlot:
    case WaitKind::kActivationSlot:  // every stage behind this one, likewise
      return options_.step_timeout * (options_.limits.stage_count - stage);
  }
  return options_.step_timeout;
}

void StepLoop::UpdateWait(WaitKind kind, bool waiting, uint64_t step) {
  Wait& wait = waits_[static_cast<size_t>(kind)];
  if (!waiting) {
    wait.active = false;
    return;
  }
  if (wait.active && wait.step == step) return;
  const base::Instant now = clock_.Now();
  wait = {.active = true, .step = step, .since = now, .deadline = now + Patience(kind)};
}

void StepLoop::UpdateWaits() {
  const auto front = [](const std::deque<std::shared_ptr<Step>>& steps) {
    return steps.empty() ? uint64_t{0} : steps.front()->plan.step;
  };
  UpdateWait(WaitKind::kPlanSlot, !unforwarded_.empty(), front(unforwarded_));
  UpdateWait(WaitKind::kDevice, !running_.empty(), front(running_));
  const bool head = !queue_.empty() && running_.size() < kMaxSubmitted;
  const bool no_activation = head && upstream_ != nullptr && !queue_.front()->arrived;
  const uint64_t missing =
      head && feedback_in_.has_value() ? feedback_in_->MissingStep(queue_.front()->plan) : 0;
  const uint64_t unsent = feedback_out_.has_value() ? feedback_out_->waiting_step() : 0;
  UpdateWait(WaitKind::kActivation, no_activation, front(queue_));
  UpdateWait(WaitKind::kToken, missing != 0, missing);
  UpdateWait(WaitKind::kFeedbackSlot, unsent != 0, unsent);
  UpdateWait(WaitKind::kActivationSlot,
             head && !no_activation && missing == 0 && downstream_ != nullptr, front(queue_));
}

std::string StepLoop::Describe(WaitKind kind, const Wait& wait) const {
  std::string what;
  switch (kind) {
    case WaitKind::kDevice:
      what = absl::StrCat("device ", device_.name(), " to finish step ", wait.step);
      break;
    case WaitKind::kActivation:
      what = absl::StrCat("the activation of step ", wait.step, " from ", options_.upstream_peer,
                          " over ", transport::TransportKindName(upstream_->kind()));
      break;
    case WaitKind::kToken:
      what = absl::StrCat("the token of step ", wait.step, " from ", options_.feedback_peer,
                          " over ", transport::TransportKindName(feedback_in_->kind()));
      break;
    case WaitKind::kFeedbackSlot:
      what =
          absl::StrCat("a slot for the token of step ", wait.step, " at ", options_.feedback_peer,
                       " over ", transport::TransportKindName(feedback_out_->kind()));
      break;
    case WaitKind::kPlanSlot:
      what = absl::StrCat("a plan slot for step ", wait.step, " at ", options_.downstream_peer,
                          " over ", transport::TransportKindName(downstream_->kind()));
      break;
    case WaitKind::kActivationSlot:
      what =
          absl::StrCat("an activation slot for step ", wait.step, " at ", options_.downstream_peer,
                       " over ", transport::TransportKindName(downstream_->kind()));
      break;
  }
  const base::Instant now = clock_.Now();
  return absl::StrCat(what, " since ", absl::FormatDuration(now - wait.since), ", last progress ",
                      absl::FormatDuration(now - last_progress_), " ago");
}

std::string StepLoop::WaitingFor() const {
  const Wait* longest = nullptr;
  WaitKind kind = WaitKind::kDevice;
  for (int i = 0; i < kWaitKinds; ++i) {
    const Wait& wait = waits_[static_cast<size_t>(i)];
    if (!wait.active || (longest != nullptr && wait.since >= longest->since)) continue;
    longest = &wait;
    kind = static_cast<WaitKind>(i);
  }
  return longest == nullptr ? std::string() : Describe(kind, *longest);
}

base::Instant StepLoop::NextWakeup() const {
  base::Instant next = base::Instant::Infinite();
  for (const Wait& wait : waits_) {
    if (wait.active) next = std::min(next, wait.deadline);
  }
  return next;
}

void StepLoop::ArmTimer() {
  const base::Instant due = NextWakeup();
  if (timer_ != base::TimerId::kNone) {
    if (due == timer_due_) return;
    timers_.Cancel(std::exchange(timer_, base::TimerId::kNone));
  }
  if (due == base::Instant::Infinite()) return;
  timer_due_ = due;
  timer_ = timers_.At(due, [this] { OnTimer(); });
}

void StepLoop::OnTimer() {
  timer_ = base::TimerId::kNone;
  const bool stalled = clock_.Now() - timer_due_ > kOwnStall;
  Pump();  // what is already here counts
  if (stopped_ || !status_.ok()) return;
  const base::Instant now = clock_.Now();
  for (int i = 0; i < kWaitKinds; ++i) {
    Wait& wait = waits_[static_cast<size_t>(i)];
    if (!wait.active || wait.deadline > now) continue;
    if (stalled) {
      wait.deadline = now + kStallGrace;
      continue;
    }
    Fail(absl::DeadlineExceededError(
        absl::StrCat("gave up after ", absl::FormatDuration(now - wait.since), " of waiting for ",
                     Describe(static_cast<WaitKind>(i), wait),
                     " (see the log there; a slow machine may need a longer step timeout)")));
    return;
  }
  ArmTimer();
}

}  // namespace layercake::stage_worker
