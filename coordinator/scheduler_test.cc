#include "coordinator/scheduler.h"

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

SchedulerOptions SmallOptions() {
  SchedulerOptions options;
  options.stages = 2;
  options.max_in_flight = 2;
  options.max_rows = 32;
  options.prefill_rows = 16;
  options.max_sequences = 8;
  options.max_queued = 16;
  options.kv_blocks = 16;
  options.block_tokens = 4;
  return options;
}

TEST(Scheduler, CutsAPromptIntoChunksThatAreInFlightTogetherAndSamplesTheLast) {
  Scheduler scheduler(SmallOptions());
  ASSERT_TRUE(scheduler.Add(Id(1), 20).ok());
  const auto first = scheduler.NextStep();
  ASSERT_TRUE(first);
  ASSERT_THAT(first->rows, SizeIs(1));
  EXPECT_EQ(first->rows[0].first, 0);
  EXPECT_EQ(first->rows[0].count, 16);
  EXPECT_FALSE(first->rows[0].samples);
  EXPECT_TRUE(first->rows[0].begins);
  EXPECT_THAT(first->rows[0].new_blocks, SizeIs(4));
  const auto second = scheduler.NextStep();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->rows[0].first, 16);
  EXPECT_EQ(second->rows[0].count, 4);
  EXPECT_TRUE(second->rows[0].samples);
  EXPECT_FALSE(second->rows[0].begins);
  EXPECT_EQ(second->rows[0].table_start, 4);
  EXPECT_FALSE(scheduler.NextStep()) << "two are in flight";
  scheduler.StepDone(first->step);
  EXPECT_FALSE(scheduler.NextStep()) << "nothing to compute until the sampled token is here";
  scheduler.StepDone(second->step);
  scheduler.TokenAdded(Id(1));
  const auto third = scheduler.NextStep();
  ASSERT_TRUE(third);
  EXPECT_EQ(third->rows[0].first, 20);
  EXPECT_EQ(third->rows[0].count, 1);
}

TEST(Scheduler, SpreadsDecodesEvenlyOverTheMicroBatches) {
  Scheduler scheduler(SmallOptions());
  for (uint64_t i = 1; i <= 6; ++i) ASSERT_TRUE(scheduler.Add(Id(i), 2).ok());
  const auto prompts = scheduler.NextStep();
  ASSERT_THAT(prompts->rows, SizeIs(6));
  scheduler.StepDone(prompts->step);
  for (uint64_t i = 1; i <= 6; ++i) scheduler.TokenAdded(Id(i));
  EXPECT_THAT(scheduler.NextStep()->rows, SizeIs(3));
  EXPECT_THAT(scheduler.NextStep()->rows, SizeIs(3));
}

TEST(Scheduler, RefusesMoreThanTheQueueHolds) {
  SchedulerOptions options = SmallOptions();
  options.max_queued = 2;
  Scheduler scheduler(options);
  EXPECT_TRUE(scheduler.Add(Id(1), 1).ok());
  EXPECT_TRUE(scheduler.Add(Id(2), 1).ok());
  EXPECT_EQ(scheduler.Add(Id(3), 1).code(), absl::StatusCode::kResourceExhausted);
}

TEST(Scheduler, TellsTheChainOfAnEndAtOnceEvenWithNothingElseToDo) {
  Scheduler scheduler(SmallOptions());
  ASSERT_TRUE(scheduler.Add(Id(1), 2).ok());
  const auto step = scheduler.NextStep();
  scheduler.Finish(Id(1));
  EXPECT_EQ(scheduler.blocks().free_count(), 15) << "a row is in flight: the block stays";
  scheduler.StepDone(step->step);
  EXPECT_EQ(scheduler.blocks().free_count(), 16);
  const auto end = scheduler.NextStep();
  ASSERT_TRUE(end);
  EXPECT_THAT(end->rows, SizeIs(0));
  EXPECT_THAT(end->ends, testing::ElementsAre(Id(1)));
}

