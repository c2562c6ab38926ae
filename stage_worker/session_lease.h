// What keeps a worker's Session alive: heartbeats go out, and the coordinator's silence is noticed.
//
// Thread rule: the step thread. The callbacks run from a timer, the first beat inside Start.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/executor.h"
#include "layercake/v1/control.pb.h"

namespace layercake::stage_worker {

class SessionLease {
 public:
  struct Callbacks {
    // A heartbeat to send; what the worker does at present is still missing in it.
    absl::AnyInvocable<void(v1::Heartbeat)> on_beat;
    // Once: the coordinator was silent for longer than the lease. No beat follows.
    absl::AnyInvocable<void(absl::Status)> on_silence;
  };

  // `coordinator`: its address, for the message. Clock and timers outlive the lease.
  SessionLease(const base::Clock& clock, base::Timers& timers, std::string coordinator,
               Callbacks callbacks);
  ~SessionLease();

  // Of the Welcome. InvalidArgument for times that cannot be kept.
  absl::Status SetTimes(double heartbeat_seconds, double lease_seconds);
  // Sends the first beat; SetTimes came before.
  void Start();
  void End();

  // A message came from the coordinator.
  void OnHeard() { last_heard_ = clock_.Now(); }
  void OnHeartbeat(const v1::Heartbeat& heartbeat) { last_heard_number_ = heartbeat.number(); }

 private:
  void Beat();
  void OnTimer();

  const base::Clock& clock_;
  base::Timers& timers_;
  const std::string coordinator_;
  Callbacks callbacks_;
  absl::Duration heartbeat_ = absl::Seconds(1);
  absl::Duration lease_ = absl::Seconds(5);
  uint64_t number_ = 0;
  uint64_t last_heard_number_ = 0;
  base::Instant last_heard_;
  base::Instant next_beat_;
  base::TimerId timer_ = base::TimerId::kNone;
};

}  // namespace layercake::stage_worker
