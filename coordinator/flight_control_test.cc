#include "coordinator/flight_control.h"

#include <utility>

#include "base/random.h"
#include "gtest/gtest.h"

namespace layercake::coordinator {
namespace {

// A chain whose slowest stage takes cost(rows), with a gap after each result when there is one
// micro-batch for each stage.
class SimpleChain {
 public:
  SimpleChain(int stages, FlightControl::Predict cost, double gap)
      : stages_(stages), control_(stages, stages + 1), cost_(std::move(cost)), gap_(gap) {}

  // One more micro-batch does not hide the gap.
  void HideNothing() { hides_ = false; }
  // What is thought of costs, where that differs.
  void Believe(FlightControl::Predict predict) { predict_ = std::move(predict); }
  // Nothing to do for that long.
  void Idle(double seconds) { now_ += seconds; }

  // Returns the share of results with one micro-batch more than stages.
  double Run(int streams, int results) {
    int more = 0;
    for (int i = 0; i < results; ++i) {
      const int turns = control_.wanted();
      const auto rows = static_cast<double>(streams);
      const StepShape all{.rows = rows, .samples = rows};
      const StepShape shape = all.Times(1.0 / turns);
      more += turns - stages_;
      now_ += cost_(shape) + (turns == stages_ || !hides_ ? gap_ : 0);
      control_.OnResult({.shape = shape, .full = true}, all,
                        base::Instant::FromStart(absl::Seconds(now_)), predict_ ? predict_ : cost_);
    }
    return static_cast<double>(more) / results;
  }
  int wanted() const { return control_.wanted(); }

 private:
  const int stages_;
  FlightControl control_;
  const FlightControl::Predict cost_;
  FlightControl::Predict predict_;
  const double gap_;
  bool hides_ = true;
  double now_ = 0;
};

FlightControl::Predict Linear(double fixed, double per_row) {
  return [=](const StepShape& shape) { return fixed + per_row * shape.rows; };
}

TEST(FlightControl, AddsOneMicroBatchWhereHopsCostMoreThanTheWeights) {
  SimpleChain no_gap(4, Linear(1e-3, 1e-4), 0);
  EXPECT_EQ(no_gap.Run(32, 5000), 0) << "nothing to hide";
  SimpleChain slow_hops(4, Linear(1e-3, 1e-4), 1e-3);
  EXPECT_GT(slow_hops.Run(32, 5000), 0.9);
  SimpleChain weights(4, Linear(10e-3, 1e-5), 1e-3);
  EXPECT_EQ(weights.Run(32, 5000), 0) << "one more reading of the weights costs more";
}

TEST(FlightControl, OneStageThatReadsItsWeightsKeepsToOneMicroBatch) {
  SimpleChain chain(1, Linear(6.5e-3, 1.5e-4), 0.5e-3);
  for (const int streams : {1, 4, 16, 64, 3}) EXPECT_EQ(chain.Run(streams, 2000), 0) << streams;
}

TEST(FlightControl, KeepsBelowASizeAtWhichKernelsTakeAStep) {
  const auto step = [](const StepShape& shape) { return shape.rows > 16 ? 17e-3 : 7e-3; };
  SimpleChain chain(1, step, 0);
  EXPECT_EQ(chain.Run(16, 1000), 0);
  EXPECT_GT(chain.Run(17, 1000), 0.8);
  EXPECT_LT(chain.Run(64, 1000), 0.01) << "at once: two of 32 are above it";
}

TEST(FlightControl, TakesBackWhatDidNotHelp) {
  SimpleChain chain(4, Linear(1e-3, 1e-4), 1e-3);
  chain.HideNothing();
  EXPECT_LT(chain.Run(32, 5000), 0.1);
}

// The rate of one stream says nothing of what 32 should have.
TEST(FlightControl, DoesNotTakeMoreStreamsForTheMeritOfOneMicroBatchMore) {
  SimpleChain chain(1, Linear(6.5e-3, 1e-4), 0.5e-3);
  chain.Believe(Linear(0, 1e-3));  // steps of one size leave that open
  for (int i = 0; i < 1000 && chain.wanted() == 1; ++i) chain.Run(4, 1);
  ASSERT_EQ(chain.wanted(), 2) << "a try";
  chain.Run(32, 64);
  EXPECT_EQ(chain.wanted(), 1);
}

TEST(FlightControl, ATryThatIsClearlyWorseIsShort) {
  SimpleChain chain(1, Linear(6.5e-3, 0), 0.5e-3);
  chain.Believe(Linear(0, 1e-3));
  EXPECT_LT(chain.Run(8, 2000), 0.06);
}

TEST(FlightControl, NeverWantsMoreThanThereIsWorkFor) {
  SimpleChain chain(4, Linear(1e-3, 1e-4), 1e-3);
  EXPECT_EQ(chain.Run(4, 5000), 0);
}

TEST(FlightControl, APauseIsNoGap) {
  SimpleChain chain(2, Linear(3e-3, 2e-5), 1e-4);
  chain.Run(8, 640);
  for (int i = 0; i < 10; ++i) {
    chain.Idle(5);
    EXPECT_EQ(chain.Run(8, 64), 0);
  }
}

TEST(FlightControl, NoiseIsNoReason) {
  base::SeededRandom random(11);
  const auto noisy = [&random](const StepShape& shape) {
    return (3.3e-3 + 3e-5 * shape.rows) * (0.9 + 0.2 * random.Unit());
  };
  SimpleChain chain(2, noisy, 1e-4);
  chain.Believe(Linear(3.3e-3, 3e-5));
  EXPECT_EQ(chain.Run(32, 20'000), 0);
}

TEST(FlightControl, KeepsToWhatItMayUse) {
  EXPECT_EQ(FlightControl(4, 1).wanted(), 1);
  EXPECT_EQ(FlightControl(4, 4).wanted(), 4);
  EXPECT_EQ(FlightControl(4, 9).wanted(), 4);
}

}  // namespace
}  // namespace layercake::coordinator