TEST(Scheduler, APausedSequenceGetsNoRows) {
  Scheduler scheduler(SmallOptions());
  ASSERT_TRUE(scheduler.Add(Id(1), 2).ok());
  scheduler.SetPaused(Id(1), true);
  EXPECT_FALSE(scheduler.NextStep());
  scheduler.SetPaused(Id(1), false);
  EXPECT_TRUE(scheduler.NextStep());
}

// A model of the chain: what each stage believes after every step, checked against the promises.
class SchedulerRun {
 public:
  SchedulerRun(uint64_t seed, SchedulerOptions options)
      : random_(seed), options_(options), scheduler_(options) {}

  // Adds, cancels, schedules and retires at random until all requests have ended.
  void Run(int requests) {
    int added = 0;
    for (int turn = 0; turn < 100'000; ++turn) {
      if (added < requests && random_.Below(4) == 0) Add(++added);
      if (random_.Below(50) == 0 && !wanted_.empty()) Cancel();
      if (const auto step = scheduler_.NextStep()) OnStep(*step);
      CheckBlocks();
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
    if (!scheduler_.Add(Id(static_cast<uint64_t>(number)), wanted.prompt).ok()) return;
    wanted_.emplace(Id(static_cast<uint64_t>(number)), wanted);
  }

  void Cancel() {
    auto victim = wanted_.begin();
    std::advance(victim, static_cast<long>(random_.Below(wanted_.size())));
    scheduler_.Finish(victim->first);
    wanted_.erase(victim);
  }

  void OnStep(const ScheduledStep& step) {
    ASSERT_LE(scheduler_.in_flight(), options_.max_in_flight);
    int rows = 0;
    std::set<SequenceId> once;
    for (const ScheduledRows& row : step.rows) {
      ASSERT_TRUE(once.insert(row.sequence).second) << "twice in one step";
      rows += row.count;
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
      ASSERT_GE(static_cast<int>(table.blocks.size()) * options_.block_tokens, table.tokens);
    }
    ASSERT_LE(rows, options_.max_rows);
    for (const SequenceId id : step.ends) ASSERT_EQ(chain_.erase(id), 1u);
    ASSERT_LE(static_cast<int>(chain_.size()), options_.max_sequences);
    in_flight_.push_back(step);
  }

  void Retire() {
    const ScheduledStep step = in_flight_.front();
    in_flight_.pop_front();
    scheduler_.StepDone(step.step);
    for (const ScheduledRows& row : step.rows) {
      const auto wanted = wanted_.find(row.sequence);
      if (!row.samples || wanted == wanted_.end()) continue;
      ASSERT_EQ(row.first + row.count, wanted->second.known);
      if (wanted->second.known + 1 - wanted->second.prompt >= wanted->second.outputs) {
        scheduler_.Finish(row.sequence);
        wanted_.erase(wanted);
      } else {
        wanted->second.known += 1;
        scheduler_.TokenAdded(row.sequence);
      }
    }
  }

  // No block belongs to two sequences that have rows in flight.
  void CheckBlocks() {
    std::map<BlockId, SequenceId> owner;
    for (const ScheduledStep& step : in_flight_) {
      for (const ScheduledRows& row : step.rows) {
        for (const BlockId block : chain_[row.sequence].blocks) {
          const auto [it, inserted] = owner.emplace(block, row.sequence);
          ASSERT_TRUE(inserted || it->second == row.sequence)
              << "block " << static_cast<uint32_t>(block) << " is owned twice";
        }
      }
    }
  }

  struct Table {
    int tokens = 0;
    std::vector<BlockId> blocks;
  };
  base::SeededRandom random_;
  const SchedulerOptions options_;
  Scheduler scheduler_;
  std::map<SequenceId, Wanted> wanted_;
  std::map<SequenceId, Table> chain_;
  std::deque<ScheduledStep> in_flight_;
};

TEST(Scheduler, KeepsItsPromisesOverSeededRuns) {
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
    SchedulerRun run(seed, options);
    run.Run(20);
    run.ExpectBaseline();
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace layercake::coordinator
