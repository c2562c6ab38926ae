// How large micro-batches become: level ones of streams, full ones of prompts.
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/scheduler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::coordinator {
namespace {

SequenceId Id(uint64_t value) { return static_cast<SequenceId>(value); }

base::Instant At(double seconds) { return base::Instant::FromStart(absl::Seconds(seconds)); }

// A sequence that shares nothing.
absl::Status Add(Scheduler& scheduler, uint64_t id, size_t tokens, int last_token = 0) {
  return scheduler.Add({.id = Id(id),
                        .prompt = std::vector<int32_t>(tokens, 1),
                        .root = std::nullopt,
                        .last_token = last_token},
                       At(0));
}

SchedulerOptions TwoStages() {
  SchedulerOptions options;
  options.stages = options.max_in_flight = 2;
  options.max_sequences = options.max_queued = 64;
  options.block_tokens = 4;
  options.kv_blocks = 4096;
  options.min_prefill_rows = 4;
  return options;
}

TEST(SchedulerLevel, StreamsThatBeginLaterMakeTheMicroBatchesLevelAgain) {
  SchedulerOptions options = TwoStages();
  options.max_rows = options.prefill_rows = 64;
  Scheduler scheduler(options);
  std::deque<ScheduledStep> in_flight;
  std::vector<size_t> rows;
  const auto round = [&](int micro_batches) {
    for (int i = 0; i < micro_batches; ++i) {
      while (auto step = scheduler.NextStep()) {
        rows.push_back(step->rows.size());
        in_flight.push_back(*std::move(step));
      }
      const ScheduledStep done = std::move(in_flight.front());
      in_flight.pop_front();
      scheduler.StepDone(done.step, At(0));
      for (const ScheduledRows& row : done.rows) scheduler.TokenAdded(row.sequence, 1);
    }
  };
  for (uint64_t i = 1; i <= 18; ++i) ASSERT_TRUE(Add(scheduler, i, 1).ok());
  round(5);
  for (uint64_t i = 19; i <= 32; ++i) ASSERT_TRUE(Add(scheduler, i, 1).ok());
  round(6);
  const size_t first = rows.size();
  round(10);
  for (size_t i = first; i < rows.size(); ++i) EXPECT_EQ(rows[i], 16u) << "step " << i;
}

TEST(SchedulerLevel, ASequenceWhoseLastRowIsInFlightIsNoStreamThatPromptsHaveToSpare) {
  Scheduler scheduler(TwoStages());
  const auto run = [&](const ScheduledStep& step) {
    for (const int stage : {0, 1}) {
      scheduler.StepTime(stage, step.step, 1e-3 + 1e-5 * step.shape.rows);
    }
    scheduler.StepDone(step.step, At(0));
  };
  for (uint64_t id = 1; id <= 20; ++id) {  // costs are known, of steps of all sizes
    ASSERT_TRUE(Add(scheduler, id, id % 2 == 0 ? 200 : 10).ok());
    while (const auto step = scheduler.NextStep()) run(*step);
    scheduler.Finish(Id(id));
    while (const auto step = scheduler.NextStep()) run(*step);
  }
  ASSERT_TRUE(Add(scheduler, 21, 10, /*last_token=*/11).ok());
  ASSERT_TRUE(scheduler.NextStep());
  ASSERT_TRUE(Add(scheduler, 22, 400, /*last_token=*/401).ok());
  const auto chunk = scheduler.NextStep();
  ASSERT_TRUE(chunk);
  EXPECT_GE(chunk->rows[0].count, 150) << "twice a decode's time would be 100";
}

// Rows attend to their own prompt: a large chunk of many short ones reads no more for each row than
// a small one.
TEST(SchedulerLevel, ManyShortPromptsGoInLargeChunksWhereAttendingIsDear) {
  SchedulerOptions options = TwoStages();
  options.max_rows = options.prefill_rows = 1024;
  Scheduler scheduler(options);
  const auto run = [&](const ScheduledStep& step) {
    for (const int stage : {0, 1}) {
      scheduler.StepTime(stage, step.step, 1e-3 + 1e-5 * step.shape.rows + 2e-7 * step.shape.reads);
    }
    scheduler.StepDone(step.step, At(0));
  };
  for (uint64_t id = 1; id <= 40; ++id) {  // costs are known, of steps of all sizes
    ASSERT_TRUE(Add(scheduler, id, 1 + 32 * (id % 40)).ok());
    while (const auto step = scheduler.NextStep()) run(*step);
    scheduler.Finish(Id(id));
    while (const auto step = scheduler.NextStep()) run(*step);
  }
  for (uint64_t id = 101; id <= 150; ++id) ASSERT_TRUE(Add(scheduler, id, 64, 65).ok());
  const auto step = scheduler.NextStep();
  ASSERT_TRUE(step);
  EXPECT_GE(step->shape.rows, 320) << "of 3,200; as one prompt it would be best in chunks of 128";
}

// Two are as many as there are stages.
TEST(SchedulerLevel, PromptsAloneHideTheWayToTheCoordinatorBehindOneShortChunkMore) {
  // Steps of `scale` milliseconds and more; how many chunks of a long prompt go out at once.
  const auto chunks_of = [](double scale, bool run_ahead, bool stream) {
    SchedulerOptions options = TwoStages();
    options.run_ahead = run_ahead;
    Scheduler scheduler(options);
    const auto run = [&](const ScheduledStep& step) {
      for (const int stage : {0, 1}) {
        scheduler.StepTime(stage, step.step, scale * (1e-3 + 1e-5 * step.shape.rows));
      }
      scheduler.StepDone(step.step, At(0));
    };
    for (uint64_t id = 1; id <= 20; ++id) {
      EXPECT_TRUE(Add(scheduler, id, id % 2 == 0 ? 200 : 10).ok());
      while (const auto step = scheduler.NextStep()) run(*step);
      scheduler.Finish(Id(id));
      while (const auto step = scheduler.NextStep()) run(*step);
    }
    if (stream) {
      EXPECT_TRUE(Add(scheduler, 21, 10, /*last_token=*/100).ok());
      run(*scheduler.NextStep());
      scheduler.TokenAdded(Id(21), 1);
    }
    EXPECT_TRUE(Add(scheduler, 22, 4000, /*last_token=*/4001).ok());
    int chunks = 0;
    while (scheduler.NextStep()) ++chunks;
    return chunks;
  };
  EXPECT_EQ(chunks_of(1, true, false), 3);
  EXPECT_EQ(chunks_of(1, false, false), 2) << "no more may be planned";
  EXPECT_EQ(chunks_of(1, true, true), 2) << "a stream would wait for it";
  EXPECT_EQ(chunks_of(100, true, false), 2) << "and whoever comes would wait for a long one";
}

}  // namespace
}  // namespace layercake::coordinator
