#include "stage_worker/token_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/random.h"

namespace layercake::stage_worker {
namespace {

using ::testing::ElementsAre;

StageLimits Limits() {
  StageLimits limits;
  limits.max_in_flight = 3;
  return limits;
}

// Rows of sequence 5 alone, the last one sampled.
StepPlan Rows(uint64_t step, int position, std::vector<int32_t> tokens, uint64_t token_of_step) {
  StepPlan plan;
  plan.step = step;
  for (size_t i = 0; i < tokens.size(); ++i) {
    plan.kv_positions.push_back(position + static_cast<int32_t>(i));
  }
  plan.tokens = std::move(tokens);
  StepSequence sequence;
  sequence.id = 5;
  sequence.row_count = plan.rows();
  sequence.sampled_rows = 1;
  sequence.token_of_step = token_of_step;
  plan.sequences.push_back(std::move(sequence));
  return plan;
}

StepPlan Begin(uint64_t step, std::vector<int32_t> prompt, bool penalties) {
  StepPlan plan = Rows(step, 0, prompt, 0);
  plan.begins.push_back(5);
  if (penalties) {
    plan.histories.push_back(
        {.sequence = 5, .prompt_tokens = static_cast<uint32_t>(prompt.size()), .tokens = {}});
  }
  return plan;
}

std::vector<v1::SequenceResult> Sampled(int32_t token) {
  v1::SequenceResult result;
  result.set_sequence(5);
  result.add_tokens()->set_token(token);
  return {result};
}

std::map<int32_t, int32_t> SeenBy(const StepPlan& plan) {
  std::map<int32_t, int32_t> seen;
  for (const kernels::SeenToken& token : plan.sequences[0].seen) {
    seen[token.token] = token.output_count;
  }
  return seen;
}

TEST(TokenLedger, GivesTheNextStepItsTokenAndItsPast) {
  TokenLedger ledger(Limits());
  StepPlan first = Begin(1, {7, 8, 7}, /*penalties=*/true);
  ASSERT_TRUE(ledger.Begin(first).ok());
  EXPECT_EQ(SeenBy(first), (std::map<int32_t, int32_t>{{7, 0}, {8, 0}}));
  ledger.End(first, Sampled(8));
  StepPlan second = Rows(2, 3, {0}, 1);
  ASSERT_TRUE(ledger.Begin(second).ok());
  EXPECT_THAT(second.tokens, ElementsAre(8));
  EXPECT_EQ(SeenBy(second), (std::map<int32_t, int32_t>{{7, 0}, {8, 1}}));
  ledger.End(second, Sampled(9));
  StepPlan third = Rows(3, 4, {9}, 0);
  ASSERT_TRUE(ledger.Begin(third).ok()) << "a token that the coordinator knows already";
  EXPECT_EQ(SeenBy(third), (std::map<int32_t, int32_t>{{7, 0}, {8, 1}, {9, 1}}));
}

TEST(TokenLedger, KeepsNoPastWithoutPenaltiesAndForgetsItAtTheEnd) {
  TokenLedger ledger(Limits());
  StepPlan plain = Begin(1, {7, 8}, /*penalties=*/false);
  ASSERT_TRUE(ledger.Begin(plain).ok());
  EXPECT_TRUE(plain.sequences[0].seen.empty());
  EXPECT_EQ(ledger.histories(), 0u);
  ledger.End(plain, Sampled(8));
  StepPlan again = Begin(2, {7, 8}, /*penalties=*/true);
  again.ends.push_back(5);
  ASSERT_TRUE(ledger.Begin(again).ok());
  EXPECT_EQ(ledger.histories(), 1u);
  ledger.End(again, Sampled(8));
  EXPECT_EQ(ledger.histories(), 0u);
}

TEST(TokenLedger, ForgetsThePastOfASequenceThatBeginsAgainWithoutPenalties) {
  TokenLedger ledger(Limits());
  StepPlan first = Begin(1, {7, 8}, /*penalties=*/true);
  ASSERT_TRUE(ledger.Begin(first).ok());
  ledger.End(first, Sampled(8));
  StepPlan again = Begin(2, {7, 8}, /*penalties=*/false);
  ASSERT_TRUE(ledger.Begin(again).ok());
  EXPECT_TRUE(again.sequences[0].seen.empty());
  EXPECT_EQ(ledger.histories(), 0u);
}

TEST(TokenLedger, ComputesOnAfterASequenceThatCannotGoOn) {
  TokenLedger ledger(Limits());
  StepPlan first = Begin(1, {7}, /*penalties=*/false);
  ASSERT_TRUE(ledger.Begin(first).ok());
  v1::SequenceResult non_finite;
  non_finite.set_sequence(5);
  non_finite.set_non_finite_stage(0);
  ledger.End(first, {non_finite});
  StepPlan second = Rows(2, 1, {0}, 1);
  ASSERT_TRUE(ledger.Begin(second).ok());
  EXPECT_THAT(second.tokens, ElementsAre(0));
}

TEST(TokenLedger, RefusesAStepWhoseTokenNoStepSampled) {
  TokenLedger ledger(Limits());
  StepPlan lost = Rows(2, 1, {0}, 1);
  EXPECT_EQ(ledger.Begin(lost).code(), absl::StatusCode::kInternal);
}

// Tokens that are planned ahead and those that the coordinator sends come to the same past.
TEST(TokenLedger, IsTheSameHoweverATokenArrives) {
  const uint64_t seed = base::EntropySeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  base::SeededRandom random(seed);
  for (int run = 0; run < 50; ++run) {
    TokenLedger ahead(Limits());
    TokenLedger told(Limits());
    std::vector<int32_t> tokens;
    for (size_t i = 0; i <= random.Below(6); ++i) {
      tokens.push_back(static_cast<int32_t>(random.Below(5)));
    }
    for (uint64_t step = 1; step <= 20; ++step) {
      const auto position = static_cast<int>(tokens.size()) - 1;
      StepPlan a = step == 1 ? Begin(1, tokens, true)
                             : Rows(step, position, {0}, random.Below(2) == 0 ? 0 : step - 1);
      if (a.sequences[0].token_of_step == 0 && step > 1) a.tokens[0] = tokens.back();
      StepPlan b = step == 1 ? Begin(1, tokens, true) : Rows(step, position, {tokens.back()}, 0);
      ASSERT_TRUE(ahead.Begin(a).ok());
      ASSERT_TRUE(told.Begin(b).ok());
      ASSERT_EQ(a.tokens, b.tokens);
      ASSERT_EQ(SeenBy(a), SeenBy(b));
      tokens.push_back(static_cast<int32_t>(random.Below(5)));
      ahead.End(a, Sampled(tokens.back()));
      told.End(b, Sampled(tokens.back()));
    }
  }
}

}  // namespace
}  // namespace layercake::stage_worker
