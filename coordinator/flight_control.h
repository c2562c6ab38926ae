// How many micro-batches to keep in flight: one for each stage, and one more where hops between
// stages cost more than reading every weight once more per round.
//
// With as many micro-batches as stages, a stage waits for a hop in each step. One more hides the
// hops, but the same rows then go in smaller micro-batches, each of which reads all weights. Which
// is better is guessed from two measured things: the gap between results over the time of the
// slowest stage, and how a step's time depends on its rows (step_cost.h). A gap may have other
// reasons than hops (stages that share cores), so the guess is tried, and taken back where it did
// not bring more tokens.
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
  // Since the last decision, while as many were in flight as wanted.
  double seconds_ = 0;
  double samples_ = 0;
  bool trying_ = false;
  double rate_before_ = 0;  // samples a second, before the one that is tried
  int hold_ = 0;            // decisions until it may be tried (again)
  int next_hold_ = 4;       // after a try that did not help
};

}  // namespace layercake::coordinator
