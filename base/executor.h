// Where work runs and when: the two seams under every state machine.
#pragma once

#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "base/clock.h"

namespace layercake::base {

using Task = absl::AnyInvocable<void()>;

// Runs posted tasks one at a time, in the order posted. Post may be called from any thread.
class Executor {
 public:
  virtual ~Executor() = default;
  // False when the executor's queue is full or it has stopped; the task is then destroyed unrun.
  [[nodiscard]] virtual bool Post(Task task) = 0;
};

enum class TimerId : uint64_t { kNone = 0 };

// Runs tasks at a later time, on the executor they belong to. Used from that executor only.
class Timers {
 public:
  virtual ~Timers() = default;
  // Runs `task` once, not before `when`. Tasks due at the same instant run in the order added.
  virtual TimerId At(Instant when, Task task) = 0;
  // True when the timer had not run yet and now never will.
  virtual bool Cancel(TimerId id) = 0;
};

}  // namespace layercake::base
