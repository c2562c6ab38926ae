#include "simulation/figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace layercake::simulation {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

SimOutcome Outcome(double submitted, std::vector<double> times, double ended) {
  SimOutcome outcome;
  outcome.submitted = submitted;
  outcome.ended = ended;
  outcome.choices.resize(1);
  outcome.choices[0].times = std::move(times);
  return outcome;
}

TEST(Figures, CountWhatLiesInTheTime) {
  SimReport report;
  report.outcomes.push_back(Outcome(0, {1, 2, 3}, 3));  // one token and a gap of 1 before, two in
  report.outcomes.push_back(Outcome(2.5, {3, 3.5, 9}, 9));  // first token after 0.5; the last after
  report.outcomes.push_back(Outcome(3, {7}, 7));            // waits at the end
  report.outcomes.push_back(Outcome(3, {}, -1));            // and so does this one
  report.outcomes.push_back(Outcome(2.5, {}, 2.6));
  report.outcomes.back().error = absl::ResourceExhaustedError("full");
  report.busy_seconds = {4, 2};
  report.window_blocks = 5;
  report.peak_blocks = 8;
  const Figures figures = FiguresOf(report, /*kv_blocks=*/10, 2, 6);
  EXPECT_DOUBLE_EQ(figures.tokens_per_second, 4.0 / 4);  // at 2, 3, 3, 3.5
  EXPECT_DOUBLE_EQ(figures.requests_per_second, 1.0 / 4);
  EXPECT_DOUBLE_EQ(figures.first_p50, 4);  // of 0.5 and 4
  EXPECT_DOUBLE_EQ(figures.gap_p50, 1);    // of 0.5, 1 and 1
  EXPECT_DOUBLE_EQ(figures.gap_p99, 1);
  EXPECT_THAT(figures.busy, ElementsAre(DoubleEq(1), DoubleEq(0.5)));
  EXPECT_DOUBLE_EQ(figures.kv_share, 0.5);
  EXPECT_DOUBLE_EQ(figures.kv_peak_share, 0.8);
  EXPECT_EQ(figures.failed, 1);
  EXPECT_EQ(figures.waiting, 2);
}

TEST(Figures, APercentileIsOneOfTheValues) {
  EXPECT_EQ(Percentile({}, 0.5), 0);
  EXPECT_EQ(Percentile({3, 1, 2}, 0), 1);
  EXPECT_EQ(Percentile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(Percentile({3, 1, 2}, 1), 3);
}

}  // namespace
}  // namespace layercake::simulation
