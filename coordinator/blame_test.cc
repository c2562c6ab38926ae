#include "coordinator/blame.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::coordinator {
namespace {

v1::StageCounters Counters(uint64_t plans, uint64_t activations, uint64_t begun, uint64_t done) {
  v1::StageCounters counters;
  counters.set_plans_seen(plans);
  counters.set_activations_seen(activations);
  counters.set_steps_begun(begun);
  counters.set_steps_done(done);
  return counters;
}

TEST(Blame, NamesTheSessionWhenStageZeroNeverSawThePlan) {
  const Verdict verdict = Blame(5, {Counters(4, 0, 4, 4), Counters(4, 4, 4, 4)});
  EXPECT_EQ(verdict.culprit, Culprit::kSession);
  EXPECT_EQ(verdict.stage, 0);
}

TEST(Blame, NamesTheStageThatBeganAndDidNotFinish) {
  const Verdict verdict =
      Blame(5, {Counters(5, 0, 5, 5), Counters(5, 5, 5, 4), Counters(5, 4, 4, 4)});
  EXPECT_EQ(verdict.culprit, Culprit::kStage);
  EXPECT_EQ(verdict.stage, 1);
}

TEST(Blame, NamesTheLinkWhenBothEndsAreIdle) {
  const Verdict verdict = Blame(5, {Counters(5, 0, 5, 5), Counters(5, 4, 4, 4)});
  EXPECT_EQ(verdict.culprit, Culprit::kLink);
  EXPECT_EQ(verdict.stage, 0);
}

TEST(Blame, NamesTheWayBackWhenTheFirstStageLacksAToken) {
  const Verdict verdict =
      Blame(5, {Counters(5, 0, 4, 4), Counters(5, 4, 4, 4), Counters(5, 4, 4, 4)});
  EXPECT_EQ(verdict.culprit, Culprit::kLink);
  EXPECT_EQ(verdict.stage, 2);
  // Where a stage is at work, the token is on its way.
  EXPECT_EQ(Blame(5, {Counters(5, 0, 4, 4), Counters(5, 4, 4, 4), Counters(5, 4, 4, 3)}).culprit,
            Culprit::kStage);
}

TEST(Blame, AccusesNoStageWhenNothingStandsOut) {
  EXPECT_EQ(Blame(5, {Counters(5, 0, 5, 5), Counters(5, 5, 5, 5)}).culprit, Culprit::kCoordinator);
}

}  // namespace
}  // namespace layercake::coordinator
