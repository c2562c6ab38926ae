#include "coordinator/scheduler.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::coordinator {
namespace {

using ::testing::SizeIs;

SequenceId Id(uint64_t value) { return static_cast<SequenceId>(value); }

base::Instant At(double seconds) { return base::Instant::FromStart(absl::Seconds(seconds)); }

// A sequence that shares nothing.
absl::Status Add(Scheduler& scheduler, uint64_t id, int tokens) {
  return scheduler.Add({.id = Id(id),
                        .prompt = std::vector<int32_t>(static_cast<size_t>(tokens), 1),
                        .root = std::nullopt},
                       At(0));
}
absl::Status AddPrompt(Scheduler& scheduler, uint64_t id, std::vector<int32_t> prompt) {
  return scheduler.Add({.id = Id(id), .prompt = std::move(prompt)}, At(0));
}

SchedulerOptions SmallOptions() {
  SchedulerOptions options;
  options.stages = 2;
  options.max_in_flight = 2;
  options.max_rows = 32;
  options.prefill_rows = 16;
  options.min_prefill_rows = 4;
  options.max_sequences = 8;
  options.max_queued = 16;
  options.kv_blocks = 16;
  options.block_tokens = 4;
  return options;
}

TEST(Scheduler, CutsAPromptIntoEvenChunksThatAreInFlightTogetherAndSamplesTheLast) {
  Scheduler scheduler(SmallOptions());
  ASSERT_TRUE(Add(scheduler, 1, 20).ok());
  const auto first = scheduler.NextStep();
  ASSERT_TRUE(first);
  ASSERT_THAT(first->rows, SizeIs(1));
  EXPECT_EQ(first->rows[0].first, 0);
  EXPECT_EQ(first->rows[0].count, 10);
  EXPECT_FALSE(first->rows[0].samples);
  EXPECT_TRUE(first->rows[0].begins);
  EXPECT_THAT(first->rows[0].new_blocks, SizeIs(3));
  const auto second = scheduler.NextStep();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->rows[0].first, 10);
  EXPECT_EQ(second->rows[0].count, 10);
  EXPECT_TRUE(second->rows[0].samples);
  EXPECT_FALSE(second->rows[0].begins);
  EXPECT_EQ(second->rows[0].table_start, 3);
  EXPECT_FALSE(scheduler.NextStep()) << "two are in flight";
  scheduler.StepDone(first->step, At(0));
  EXPECT_FALSE(scheduler.NextStep()) << "nothing to compute until the sampled token is here";
  scheduler.StepDone(second->step, At(0));
  scheduler.TokenAdded(Id(1), 1);
  const auto third = scheduler.NextStep();
  ASSERT_TRUE(third);
  EXPECT_EQ(third->rows[0].first, 20);
  EXPECT_EQ(third->rows[0].count, 1);
}

TEST(Scheduler, SpreadsDecodesEvenlyOverTheMicroBatches) {
  Scheduler scheduler(SmallOptions());
  for (uint64_t i = 1; i <= 6; ++i) ASSERT_TRUE(Add(scheduler, i, 2).ok());
  const auto first = scheduler.NextStep();
  const auto second = scheduler.NextStep();
  EXPECT_THAT(first->rows, SizeIs(3)) << "prompts too";
  EXPECT_THAT(second->rows, SizeIs(3));
  scheduler.StepDone(first->step, At(0));
  scheduler.StepDone(second->step, At(0));
  for (uint64_t i = 1; i <= 6; ++i) scheduler.TokenAdded(Id(i), 1);
  EXPECT_THAT(scheduler.NextStep()->rows, SizeIs(3));
  EXPECT_THAT(scheduler.NextStep()->rows, SizeIs(3));
}

TEST(Scheduler, KeepsTheSharesOfDecodesWithinOneRowFromRoundToRound) {
  SchedulerOptions options = SmallOptions();
  options.stages = options.max_in_flight = 4;
  options.max_sequences = 16;
  options.kv_blocks = 64;
  Scheduler scheduler(options);
  for (uint64_t i = 1; i <= 13; ++i) ASSERT_TRUE(Add(scheduler, i, 1).ok());
  std::deque<ScheduledStep> in_flight;
  std::vector<size_t> rows;
  for (int turn = 0; turn < 60; ++turn) {
    while (auto step = scheduler.NextStep()) {
      rows.push_back(step->rows.size());
      in_flight.push_back(*std::move(step));
    }
    const ScheduledStep done = std::move(in_flight.front());
    in_flight.pop_front();
    scheduler.StepDone(done.step, At(0));
    for (const ScheduledRows& row : done.rows) scheduler.TokenAdded(row.sequence, 1);
  }
  for (size_t i = 20; i < rows.size(); ++i) {
    EXPECT_GE(rows[i], 3u) << "step " << i;
    EXPECT_LE(rows[i], 4u) << "step " << i;
  }
}

