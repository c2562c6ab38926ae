// How many micro-batches to keep in flight: one for each stage, or one more where that takes less
// time for a round, in which every stream gets its next token.
//
// With as many micro-batches as stages, a stage waits for a hop in each step. One more hides the
// hops, but the same rows then go in smaller micro-batches, each of which reads all weights:
//
//   round of S micro-batches      S * (cost(rows / S) + gap)
//   round of S + 1                the longer of (S + 1) * cost(rows / (S + 1)), the stages' work,
//                                 and S * (cost(rows / (S + 1)) + gap), one micro-batch's way
//
// Where a row adds b to a step's fixed time a, one more pays when a < S * gap; also where it takes
// micro-batches below a size at which kernels take a step. The cost comes from step_cost.h; the gap
// is measured, as the time between results over the cost of the slowest stage. A gap may have other
// reasons than hops (stages that share cores), and costs of sizes that nobody has seen are a guess.
// So it is tried, and taken back where it did not bring more tokens for as many streams.
#pragma once

#include <functional>
#include <optional>

#include "base/clock.h"
#include "coordinator/step_cost.h"

namespace layercake::coordinator {

// Pure: time is an argument.
class FlightControl {
 public:
  // Seconds of the slowest stage for a shape; empty while that is unknown, or was not measured for
  // steps of the result's size: what it is wrong by would be taken for a gap.
  using Predict = std::function<double(const StepShape&)>;
  struct Result {
    StepShape shape;
    StepShape prompts = {};  // what of it was prompts' chunks
    bool full = false;       // as many were in flight as wanted, ever since the result before
  };

  // `most` >= 1; more than stages + 1 is never used.
  FlightControl(int stages, int most);

  int wanted() const { return wanted_; }
  // A result came. `streams`: the rows that all streams together have in a round.
  void OnResult(const Result& result, const StepShape& streams, base::Instant now,
                const Predict& predict);

 private:
  // Full results since the last decision.
  struct Window {
    int results = 0;
    double seconds = 0;
    double samples = 0;
    double least_streams = 0;
    double most_streams = 0;

    double rate() const { return seconds > 0 ? samples / seconds : 0; }
    bool steady() const;
  };

  void Count(const Result& result, const StepShape& streams, double seconds,
             const Predict& predict);
  void TryOneMore(const StepShape& streams, const Predict& predict);
  void JudgeTry();
  void Want(int wanted);
  // Of a round with one micro-batch more over one without.
  double RoundRatio(const StepShape& streams, const Predict& predict) const;

  const int stages_;
  const int most_;
  int wanted_;
  std::optional<base::Instant> last_result_;
  StepShape prompts_;  // of a micro-batch, a moving average
  double gap_ = 0;     // seconds, measured with one micro-batch for each stage; moving average
  int gaps_ = 0;
  int results_ = 0;   // since the last decision
  int settling_ = 0;  // results that still belong to the number that was wanted before
  Window window_;
  bool trying_ = false;
  Window before_;  // the window before the one that is tried
  int hold_ = 0;   // decisions until it may be tried (again)
  int next_hold_;  // after a try that did not help
};

}  // namespace layercake::coordinator
