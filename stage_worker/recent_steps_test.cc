#include "stage_worker/recent_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace layercake::stage_worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsSupersetOf;

std::vector<uint64_t> StepsOf(const RecentSteps& recent) {
  v1::StageCounters counters;
  recent.AppendTo(counters);
  std::vector<uint64_t> steps;
  for (const v1::StepTime& time : counters.recent_steps()) steps.push_back(time.step());
  return steps;
}

TEST(RecentSteps, AreTheLatestWhereAllAreAlike) {
  RecentSteps recent;
  for (uint64_t step = 1; step <= 100; ++step) recent.Add(step, 8, 1e-3);
  const std::vector<uint64_t> steps = StepsOf(recent);
  ASSERT_EQ(steps.size(), RecentSteps::kMost);
  EXPECT_EQ(steps.front(), 100 - RecentSteps::kMost + 1);
  EXPECT_EQ(steps.back(), 100u);
}

TEST(RecentSteps, ThoseOfAPromptStayWhileHundredsOfDecodesFollow) {
  RecentSteps recent;
  uint64_t step = 0;
  for (const int rows : {512, 512, 512, 400}) recent.Add(++step, rows, 0.03);
  for (int i = 0; i < 200; ++i) recent.Add(++step, 1, 3e-3);
  const std::vector<uint64_t> steps = StepsOf(recent);
  EXPECT_EQ(steps.size(), RecentSteps::kMost);
  EXPECT_THAT(steps, IsSupersetOf({1, 2, 3, 4}));
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end()));
  for (int i = 0; i < 400; ++i) recent.Add(++step, 1, 3e-3);
  EXPECT_GT(StepsOf(recent).front(), 4u) << "what is long past is nobody's business";
}

TEST(RecentSteps, ASizeMakesPlaceOnlyForItself) {
  RecentSteps recent;
  recent.Add(1, 1, 1e-3);
  for (uint64_t step = 2; step <= 200; ++step) recent.Add(step, step % 2 == 0 ? 64 : 2048, 1e-2);
  EXPECT_EQ(StepsOf(recent).front(), 1u);
  RecentSteps few;
  few.Add(7, 0, 1e-3);
  EXPECT_THAT(StepsOf(few), ElementsAre(7));
}

}  // namespace
}  // namespace layercake::stage_worker
