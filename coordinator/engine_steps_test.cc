// What the engine plans step by step: rows that run ahead of their token, and how many
// micro-batches a cancelled sequence lives on.
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "coordinator/testing/engine_rig.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/errors.h"

namespace layercake::coordinator::testing {
namespace {

using ::testing::ElementsAreArray;

SchedulerOptions Options(int stages, int kv_blocks = 64) {
  SchedulerOptions options;
  options.stages = options.max_in_flight = stages;
  options.run_ahead = true;
  options.kv_blocks = kv_blocks;
  options.block_tokens = 4;
  options.max_rows = 64;
  options.prefill_rows = 8;
  options.min_prefill_rows = 4;
  options.max_sequences = 8;
  return options;
}

PreparedRequest Request(std::vector<int32_t> prompt, int max_tokens) {
  PreparedRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

TEST(EngineRunAhead, PlansOneRowAheadAndNothingBeyondMaxTokens) {
  for (const int stages : {1, 4}) {
    EngineRig rig(Options(stages), /*offers=*/true);
    const auto sink = rig.Ask(Request({0, 1, 2}, 10));
    EXPECT_EQ(rig.sent(), 2) << "the prompt, and the first decode before its token is known";
    rig.AnswerAll();
    EXPECT_THAT(sink->tokens, ElementsAreArray(RightTokens({0, 1, 2}, 10)));
    EXPECT_EQ(sink->logprobs, sink->tokens);
    EXPECT_EQ(sink->finished->reason(), v1::FINISH_REASON_LENGTH);
    EXPECT_EQ(sink->finished->usage().completion_tokens(), 10);
    EXPECT_EQ(rig.rows, 3 + 9);
    EXPECT_EQ(rig.ahead_rows, 9);
    EXPECT_EQ(rig.wrong_steps, 0);
    EXPECT_EQ(rig.Loads().kv_blocks_used(), 0);
  }
}

TEST(EngineRunAhead, IsOffWhereAWorkerCannotOrNobodyWants) {
  for (const bool offers : {false, true}) {
    SchedulerOptions options = Options(2);
    options.run_ahead = !offers;
    EngineRig rig(options, offers);
    const auto sink = rig.Ask(Request({0, 1, 2}, 10));
    rig.AnswerAll();
    EXPECT_THAT(sink->tokens, ElementsAreArray(RightTokens({0, 1, 2}, 10)));
    EXPECT_EQ(rig.ahead_rows, 0);
  }
}

// CASES D1: the one row that was planned before the stop was seen is all that is computed after it.
TEST(EngineRunAhead, AStopWastesOneRowAndItsResultIsIgnored) {
  EngineRig rig(Options(1), /*offers=*/true);
  const std::vector<int32_t> right = RightTokens({0, 1, 2}, 10);
  PreparedRequest request = Request({0, 1, 2}, 10);
  request.stop_token_ids = {right[4]};
  const auto first =
      static_cast<int>(std::find(right.begin(), right.end(), right[4]) - right.begin());
  const auto sink = rig.Ask(request);
  rig.AnswerAll();
  EXPECT_THAT(sink->tokens, ElementsAreArray(RightTokens({0, 1, 2}, first)));
  EXPECT_EQ(sink->finished->reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(sink->finished->usage().completion_tokens(), first + 1);
  EXPECT_FALSE(sink->late);
  EXPECT_EQ(rig.rows, 3 + first + 1);
  EXPECT_EQ(rig.Loads().kv_blocks_used(), 0);
}

TEST(EngineRunAhead, ANaNEndsTheSequenceWithItsRowAheadAndNobodyElse) {
  EngineRig rig(Options(1), /*offers=*/true);
  const auto bad = rig.Ask(Request({0, 1, 2, 3, 4}, 20));
  const auto good = rig.Ask(Request({1, 1}, 20));
  for (int i = 0; i < 4; ++i) rig.Answer();
  rig.Answer(/*broken=*/1);
  EXPECT_EQ(ReasonOf(bad->error), ErrorReason::kNonFinite);
  rig.AnswerAll();
  EXPECT_FALSE(bad->late);
  EXPECT_THAT(good->tokens, ElementsAreArray(RightTokens({1, 1}, 20)));
  // Nothing of it is found again.
  const auto again = rig.Ask(Request({0, 1, 2, 3, 4}, 2));
  rig.AnswerAll();
  EXPECT_EQ(again->started->cached_prompt_tokens(), 0);
}

TEST(EngineRunAhead, APausedReaderGetsWhatWasAheadAndGoesOnRight) {
  EngineRig rig(Options(1), /*offers=*/true);
  const auto sink = rig.Ask(Request({0}, 60));
  sink->reads = false;
  rig.AnswerAll();
  const size_t paused_at = sink->tokens.size();
  EXPECT_LT(paused_at, 30u);
  sink->reads = true;
  sink->unread = 0;
  rig.Advance(absl::Milliseconds(60));
  rig.AnswerAll();
  EXPECT_THAT(sink->tokens, ElementsAreArray(RightTokens({0}, 60)));
}

TEST(EngineRunAhead, SaysTheSameAsWithoutOverSeededRuns) {
  int ahead = 0;
  uint64_t preemptions = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    base::SeededRandom random(seed);
    SchedulerOptions options =
        Options(1 + static_cast<int>(random.Below(4)), 12 + static_cast<int>(random.Below(20)));
    options.max_in_flight += static_cast<int>(random.Below(2));
    EngineRig rig(options, /*offers=*/true);
    std::vector<PreparedRequest> requests;
    std::vector<std::shared_ptr<RigSink>> sinks;
    for (int i = 0; i < 12; ++i) {
      std::vector<int32_t> prompt(1 + random.Below(20));
      for (int32_t& token : prompt) token = static_cast<int32_t>(random.Below(7));
      requests.push_back(Request(prompt, 1 + static_cast<int>(random.Below(20))));
      if (random.Below(3) == 0) {
        requests.back().stop_token_ids = {static_cast<int32_t>(random.Below(7))};
      }
      sinks.push_back(rig.Ask(requests.back()));
      for (uint64_t steps = random.Below(6); steps > 0; --steps) rig.Answer();
    }
    rig.AnswerAll();
    ASSERT_FALSE(rig.stopped) << *rig.stopped;
    for (size_t i = 0; i < sinks.size(); ++i) {
      std::vector<int32_t> right = RightTokens(requests[i].prompt, requests[i].max_tokens);
      const auto stop = std::find_if(right.begin(), right.end(), [&](int32_t token) {
        return requests[i].stop_token_ids.contains(token);
      });
      const int used = std::min(static_cast<int>(stop - right.begin()) + 1, requests[i].max_tokens);
      right.erase(stop, right.end());
      ASSERT_TRUE(sinks[i]->finished) << i;
      ASSERT_EQ(sinks[i]->tokens, right) << i;
      ASSERT_EQ(sinks[i]->logprobs, right) << i;
      ASSERT_EQ(sinks[i]->finished->usage().completion_tokens(), used) << i;
      ASSERT_FALSE(sinks[i]->late) << i;
    }
    ASSERT_EQ(rig.wrong_steps, 0);
    ASSERT_EQ(rig.Loads().kv_blocks_used(), 0);
    ahead += rig.ahead_rows;
    preemptions += rig.Loads().preemptions_total();
  }
  EXPECT_GE(ahead, 1000);
  EXPECT_GE(preemptions, 20u);
}

// Where a request is when its client goes.
enum class Place : uint8_t { kQueued, kChunksInAllStages, kDecoding, kRowAhead };

class Cancel : public ::testing::TestWithParam<Place> {
 protected:
  static constexpr uint64_t kVictim = 2;  // sequence; the first one is a stream beside it
  static constexpr uint64_t kNext = 3;

  static bool Names(const v1::MicroBatchPlan& plan, uint64_t sequence) {
    return std::any_of(plan.rows().begin(), plan.rows().end(),
                       [&](const v1::RowDescriptor& row) { return row.sequence() == sequence; });
  }
  static bool Ends(const v1::MicroBatchPlan& plan, uint64_t sequence) {
    return std::find(plan.ends().begin(), plan.ends().end(), sequence) != plan.ends().end();
  }
  static int InFlight(const EngineRig& rig, uint64_t sequence) {
    int plans = 0;
    for (int i = rig.answered(); i < rig.sent(); ++i) plans += Names(rig.plan(i), sequence) ? 1 : 0;
    return plans;
  }
  // Micro-batches planned after the first `sent` until one fits, which counts.
  template <class Fits>
  static int PlansUntil(EngineRig& rig, int sent, const Fits& fits) {
    for (int plans = 1; plans < 20; ++plans) {
      while (rig.sent() < sent + plans && rig.Answer()) {
      }
      if (rig.sent() < sent + plans) break;
      if (fits(rig.plan(sent + plans - 1))) return plans;
    }
    return 1000;
  }
};

// Issue: blocks are free on every stage within two micro-batches. A stage knows what the plans say
// and runs them in order, so they are free for a row of the plan that follows the cancel.
TEST_P(Cancel, FreesTheBlocksForThePlanThatFollows) {
  constexpr int kStages = 4;
  SchedulerOptions options = Options(kStages, /*kv_blocks=*/40);
  options.max_sequences = GetParam() == Place::kQueued ? 1 : 8;
  options.run_ahead = GetParam() == Place::kRowAhead;
  EngineRig rig(options, /*offers=*/true);
  const auto stream = rig.Ask(Request({0, 1}, 60));  // 16 blocks when it ends
  while (stream->tokens.size() < 2) ASSERT_TRUE(rig.Answer());
  const bool decodes = GetParam() == Place::kDecoding || GetParam() == Place::kRowAhead;
  const auto victim = rig.Ask(Request(std::vector<int32_t>(decodes ? 80 : 136, 5), 8));
  switch (GetParam()) {
    case Place::kQueued:
      ASSERT_FALSE(victim->started);
      break;
    case Place::kChunksInAllStages:
      while (InFlight(rig, kVictim) < kStages) ASSERT_TRUE(rig.Answer());
      break;
    case Place::kDecoding:
    case Place::kRowAhead:
      while (victim->tokens.size() < 3) ASSERT_TRUE(rig.Answer());
      break;
  }
  const auto used = rig.Loads().kv_blocks_used();
  const int in_flight = rig.sent() - rig.answered();
  // Has no room beside the two.
  const auto next = rig.Ask(Request(std::vector<int32_t>(100, 6), 8));
  ASSERT_EQ(InFlight(rig, kNext), 0);
  const int sent = rig.sent();
  rig.Drop(victim);
  const bool queued = GetParam() == Place::kQueued;
  if (!queued) {
    EXPECT_LT(rig.Loads().kv_blocks_used(), used) << in_flight << " plans are in flight";
    EXPECT_LE(
        PlansUntil(rig, sent, [](const v1::MicroBatchPlan& plan) { return Ends(plan, kVictim); }),
        2);
    EXPECT_LE(
        PlansUntil(rig, sent, [](const v1::MicroBatchPlan& plan) { return Names(plan, kNext); }),
        2);
  }
  rig.AnswerAll();
  for (int i = sent; i < rig.sent(); ++i) EXPECT_FALSE(Names(rig.plan(i), kVictim)) << i;
  EXPECT_THAT(stream->tokens, ElementsAreArray(RightTokens({0, 1}, 60)));
  EXPECT_THAT(next->tokens, ElementsAreArray(RightTokens(std::vector<int32_t>(100, 6), 8)));
  EXPECT_FALSE(victim->finished);
  EXPECT_EQ(rig.Loads().kv_blocks_used(), 0);
}

INSTANTIATE_TEST_SUITE_P(Each, Cancel,
                         ::testing::Values(Place::kQueued, Place::kChunksInAllStages,
                                           Place::kDecoding, Place::kRowAhead),
                         [](const auto& tested) -> std::string {
                           switch (tested.param) {
                             case Place::kQueued:
                               return "Queued";
                             case Place::kChunksInAllStages:
                               return "ChunksInAllStages";
                             case Place::kDecoding:
                               return "Decoding";
                             case Place::kRowAhead:
                               return "RowAhead";
                           }
                           return "None";
                         });

}  // namespace
}  // namespace layercake::coordinator::testing