TEST(Scheduler, SharesFullBlocksOfAPromptThatWasComputed) {
  Scheduler scheduler(SmallOptions());
  std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  ASSERT_TRUE(AddPrompt(scheduler, 1, prompt).ok());
  for (int i = 0; i < 8; ++i) {
    if (const auto step = scheduler.NextStep()) scheduler.StepDone(step->step, At(0));
  }
  prompt.back() = 99;
  ASSERT_TRUE(AddPrompt(scheduler, 2, prompt).ok());
  const auto step = scheduler.NextStep();
  ASSERT_TRUE(step);
  ASSERT_THAT(step->rows, SizeIs(1));
  EXPECT_EQ(step->rows[0].sequence, Id(2));
  EXPECT_EQ(step->rows[0].first, 8) << "two blocks of four tokens were there";
  EXPECT_EQ(step->rows[0].table_start, 0);
  EXPECT_THAT(step->rows[0].new_blocks, SizeIs(3)) << "the chain hears of the shared ones too";
  EXPECT_EQ(scheduler.CachedTokens(Id(2)), 8);
}

TEST(Scheduler, APromptThatBeginsLikeOneInTheMakingWaitsForIt) {
  Scheduler scheduler(SmallOptions());
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  ASSERT_TRUE(AddPrompt(scheduler, 1, prompt).ok());
  ASSERT_TRUE(AddPrompt(scheduler, 2, prompt).ok());
  int rows = 0;
  int sampled = 0;
  for (int i = 0; i < 20; ++i) {
    const auto step = scheduler.NextStep();
    if (!step) break;
    for (const ScheduledRows& row : step->rows) {
      rows += row.count;
      sampled += row.samples ? 1 : 0;
    }
    scheduler.StepDone(step->step, At(0));
  }
  EXPECT_EQ(rows, 9 + 1);
  EXPECT_EQ(sampled, 2);
}

TEST(Scheduler, WhatFollowsAnotherGoesOnAloneWhenThatOneEnds) {
  Scheduler scheduler(SmallOptions());
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  ASSERT_TRUE(AddPrompt(scheduler, 1, prompt).ok());
  ASSERT_TRUE(AddPrompt(scheduler, 2, prompt).ok());
  const auto step = scheduler.NextStep();
  scheduler.Finish(Id(1));
  EXPECT_EQ(scheduler.queued(), 1);
  scheduler.StepDone(step->step, At(0));
  const auto next = scheduler.NextStep();
  ASSERT_TRUE(next);
  ASSERT_THAT(next->rows, SizeIs(1));
  EXPECT_EQ(next->rows[0].sequence, Id(2));
}

TEST(Scheduler, NobodySharesWhatIsInDoubt) {
  Scheduler scheduler(SmallOptions());
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5};
  ASSERT_TRUE(AddPrompt(scheduler, 1, prompt).ok());
  while (const auto step = scheduler.NextStep()) scheduler.StepDone(step->step, At(0));
  scheduler.Distrust(Id(1));
  scheduler.Finish(Id(1));
  ASSERT_TRUE(AddPrompt(scheduler, 2, prompt).ok());
  const auto step = scheduler.NextStep();
  ASSERT_THAT(step->rows, SizeIs(1));
  EXPECT_EQ(step->rows[0].first, 0);
}

