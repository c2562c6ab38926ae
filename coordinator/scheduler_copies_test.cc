// Sequences that give way and come back from host memory, against a cache that knows who wrote
// what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/random.h"
#include "coordinator/scheduler.h"

namespace layercake::coordinator {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

SequenceId Id(uint64_t value) { return static_cast<SequenceId>(value); }
base::Instant At(double seconds) { return base::Instant::FromStart(absl::Seconds(seconds)); }

SchedulerOptions OptionsWithHostBlocks(int host_blocks) {
  SchedulerOptions options;
  options.stages = 2;
  options.max_in_flight = 2;
  options.max_rows = 32;
  options.prefill_rows = 16;
  options.min_prefill_rows = 4;
  options.max_sequences = 8;
  options.max_queued = 64;
  options.kv_blocks = 16;
  options.block_tokens = 4;
  options.host_blocks = host_blocks;
  options.max_block_copies = 16;
  return options;
}

// What a stage's cache and its host memory hold: the sequence and the position that were written.
class CacheModel {
 public:
  explicit CacheModel(const SchedulerOptions& options)
      : block_tokens_(static_cast<size_t>(options.block_tokens)),
        device_(static_cast<size_t>(options.kv_blocks), Block(block_tokens_)),
        host_(static_cast<size_t>(options.host_blocks)) {}

  // Does what a stage does, and finds rows that read what is not their sequence's.
  void Apply(const ScheduledStep& step) {
    for (const HostBlockCopy& save : step.copies.saves) {
      host_.at(static_cast<size_t>(save.host_block)) = device_.at(static_cast<size_t>(save.block));
    }
    for (const HostBlockCopy& restore : step.copies.restores) {
      const Block& from = host_.at(static_cast<size_t>(restore.host_block));
      ASSERT_THAT(from, SizeIs(block_tokens_)) << "restored from a host block never saved to";
      device_.at(static_cast<size_t>(restore.block)) = from;
    }
    for (const ScheduledRows& rows : step.rows) {
      std::vector<BlockId>& table = tables_[rows.sequence];
      if (!rows.new_blocks.empty()) table.resize(static_cast<size_t>(rows.table_start));
      table.insert(table.end(), rows.new_blocks.begin(), rows.new_blocks.end());
      for (int position = 0; position < rows.first; ++position) {
        ASSERT_EQ(At(table, position), std::pair(rows.sequence, position)) << "read";
      }
      for (int i = 0; i < rows.count; ++i) {
        At(table, rows.first + i) = {rows.sequence, rows.first + i};
      }
    }
  }

 private:
  using Block = std::vector<std::pair<SequenceId, int>>;
  std::pair<SequenceId, int>& At(const std::vector<BlockId>& table, int position) {
    const auto at = static_cast<size_t>(position);
    return device_.at(static_cast<size_t>(table.at(at / block_tokens_)))[at % block_tokens_];
  }

  const size_t block_tokens_;
  std::vector<Block> device_;
  std::vector<Block> host_;
  std::map<SequenceId, std::vector<BlockId>> tables_;
};

// A scheduler whose steps run one after the other. Each sequence ends after `last` tokens.
class CopyRun {
 public:
  // Seconds that a stage takes for a row, and for a block copied in one direction (0: unknown).
  CopyRun(const SchedulerOptions& options, double row_seconds, double copy_seconds)
      : options_(options), row_seconds_(row_seconds), scheduler_(options), cache_(options) {
    for (int stage = 0; stage < options.stages; ++stage) {
      scheduler_.SetCopySeconds(stage, copy_seconds);
    }
  }

  void Add(uint64_t id, int prompt, int last) {
    ASSERT_TRUE(scheduler_
                    .Add({.id = Id(id),
                          .prompt = std::vector<int32_t>(static_cast<size_t>(prompt), 1),
                          .root = std::nullopt,
                          .last_token = last},
                         At(0))
                    .ok());
    known_[Id(id)] = prompt;
    last_[Id(id)] = last;
  }
  void Cancel(uint64_t id) {
    scheduler_.Finish(Id(id));
    known_.erase(Id(id));
  }
  bool open(uint64_t id) const { return known_.contains(Id(id)); }
  size_t open_count() const { return known_.size(); }

