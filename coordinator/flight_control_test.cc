#include "coordinator/flight_control.h"

#include "gtest/gtest.h"

namespace layercake::coordinator {
namespace {

// Results of a chain of four stages whose step takes fixed + per_row * rows, with a gap after each.
// `hides`: one more micro-batch hides the gap. Returns how many were wanted for most of the time.
int WantedAfter(double fixed, double per_row, double gap, int work, bool hides = true) {
  FlightControl control(4, 5);
  double now = 0;
  int with_one_more = 0;
  const auto predict = [&](const StepShape& shape) { return fixed + per_row * shape.rows; };
  for (int i = 0; i < 5000; ++i) {
    const int turns = control.wanted();
    const StepShape shape{.rows = 32.0 / turns, .samples = 32.0 / turns};
    with_one_more += turns - 4;
    now += turns == 4 || !hides ? predict(shape) + gap : predict(shape);
    control.OnResult(shape, true, base::Instant::FromStart(absl::Seconds(now)), work, predict);
  }
  return with_one_more > 2500 ? 5 : 4;
}

TEST(FlightControl, AddsOneMicroBatchWhereHopsCostMoreThanTheWeights) {
  EXPECT_EQ(WantedAfter(1e-3, 1e-4, 0, 32), 4) << "no gap, nothing to hide";
  EXPECT_EQ(WantedAfter(1e-3, 1e-4, 1e-3, 32), 5);
  EXPECT_EQ(WantedAfter(10e-3, 1e-5, 1e-3, 32), 4) << "one more reading of the weights costs more";
}

TEST(FlightControl, TakesBackWhatDidNotHelp) {
  EXPECT_EQ(WantedAfter(1e-3, 1e-4, 1e-3, 32, /*hides=*/false), 4);
}

TEST(FlightControl, NeverWantsMoreThanThereIsWorkFor) {
  EXPECT_EQ(WantedAfter(1e-3, 1e-4, 1e-3, 4), 4);
}

TEST(FlightControl, KeepsToWhatItMayUse) {
  EXPECT_EQ(FlightControl(4, 1).wanted(), 1);
  EXPECT_EQ(FlightControl(4, 4).wanted(), 4);
  EXPECT_EQ(FlightControl(4, 9).wanted(), 4);
}

}  // namespace
}  // namespace layercake::coordinator
