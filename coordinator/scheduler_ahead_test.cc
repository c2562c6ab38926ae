// Rows that are planned before their token is known.
#include <deque>
#include <utility>
#include <vector>

#include "coordinator/scheduler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::coordinator {
namespace {

using ::testing::SizeIs;

SequenceId Id(uint64_t value) { return static_cast<SequenceId>(value); }

base::Instant At(double seconds) { return base::Instant::FromStart(absl::Seconds(seconds)); }

absl::Status AddUntil(Scheduler& scheduler, uint64_t id, int tokens, int last_token) {
  return scheduler.Add({.id = Id(id),
                        .prompt = std::vector<int32_t>(static_cast<size_t>(tokens), 1),
                        .root = std::nullopt,
                        .last_token = last_token},
                       At(0));
}

SchedulerOptions AheadOptions(int stages) {
  SchedulerOptions options;
  options.stages = options.max_in_flight = stages;
  options.max_rows = 32;
  options.prefill_rows = 16;
  options.min_prefill_rows = 4;
  options.block_tokens = 4;
  options.max_sequences = 16;
  options.kv_blocks = 64;
  options.run_ahead = true;
  return options;
}

TEST(SchedulerRunAhead, PlansARowBeforeItsTokenIsKnownAndNoneBeyondTheLast) {
  Scheduler scheduler(AheadOptions(1));
  scheduler.AllowRunAhead(true);
  ASSERT_TRUE(AddUntil(scheduler, 1, 3, 3 + 4).ok());
  const auto prompt = scheduler.NextStep();
  ASSERT_TRUE(prompt);
  EXPECT_EQ(prompt->rows[0].token_of_step, StepId{});
  StepId before = prompt->step;
  for (int position = 3; position < 6; ++position) {
    const auto ahead = scheduler.NextStep();
    ASSERT_TRUE(ahead) << position;
    EXPECT_EQ(ahead->rows[0].first, position);
    EXPECT_EQ(ahead->rows[0].count, 1);
    EXPECT_TRUE(ahead->rows[0].samples);
    EXPECT_EQ(ahead->rows[0].token_of_step, before);
    EXPECT_FALSE(scheduler.NextStep()) << "at most one is ahead";
    scheduler.StepDone(before, At(0));
    scheduler.TokenAdded(Id(1), 7);
    before = ahead->step;
  }
  EXPECT_FALSE(scheduler.NextStep()) << "the row in flight samples the last token";
}

TEST(SchedulerRunAhead, RunsAheadOnlyWhereItIsAllowedAndTheEndIsKnown) {
  for (const bool allowed : {false, true}) {
    Scheduler scheduler(AheadOptions(1));
    scheduler.AllowRunAhead(allowed);
    ASSERT_TRUE(AddUntil(scheduler, 1, 3, allowed ? 0 : 100).ok());
    ASSERT_TRUE(scheduler.NextStep());
    EXPECT_FALSE(scheduler.NextStep());
  }
  SchedulerOptions options = AheadOptions(1);
  options.run_ahead = false;
  Scheduler scheduler(options);
  scheduler.AllowRunAhead(true);
  ASSERT_TRUE(AddUntil(scheduler, 1, 3, 100).ok());
  ASSERT_TRUE(scheduler.NextStep());
  EXPECT_FALSE(scheduler.NextStep());
}

TEST(SchedulerRunAhead, TheMicroBatchesStayApartWhenTheyRunAhead) {
  Scheduler scheduler(AheadOptions(4));
  scheduler.AllowRunAhead(true);
  for (uint64_t i = 1; i <= 8; ++i) ASSERT_TRUE(AddUntil(scheduler, i, 1, 1000).ok());
  std::deque<ScheduledStep> in_flight;
  for (int turn = 0; turn < 60; ++turn) {
    while (auto step = scheduler.NextStep()) in_flight.push_back(*std::move(step));
    if (turn > 8) {
      ASSERT_THAT(in_flight, SizeIs(5)) << "one for each stage, and the next";
      const ScheduledStep& last = in_flight.back();
      ASSERT_THAT(last.rows, SizeIs(2)) << "turn " << turn;
      for (const ScheduledRows& rows : last.rows) {
        EXPECT_EQ(rows.token_of_step, in_flight.front().step);
      }
    }
    const ScheduledStep done = std::move(in_flight.front());
    in_flight.pop_front();
    scheduler.StepDone(done.step, At(0));
    for (const ScheduledRows& rows : done.rows) scheduler.TokenAdded(rows.sequence, 1);
  }
}

// A row of the one, then two rows of the other: the last would hold up the first one's next row.
TEST(SchedulerRunAhead, StreamsThatAreFewerThanStagesTakeTurns) {
  Scheduler scheduler(AheadOptions(4));
  scheduler.AllowRunAhead(true);
  std::deque<ScheduledStep> in_flight;
  std::vector<SequenceId> order;
  const auto plan = [&] {
    while (auto step = scheduler.NextStep()) {
      ASSERT_THAT(step->rows, SizeIs(1));
      order.push_back(step->rows[0].sequence);
      in_flight.push_back(*std::move(step));
    }
  };
  ASSERT_TRUE(AddUntil(scheduler, 1, 1, 1000).ok());
  plan();
  ASSERT_THAT(in_flight, SizeIs(2)) << "its row ahead, too";
  ASSERT_TRUE(AddUntil(scheduler, 2, 1, 1000).ok());
  for (int turn = 0; turn < 20; ++turn) {
    plan();
    const ScheduledStep done = std::move(in_flight.front());
    in_flight.pop_front();
    scheduler.StepDone(done.step, At(0));
    scheduler.TokenAdded(done.rows[0].sequence, 1);
  }
  for (size_t i = 3; i < order.size(); ++i) EXPECT_NE(order[i], order[i - 1]) << "step " << i;
}

// A step that waits for its token keeps those behind it waiting.
TEST(SchedulerRunAhead, ARowDoesNotRunAheadWhereAPromptCouldBeComputedInstead) {
  Scheduler scheduler(AheadOptions(4));
  scheduler.AllowRunAhead(true);
  ASSERT_TRUE(AddUntil(scheduler, 1, 1, 1000).ok());
  const auto stream = scheduler.NextStep();
  ASSERT_TRUE(AddUntil(scheduler, 2, 60, 100).ok());
  for (int i = 0; i < 3; ++i) {
    const auto chunk = scheduler.NextStep();
    ASSERT_TRUE(chunk);
    ASSERT_THAT(chunk->rows, SizeIs(1));
    EXPECT_EQ(chunk->rows[0].sequence, Id(2));
  }
  const auto both = scheduler.NextStep();
  ASSERT_TRUE(both);
  ASSERT_THAT(both->rows, SizeIs(2)) << "as it would be when the oldest step has come back";
  EXPECT_EQ(both->rows[0].sequence, Id(1));
  EXPECT_EQ(both->rows[0].token_of_step, stream->step);
  EXPECT_EQ(both->rows[1].sequence, Id(2));
  EXPECT_FALSE(scheduler.NextStep());
}

TEST(SchedulerRunAhead, ASequenceThatEndsWithItsRowAheadIsForgottenAtOnce) {
  Scheduler scheduler(AheadOptions(1));
  scheduler.AllowRunAhead(true);
  ASSERT_TRUE(AddUntil(scheduler, 1, 4, 100).ok());
  const auto prompt = scheduler.NextStep();
  const auto ahead = scheduler.NextStep();
  ASSERT_TRUE(ahead);
  scheduler.StepDone(prompt->step, At(0));
  scheduler.Finish(Id(1));  // the token was a stop
  EXPECT_EQ(scheduler.blocks().free_count(), 64);
  scheduler.StepDone(ahead->step, At(0));
  const auto end = scheduler.NextStep();
  ASSERT_TRUE(end);
  EXPECT_THAT(end->rows, SizeIs(0));
  EXPECT_THAT(end->ends, testing::ElementsAre(Id(1)));
  scheduler.StepDone(end->step, At(0));
  EXPECT_EQ(scheduler.in_flight(), 0);
}

TEST(SchedulerRunAhead, APausedSequenceDoesNotRunAheadAndGoesOnAfterwards) {
  Scheduler scheduler(AheadOptions(1));
  scheduler.AllowRunAhead(true);
  ASSERT_TRUE(AddUntil(scheduler, 1, 3, 100).ok());
  const auto prompt = scheduler.NextStep();
  scheduler.SetPaused(Id(1), true);
  EXPECT_FALSE(scheduler.NextStep());
  scheduler.SetPaused(Id(1), false);
  const auto ahead = scheduler.NextStep();
  ASSERT_TRUE(ahead);
  EXPECT_EQ(ahead->rows[0].token_of_step, prompt->step);
  scheduler.SetPaused(Id(1), true);
  scheduler.StepDone(prompt->step, At(0));
  scheduler.TokenAdded(Id(1), 1);
  scheduler.StepDone(ahead->step, At(0));
  scheduler.TokenAdded(Id(1), 1);
  EXPECT_FALSE(scheduler.NextStep());
  scheduler.SetPaused(Id(1), false);
  const auto next = scheduler.NextStep();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->rows[0].first, 4);
  EXPECT_EQ(next->rows[0].token_of_step, StepId{});
}

}  // namespace
}  // namespace layercake::coordinator
