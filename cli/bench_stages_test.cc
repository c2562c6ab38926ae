#include "cli/bench_stages.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A chain of two, which reported half a second ago.
v1::GetStatusResponse Status(double busy, uint64_t steps, uint64_t hops) {
  v1::GetStatusResponse status;
  for (int i = 0; i < 2; ++i) {
    v1::StageStatus& stage = *status.add_stages();
    stage.set_stage(i);
    stage.set_busy_seconds(busy);
    stage.set_steps_done(steps);
    stage.set_counters_age_seconds(0.5);
    stage.set_weight_bytes(4'000'000'000);
    stage.set_kv_bytes(1 << 20);
  }
  v1::StageStatus& second = *status.mutable_stages(1);
  second.set_upstream_transport("pinned_host: same host, no P2P");
  second.set_hops(hops);
  second.set_hop_bytes(hops * 10'000);
  second.set_hop_seconds(static_cast<double>(hops) * 20e-6);
  second.set_copy_gigabytes_per_second(4000);
  return status;
}

TEST(BenchStages, AreTheDifferenceOfTwoReports) {
  const auto stages = StageFiguresBetween(Status(3, 1000, 500), Status(5, 2000, 1500), 4);
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_DOUBLE_EQ(stages[0].busy, 0.5);
  EXPECT_DOUBLE_EQ(stages[0].step_milliseconds, 2);
  EXPECT_DOUBLE_EQ(stages[0].weight_gigabytes_per_second, 2000);
  EXPECT_EQ(stages[0].copy_share, 0) << "nobody measured how fast it copies";
  EXPECT_EQ(stages[0].hop_microseconds, 0);
  EXPECT_EQ(stages[0].transport, "");
  EXPECT_DOUBLE_EQ(stages[1].copy_share, 0.5);
  EXPECT_NEAR(stages[1].hop_microseconds, 20, 1e-9);
  EXPECT_NEAR(stages[1].hop_gigabytes_per_second, 0.5, 1e-9);
  EXPECT_EQ(stages[1].transport, "pinned_host");
  EXPECT_EQ(stages[1].kv_bytes, 1u << 20);
}

TEST(BenchStages, AreFreshWhenEveryStageHasReported) {
  v1::GetStatusResponse status = Status(1, 1, 1);
  EXPECT_TRUE(AllReportedWithin(status, 0.6));
  EXPECT_FALSE(AllReportedWithin(status, 0.5));
  status.mutable_stages(1)->set_counters_age_seconds(2);
  EXPECT_FALSE(AllReportedWithin(status, 0.6));
}

TEST(BenchStages, SayNothingOfAWorkerThatBeganAnew) {
  const auto stages = StageFiguresBetween(Status(3, 1000, 500), Status(1, 200, 100), 4);
  EXPECT_EQ(stages[1].busy, 0);
  EXPECT_EQ(stages[1].step_milliseconds, 0);
  EXPECT_EQ(stages[1].hop_microseconds, 0);
}

TEST(BenchStages, StandInATableWithDashesForTheUnknown) {
  const auto stages = StageFiguresBetween(Status(3, 1000, 500), Status(5, 2000, 1500), 4);
  const std::string text = FormatStageFigures(8, stages);
  EXPECT_THAT(text, AllOf(HasSubstr("50%"), HasSubstr("2.000"), HasSubstr("2000.0"),
                          HasSubstr("pinned_host"), HasSubstr("20.0"), HasSubstr("0.500"),
                          HasSubstr("1.0 MiB"), Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
  const size_t width = text.find('\n');
  EXPECT_EQ(StageTableHeading().find('\n'), width);
  EXPECT_EQ(text.find('\n', width + 1), 2 * width + 1);
  EXPECT_THAT(text.substr(0, width), HasSubstr(" - "));
}

}  // namespace
}  // namespace layercake::cli
