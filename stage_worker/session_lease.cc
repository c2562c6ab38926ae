#include "stage_worker/session_lease.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace layercake::stage_worker {
namespace {

// A timer this late: this process stood still, so it judges nobody for now.
constexpr absl::Duration kOwnStall = absl::Seconds(1);

}  // namespace

SessionLease::SessionLease(const base::Clock& clock, base::Timers& timers, std::string coordinator,
                           Callbacks callbacks)
    : clock_(clock),
      timers_(timers),
      coordinator_(std::move(coordinator)),
      callbacks_(std::move(callbacks)) {}

SessionLease::~SessionLease() { End(); }

absl::Status SessionLease::SetTimes(double heartbeat_seconds, double lease_seconds) {
  if (!(heartbeat_seconds >= 0.01 && heartbeat_seconds <= 60) ||
      !(lease_seconds > heartbeat_seconds && lease_seconds <= 3600)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Welcome with a heartbeat of ", heartbeat_seconds, " s and a lease of ",
                     lease_seconds, " s: the lease must be the longer one"));
  }
  heartbeat_ = absl::Seconds(heartbeat_seconds);
  lease_ = absl::Seconds(lease_seconds);
  return absl::OkStatus();
}

void SessionLease::Start() { Beat(); }

void SessionLease::End() {
  if (timer_ != base::TimerId::kNone) timers_.Cancel(std::exchange(timer_, base::TimerId::kNone));
}

void SessionLease::Beat() {
  v1::Heartbeat heartbeat;
  heartbeat.set_number(++number_);
  heartbeat.set_last_heard(last_heard_number_);
  next_beat_ = clock_.Now() + heartbeat_;
  timer_ = timers_.At(next_beat_, [this] {
    timer_ = base::TimerId::kNone;
    OnTimer();
  });
  callbacks_.on_beat(std::move(heartbeat));
}

void SessionLease::OnTimer() {
  const base::Instant now = clock_.Now();
  if (now - next_beat_ > kOwnStall) last_heard_ = now;
  if (now - last_heard_ <= lease_) {
    Beat();
    return;
  }
  callbacks_.on_silence(absl::UnavailableError(
      absl::StrCat("the coordinator at ", coordinator_, " was silent for ",
                   absl::FormatDuration(now - last_heard_), ", longer than the lease of ",
                   absl::FormatDuration(lease_))));
}

}  // namespace layercake::stage_worker
