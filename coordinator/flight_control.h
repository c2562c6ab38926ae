// How many micro-batches to keep in flight: one for each stage, and one more where hops between
// stages cost more than reading every weight once more per round.
//
// With as many micro-batches as stages, a stage waits for a hop in each step. One more hides the
// hops, but the same rows then go in smaller micro-batches, each of which reads all weights. Which
// is better follows from two measured things: the gap between results over the time of the slowest
// stage, and how a step's time depends on its rows (step_cost.h).
#pragma once

#include <functional>
#include <optional>

#include "base/clock.h"
#include "coordinator/step_cost.h"

namespace layercake::coordinator {

// Pure: time is an argument.
class FlightControl {
 public:
  // `most` >= 1; more than stages + 1 is never used.
  FlightControl(int stages, int most);

  int wanted() const { return wanted_; }
  // A result came. `full`: as many were in flight as wanted, ever since the result before.
  // `predict`: seconds of the slowest stage for a shape; empty while that is unknown. `work`: how
  // many micro-batches there is work for.
  void OnResult(const StepShape& shape, bool full, base::Instant now, int work,
                const std::function<double(const StepShape&)>& predict);

 private:
  void Decide(int work, const std::function<double(const StepShape&)>& predict);

  const int stages_;
  const int most_;
  int wanted_;
  std::optional<base::Instant> last_result_;
  // Moving averages.
  StepShape shape_;
  double gap_ = 0;  // seconds, measured with one micro-batch for each stage
  int results_ = 0;
  int gaps_ = 0;
};

}  // namespace layercake::coordinator