  // Plans what can be planned; then the oldest step comes back.
  void Turn() {
    while (auto step = scheduler_.NextStep()) {
      cache_.Apply(*step);
      saves_ += static_cast<int>(step->copies.saves.size());
      restores_ += static_cast<int>(step->copies.restores.size());
      for (const ScheduledRows& rows : step->rows) computed_ += rows.count;
      in_flight_.push_back(*std::move(step));
    }
    if (in_flight_.empty()) return;
    const ScheduledStep done = std::move(in_flight_.front());
    in_flight_.pop_front();
    scheduler_.StepDone(done.step, At(0));
    for (int stage = 0; stage < options_.stages; ++stage) {
      scheduler_.StepTime(stage, done.step, 1e-3 + row_seconds_ * done.shape.rows);
    }
    for (const ScheduledRows& rows : done.rows) {
      const auto known = known_.find(rows.sequence);
      if (!rows.samples || known == known_.end()) continue;
      if (++known->second >= last_[rows.sequence]) {
        scheduler_.Finish(rows.sequence);
        known_.erase(known);
      } else {
        scheduler_.TokenAdded(rows.sequence, 1);
      }
    }
  }
  void RunToTheEnd() {
    for (int i = 0; i < 20'000 && (!known_.empty() || !in_flight_.empty()); ++i) {
      Turn();
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_THAT(known_, IsEmpty()) << "sequences that never ended";
    while (!in_flight_.empty()) Turn();
    EXPECT_EQ(scheduler_.blocks().free_count(), options_.kv_blocks);
    EXPECT_EQ(scheduler_.host_blocks().free_count(), options_.host_blocks);
  }

  const Scheduler& scheduler() const { return scheduler_; }
  int saves() const { return saves_; }
  int restores() const { return restores_; }
  int computed() const { return computed_; }  // rows

 private:
  const SchedulerOptions options_;
  const double row_seconds_;
  Scheduler scheduler_;
  CacheModel cache_;
  std::deque<ScheduledStep> in_flight_;
  std::map<SequenceId, int> known_;  // tokens of those that have not ended
  std::map<SequenceId, int> last_;
  int saves_ = 0;
  int restores_ = 0;
  int computed_ = 0;
};

// Steps of all sizes, so that their cost is known; then two sequences that together need more
// blocks than there are.
void LearnAndFill(CopyRun& run) {
  for (uint64_t id = 1; id <= 8; ++id) run.Add(id, static_cast<int>(id) * 3, 30);
  run.RunToTheEnd();
  run.Add(21, 8, 60);
  run.Add(22, 8, 60);
}

TEST(SchedulerCopies, BringBackWhatGaveWayWithoutComputingItAgain) {
  CopyRun run(OptionsWithHostBlocks(16), /*row_seconds=*/1e-3, /*copy_seconds=*/1e-4);
  LearnAndFill(run);
  const int before = run.computed();
  const int64_t preempted = run.scheduler().preemptions();
  const int saves = run.saves();
  run.RunToTheEnd();
  EXPECT_GT(run.scheduler().preemptions(), preempted);
  EXPECT_GT(run.saves(), saves);
  EXPECT_EQ(run.restores(), run.saves());
  EXPECT_EQ(run.computed() - before, 2 * 59) << "each row once";
}

TEST(SchedulerCopies, AreNotMadeWhereComputingIsCheaperOrNothingWasMeasured) {
  for (const double copy_seconds : {0.0, 1e-2}) {
    CopyRun run(OptionsWithHostBlocks(16), 1e-4, copy_seconds);
    LearnAndFill(run);
    run.RunToTheEnd();
    EXPECT_GT(run.scheduler().preemptions(), 0);
    EXPECT_EQ(run.scheduler().copied_preemptions(), 0) << copy_seconds;
    EXPECT_EQ(run.saves(), 0);
  }
}

TEST(SchedulerCopies, AreNotMadeBeforeComputingWasMeasured) {
  CopyRun run(OptionsWithHostBlocks(16), /*row_seconds=*/-1, 1e-4);  // times that count for nothing
  LearnAndFill(run);
  run.RunToTheEnd();
  EXPECT_GT(run.scheduler().preemptions(), 0);
  EXPECT_EQ(run.saves(), 0);
}

TEST(SchedulerCopies, GiveWayToComputingWhereHostMemoryOrAStepsPlanIsFull) {
  for (const bool host_memory : {false, true}) {
    SchedulerOptions options = OptionsWithHostBlocks(host_memory ? 2 : 16);
    if (!host_memory) options.max_block_copies = 2;
    CopyRun run(options, 1e-3, 1e-4);
    LearnAndFill(run);
    const int saves = run.saves();
    const int64_t preempted = run.scheduler().preemptions();
    run.RunToTheEnd();
    EXPECT_GT(run.scheduler().preemptions(), preempted);
    EXPECT_EQ(run.saves(), saves) << "the one that gives way has more than two blocks";
  }
}

TEST(SchedulerCopies, AreGivenUpAtOnceByASequenceThatEnds) {
  CopyRun run(OptionsWithHostBlocks(16), 1e-3, 1e-4);
  LearnAndFill(run);
  while (run.scheduler().host_blocks().free_count() == 16 && run.open(22)) run.Turn();
  ASSERT_TRUE(run.open(22)) << "nothing was saved";
  run.Cancel(22);
  EXPECT_EQ(run.scheduler().host_blocks().free_count(), 16);
  run.RunToTheEnd();
}

TEST(SchedulerCopies, NeverShowASequenceAnothersBlocks) {
  int64_t copied = 0;
  int64_t computed = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    base::SeededRandom random(seed);
    const auto below = [&](int bound) {
      return static_cast<int>(random.Below(static_cast<uint64_t>(bound)));
    };
    SchedulerOptions options = OptionsWithHostBlocks(1 + below(24));
    options.stages = 1 + below(4);
    options.max_in_flight = options.stages + below(2);
    options.kv_blocks = 16 + below(10);
    options.max_block_copies = 4 + below(13);
    options.max_rows = 2 + below(31);
    CopyRun run(options, 1e-3, 1e-4 * (1 + below(30)));
    for (uint64_t id = 1; id <= 40; ++id) {
      const int prompt = 1 + below(40);
      run.Add(id, prompt, prompt + 1 + below(24));
    }
    while (run.open_count() > 0 && !testing::Test::HasFatalFailure()) {
      run.Turn();
      if (below(60) == 0) run.Cancel(1 + random.Below(40));
    }
    if (testing::Test::HasFatalFailure()) return;
    run.RunToTheEnd();
    copied += run.scheduler().copied_preemptions();
    computed += run.scheduler().preemptions() - run.scheduler().copied_preemptions();
  }
  EXPECT_GE(copied, 200);
  EXPECT_GE(computed, 200);
}

}  // namespace
}  // namespace layercake::coordinator
