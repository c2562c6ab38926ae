// For a thread that waits for events: a wake-up from sleep takes tens of microseconds, and more the
// longer it slept. Who knows that something is about to happen has the thread look for it instead.
#pragma once

#include "base/clock.h"

namespace layercake::base {

// Used from the waiting thread's own tasks, unless an implementation says more.
class EventPoll {
 public:
  virtual ~EventPoll() = default;
  // Until then the thread does not sleep: it keeps its core busy with looking for events. Replaces
  // what was asked before; an instant that has passed ends it.
  virtual void PollUntil(Instant until) = 0;
};

}  // namespace layercake::base
