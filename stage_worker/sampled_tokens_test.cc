#include "stage_worker/sampled_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace layercake::stage_worker {
namespace {

using ::testing::ElementsAre;

// A step with one row for each of sequences 5 and 6.
StepPlan TwoRows(uint64_t token_of_first, uint64_t token_of_second) {
  StepPlan plan;
  plan.step = 4;
  plan.tokens = {11, 12};
  plan.sequences.resize(2);
  for (int i = 0; i < 2; ++i) {
    StepSequence& sequence = plan.sequences[static_cast<size_t>(i)];
    sequence.id = static_cast<uint64_t>(5 + i);
    sequence.first_row = i;
    sequence.row_count = 1;
    sequence.token_of_step = i == 0 ? token_of_first : token_of_second;
  }
  return plan;
}

TEST(SampledTokens, FillsWhatAnEarlierStepSampledAndLeavesTheRest) {
  SampledTokens tokens;
  tokens.Record(3, 5, 77);
  tokens.Record(3, 6, 78);
  tokens.Record(2, 6, 1);
  StepPlan plan = TwoRows(0, 3);
  EXPECT_EQ(tokens.MissingStep(plan), 0u);
  EXPECT_TRUE(tokens.Fill(plan));
  EXPECT_THAT(plan.tokens, ElementsAre(11, 78));
}

TEST(SampledTokens, SetsNothingWhileATokenIsMissing) {
  SampledTokens tokens;
  tokens.Record(2, 5, 77);
  tokens.Record(3, 5, 79);
  StepPlan plan = TwoRows(2, 3);
  EXPECT_EQ(tokens.MissingStep(plan), 3u);
  EXPECT_FALSE(tokens.Fill(plan));
  EXPECT_THAT(plan.tokens, ElementsAre(11, 12));
}

TEST(SampledTokens, ComputesARowWithoutATokenForNothing) {
  SampledTokens tokens;
  tokens.Record(3, 5, kNoToken);
  StepPlan plan = TwoRows(3, 0);
  EXPECT_TRUE(tokens.Fill(plan));
  EXPECT_THAT(plan.tokens, ElementsAre(0, 12));
}

TEST(SampledTokens, KeepsTheStepsThatALaterOneMayAskFor) {
  StageLimits limits;
  limits.max_in_flight = 3;
  SampledTokens tokens;
  for (uint64_t step = 1; step <= 20; ++step) {
    for (uint64_t sequence = 1; sequence <= 4; ++sequence) tokens.Record(step, sequence, 9);
    tokens.ForgetBefore(OldestWanted(step, limits));
    EXPECT_LE(tokens.size(), 16u);
  }
  // Step 20 may ask for 17, 18 and 19.
  StepPlan plan = TwoRows(0, 0);
  plan.sequences[0].id = 1;
  plan.sequences[0].token_of_step = 17;
  EXPECT_EQ(tokens.MissingStep(plan), 0u);
  plan.sequences[0].token_of_step = 16;
  EXPECT_EQ(tokens.MissingStep(plan), 16u);
}

TEST(SampledTokens, ReadsTheTokenOutOfAStepsResults) {
  std::vector<v1::SequenceResult> results(2);
  results[0].set_sequence(6);
  results[0].set_non_finite_stage(1);
  results[1].set_sequence(5);
  results[1].add_tokens()->set_token(42);
  const StepPlan plan = TwoRows(0, 0);
  EXPECT_EQ(TokenOf(plan.sequences[0], results), 42);
  EXPECT_EQ(TokenOf(plan.sequences[1], results), kNoToken) << "not finite";
  EXPECT_EQ(TokenOf(plan.sequences[1], {}), kNoToken);
}

}  // namespace
}  // namespace layercake::stage_worker