TEST(Scheduler, ChunksFollowTheMeasuredTimesOfTheSlowestStage) {
  SchedulerOptions options = SmallOptions();
  options.max_rows = 512;
  options.prefill_rows = 256;
  options.kv_blocks = 4096;
  Scheduler scheduler(options);
  // Stage 1: 1 ms and 10 us per row. Decodes alone take about 1.01 ms, so a micro-batch may take
  // 2.02 ms: 100 rows.
  ASSERT_TRUE(Add(scheduler, 1, 1).ok());
  for (int i = 0; i < 30; ++i) {
    const auto step = scheduler.NextStep();
    ASSERT_TRUE(step);
    scheduler.StepTime(0, step->step, 1e-4);
    scheduler.StepTime(1, step->step, 1e-3 + 1e-5 * step->shape.rows);
    scheduler.StepDone(step->step, At(0));
    scheduler.TokenAdded(Id(1), 1);
    if (i == 15) {
      ASSERT_TRUE(Add(scheduler, 2, 4000).ok());
    }
    if (i > 25) {
      EXPECT_NEAR(step->shape.rows, 102, 8) << "step " << i;
    }
  }
}

TEST(Scheduler, EndsTheWaitOfThoseThatWereNotAdmittedInTime) {
  SchedulerOptions options = SmallOptions();
  options.max_sequences = 1;
  options.queue_timeout = absl::Seconds(5);
  Scheduler scheduler(options);
  ASSERT_TRUE(Add(scheduler, 1, 1).ok());
  ASSERT_TRUE(scheduler.NextStep());
  ASSERT_TRUE(Add(scheduler, 2, 1).ok());
  EXPECT_EQ(scheduler.next_deadline(), At(5));
  EXPECT_THAT(scheduler.Expired(At(4.9)), SizeIs(0));
  EXPECT_THAT(scheduler.Expired(At(5)), testing::ElementsAre(Id(2)));
  scheduler.Finish(Id(2));
  EXPECT_EQ(scheduler.queued(), 0);
}

TEST(Scheduler, RefusesMoreThanTheQueueHolds) {
  SchedulerOptions options = SmallOptions();
  options.max_queued = 2;
  Scheduler scheduler(options);
  EXPECT_TRUE(Add(scheduler, 1, 1).ok());
  EXPECT_TRUE(Add(scheduler, 2, 1).ok());
  EXPECT_EQ(Add(scheduler, 3, 1).code(), absl::StatusCode::kResourceExhausted);
}

TEST(Scheduler, TellsTheChainOfAnEndAtOnceEvenWithNothingElseToDo) {
  Scheduler scheduler(SmallOptions());
  ASSERT_TRUE(Add(scheduler, 1, 2).ok());
  const auto step = scheduler.NextStep();
  scheduler.Finish(Id(1));
  const auto end = scheduler.NextStep();
  ASSERT_TRUE(end);
  EXPECT_THAT(end->rows, SizeIs(0));
  EXPECT_THAT(end->ends, testing::ElementsAre(Id(1)));
  scheduler.StepDone(step->step, At(0));
  scheduler.StepDone(end->step, At(0));
  EXPECT_FALSE(scheduler.NextStep());
}

TEST(Scheduler, TheNextStepTakesTheBlocksOfOneThatEndedWithChunksInFlight) {
  SchedulerOptions options = SmallOptions();
  options.stages = options.max_in_flight = 4;
  options.prefill_rows = 8;
  Scheduler scheduler(options);
  ASSERT_TRUE(Add(scheduler, 1, 60).ok());  // 15 of 16 blocks
  std::set<BlockId> old;
  for (int i = 0; i < 3; ++i) {
    const auto step = scheduler.NextStep();
    ASSERT_TRUE(step);
    for (const BlockId block : step->rows[0].new_blocks) old.insert(block);
  }
  ASSERT_TRUE(Add(scheduler, 2, 50).ok());
  scheduler.Finish(Id(1));
  EXPECT_EQ(scheduler.blocks().free_count(), 16) << "three chunks are in flight";
  const auto next = scheduler.NextStep();
  ASSERT_TRUE(next);
  EXPECT_THAT(next->ends, testing::ElementsAre(Id(1)));
  ASSERT_THAT(next->rows, SizeIs(1));
  EXPECT_EQ(next->rows[0].sequence, Id(2));
  for (const BlockId block : next->rows[0].new_blocks) EXPECT_TRUE(old.contains(block));
}

absl::Status AddUntil(Scheduler& scheduler, uint64_t id, int tokens, int last_token) {
  return scheduler.Add({.id = Id(id),
                        .prompt = std::vector<int32_t>(static_cast<size_t>(tokens), 1),
                        .root = std::nullopt,
                        .last_token = last_token},
                       At(0));
}

