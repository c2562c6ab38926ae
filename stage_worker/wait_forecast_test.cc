#include "stage_worker/wait_forecast.h"

#include <gtest/gtest.h>

namespace layercake::stage_worker {
namespace {

constexpr base::Instant kSince = base::Instant::FromStart(absl::Seconds(100));

WaitForecast After(std::initializer_list<int> microseconds) {
  WaitForecast forecast;
  for (const int wait : microseconds) forecast.Record(absl::Microseconds(wait));
  return forecast;
}

TEST(WaitForecast, SaysNothingBeforeItKnowsAFewWaits) {
  EXPECT_FALSE(After({}).Expect(kSince).has_value());
  EXPECT_FALSE(After({3400, 3400, 3400, 3400}).Expect(kSince).has_value());
  EXPECT_TRUE(After({3400, 3400, 3400, 3400, 3400}).Expect(kSince).has_value());
}

TEST(WaitForecast, OpensAShortWindowAroundTheUsualEnd) {
  const auto window = After({3400, 3380, 3420, 3410, 3390}).Expect(kSince);
  ASSERT_TRUE(window.has_value());
  EXPECT_EQ(window->begin, kSince + absl::Microseconds(3100));
  EXPECT_EQ(window->end, kSince + absl::Microseconds(3900));
}

TEST(WaitForecast, IgnoresAnOutlierAndFollowsAChange) {
  WaitForecast forecast = After({1000, 1000, 50'000, 1000, 1000});
  EXPECT_EQ(forecast.Expect(kSince)->begin, kSince + absl::Microseconds(700));
  for (int i = 0; i < 3; ++i) forecast.Record(absl::Microseconds(2000));
  EXPECT_EQ(forecast.Expect(kSince)->begin, kSince + absl::Microseconds(1700));
}

TEST(WaitForecast, BeginsAtOnceWhereWaitsAreShort) {
  const auto window = After({20, 30, 25, 20, 20}).Expect(kSince);
  ASSERT_TRUE(window.has_value());
  EXPECT_LT(window->begin, kSince);
  EXPECT_EQ(window->end, kSince + absl::Microseconds(220));
}

TEST(WaitForecast, NeverOpensMoreThanAMillisecondAndNoneForLongWaits) {
  for (const int wait : {0, 100, 1000, 5000, 20'000, 100'000}) {
    const auto window = After({wait, wait, wait, wait, wait}).Expect(kSince);
    ASSERT_TRUE(window.has_value()) << wait;
    EXPECT_LE(window->end - window->begin, absl::Milliseconds(1)) << wait;
  }
  EXPECT_FALSE(After({100'001, 100'001, 100'001, 1, 1}).Expect(kSince).has_value()) << "too long";
}

}  // namespace
}  // namespace layercake::stage_worker