TEST(Scheduler, APausedSequenceGetsNoRows) {
  Scheduler scheduler(SmallOptions());
  ASSERT_TRUE(Add(scheduler, 1, 2).ok());
  scheduler.SetPaused(Id(1), true);
  EXPECT_FALSE(scheduler.NextStep());
  scheduler.SetPaused(Id(1), false);
  EXPECT_TRUE(scheduler.NextStep());
}

// A model of the chain: what each stage believes after every step, checked against the promises.
class SchedulerRun {
 public:
  SchedulerRun(uint64_t seed, SchedulerOptions options)
      : random_(seed), options_(options), scheduler_(options) {
    scheduler_.AllowRunAhead(true);
  }

  // Adds, cancels, schedules and retires at random until all requests have ended.
  void Run(int requests) {
    int added = 0;
    for (int turn = 0; turn < 100'000; ++turn) {
      if (added < requests && random_.Below(4) == 0) Add(++added);
      if (random_.Below(50) == 0 && !wanted_.empty()) Cancel();
      if (const auto step = scheduler_.NextStep()) OnStep(*step);
      if (testing::Test::HasFatalFailure()) return;
      if (!in_flight_.empty() && random_.Below(2) == 0) Retire();
      if (added == requests && wanted_.empty() && in_flight_.empty()) return;
    }
    FAIL() << wanted_.size() << " requests never ended";
  }

  void ExpectBaseline() {
    while (const auto step = scheduler_.NextStep()) {
      OnStep(*step);
      Retire();
    }
    EXPECT_EQ(scheduler_.blocks().free_count(), options_.kv_blocks);
    EXPECT_EQ(scheduler_.running(), 0);
    EXPECT_EQ(scheduler_.queued(), 0);
    EXPECT_TRUE(chain_.empty()) << "the chain still knows " << chain_.size() << " sequences";
  }
  int64_t preemptions() const { return scheduler_.preemptions(); }
  int ahead_rows() const { return ahead_rows_; }

 private:
  struct Wanted {
    int prompt = 0;
    int outputs = 0;
    int known = 0;
  };

  void Add(int number) {
    const int limit = options_.kv_blocks * options_.block_tokens;
    Wanted wanted;
    wanted.prompt = 1 + static_cast<int>(random_.Below(static_cast<uint64_t>(limit / 2)));
    wanted.outputs = 1 + static_cast<int>(random_.Below(static_cast<uint64_t>(limit / 2 - 1)));
    wanted.known = wanted.prompt;
    if (!AddUntil(scheduler_, static_cast<uint64_t>(number), wanted.prompt,
                  wanted.prompt + wanted.outputs)
             .ok()) {
      return;
    }
    wanted_.emplace(Id(static_cast<uint64_t>(number)), wanted);
  }

  void Cancel() {
    auto victim = wanted_.begin();
    std::advance(victim, static_cast<long>(random_.Below(wanted_.size())));
    scheduler_.Finish(victim->first);
    wanted_.erase(victim);
  }

  void OnStep(const ScheduledStep& step) {
    ASSERT_LE(scheduler_.in_flight(), MaxPlanned(options_));
    int rows = 0;
    std::set<SequenceId> once;
    for (const ScheduledRows& row : step.rows) {
      ASSERT_TRUE(once.insert(row.sequence).second) << "twice in one step";
      rows += row.count;
      const auto wanted = wanted_.find(row.sequence);
      ASSERT_NE(wanted, wanted_.end()) << "rows of one that has ended";
      const int known = wanted->second.known;
      const bool ahead = row.first + row.count > known;
      ASSERT_EQ(row.samples, row.first + row.count >= known);
      ASSERT_EQ(row.token_of_step != StepId{}, ahead);
      if (ahead) {
        ahead_rows_ += 1;
        ASSERT_EQ(row.first, known);
        ASSERT_EQ(row.count, 1);
        ASSERT_LT(known + 1, wanted->second.prompt + wanted->second.outputs);
        ASSERT_EQ(row.token_of_step, chain_[row.sequence].sampled);
        ASSERT_TRUE(std::any_of(
            in_flight_.begin(), in_flight_.end(),
            [&](const ScheduledStep& other) { return other.step == row.token_of_step; }));
      }
      if (row.begins) {
        chain_[row.sequence] = {};
        ASSERT_EQ(row.first, 0);
      }
      ASSERT_TRUE(chain_.contains(row.sequence)) << "the chain was not told of it";
      Table& table = chain_[row.sequence];
      ASSERT_EQ(row.first, table.tokens) << "a gap or a repeat";
      ASSERT_EQ(row.table_start, static_cast<int>(table.blocks.size()));
      table.blocks.insert(table.blocks.end(), row.new_blocks.begin(), row.new_blocks.end());
      table.tokens += row.count;
      if (row.samples) table.sampled = step.step;
      ASSERT_GE(static_cast<int>(table.blocks.size()) * options_.block_tokens, table.tokens);
    }
    ASSERT_LE(rows, options_.max_rows);
    CheckCache(step);
    for (const SequenceId id : step.ends) ASSERT_EQ(chain_.erase(id), 1u);
    ASSERT_LE(static_cast<int>(chain_.size()), options_.max_sequences);
    in_flight_.push_back(step);
  }

  void Retire() {
    const ScheduledStep step = in_flight_.front();
    in_flight_.pop_front();
    scheduler_.StepDone(step.step, At(0));
    for (const ScheduledRows& row : step.rows) {
      const auto wanted = wanted_.find(row.sequence);
      if (!row.samples || wanted == wanted_.end()) continue;
      ASSERT_EQ(row.first + row.count, wanted->second.known);
      if (wanted->second.known + 1 - wanted->second.prompt >= wanted->second.outputs) {
        scheduler_.Finish(row.sequence);
        wanted_.erase(wanted);
      } else {
        wanted->second.known += 1;
        scheduler_.TokenAdded(row.sequence, 1);
      }
    }
  }

  // The cache as the steps leave it in their order: a row finds its own entries, whoever had its
  // blocks before, and no two sequences of a step touch one block.
  void CheckCache(const ScheduledStep& step) {
    std::map<BlockId, SequenceId> owner;
    for (const ScheduledRows& row : step.rows) {
      for (const BlockId block : chain_[row.sequence].blocks) {
        ASSERT_TRUE(owner.emplace(block, row.sequence).second)
            << "block " << static_cast<uint32_t>(block) << " is in two rows of a step";
      }
      for (int i = row.first; i < row.first + row.count; ++i) {
        cache_[Place(row.sequence, i)] = {row.sequence, i};
      }
      for (int i = 0; i < row.first + row.count; ++i) {
        ASSERT_EQ(cache_[Place(row.sequence, i)], std::pair(row.sequence, i));
      }
    }
  }
  std::pair<BlockId, int> Place(SequenceId id, int position) {
    return {chain_[id].blocks[static_cast<size_t>(position / options_.block_tokens)],
            position % options_.block_tokens};
  }

  struct Table {
    int tokens = 0;
    std::vector<BlockId> blocks;
    StepId sampled{};  // the latest step that samples it
  };
  base::SeededRandom random_;
  const SchedulerOptions options_;
  Scheduler scheduler_;
  std::map<SequenceId, Wanted> wanted_;
  std::map<SequenceId, Table> chain_;
  std::map<std::pair<BlockId, int>, std::pair<SequenceId, int>> cache_;
  std::deque<ScheduledStep> in_flight_;
  int ahead_rows_ = 0;
};

TEST(Scheduler, KeepsItsPromisesOverSeededRuns) {
  int64_t preemptions = 0;
  int ahead_rows = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    base::SeededRandom random(seed);
    SchedulerOptions options = SmallOptions();
    options.stages = 1 + static_cast<int>(random.Below(4));
    options.max_in_flight = options.stages + static_cast<int>(random.Below(2));
    options.max_sequences = 1 + static_cast<int>(random.Below(8));
    options.kv_blocks = 4 + static_cast<int>(random.Below(20));
    options.max_rows = 1 + static_cast<int>(random.Below(20));
    options.prefill_rows = 1 + static_cast<int>(random.Below(20));
    options.min_prefill_rows = 1 + static_cast<int>(random.Below(4));
    options.run_ahead = random.Below(2) == 0;
    SchedulerRun run(seed, options);
    run.Run(20);
    run.ExpectBaseline();
    if (testing::Test::HasFatalFailure()) return;
    preemptions += run.preemptions();
    ahead_rows += run.ahead_rows();
  }
  EXPECT_GE(preemptions, 1000);
  EXPECT_GE(ahead_rows, 1000);
}

}  // namespace
}  // namespace layercake::coordinator
