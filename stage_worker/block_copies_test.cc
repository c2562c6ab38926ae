#include "stage_worker/block_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "stage_worker/plan_check.h"

namespace layercake::stage_worker {
namespace {

using ::testing::HasSubstr;

StageLimits TestLimits() {
  return {.term = 7,
          .epoch = 3,
          .layer_end = 4,
          .kv_blocks = 16,
          .host_kv_blocks = 4,
          .kv_block_tokens = 4,
          .max_rows = 12,
          .max_sequences = 2,
          .context_tokens = 32,
          .max_in_flight = 2,
          .vocabulary = 100};
}

using Pairs = std::vector<std::pair<uint32_t, uint32_t>>;

v1::MicroBatchPlan Plan(uint64_t step, const Pairs& saves, const Pairs& restores) {
  v1::MicroBatchPlan plan;
  plan.set_term(7);
  plan.set_epoch(3);
  plan.set_step(step);
  for (const auto& [block, host_block] : saves) {
    plan.add_saves()->set_block(block);
    plan.mutable_saves()->rbegin()->set_host_block(host_block);
  }
  for (const auto& [block, host_block] : restores) {
    plan.add_restores()->set_block(block);
    plan.mutable_restores()->rbegin()->set_host_block(host_block);
  }
  return plan;
}

TEST(BlockCopies, ComeWithTheStepInTheirOrder) {
  SequenceTable table;
  const auto first = AdmitPlan(Plan(1, {{15, 3}, {2, 0}}, {}), TestLimits(), 0, table);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_EQ(first->copies.saves.size(), 2u);
  EXPECT_EQ(first->copies.saves[0].block, 15);
  EXPECT_EQ(first->copies.saves[0].host_block, 3);
  // A block that two sequences share is saved for each; one saved here may be restored at once.
  const auto second =
      AdmitPlan(Plan(2, {{2, 1}, {2, 2}}, {{7, 0}, {2, 3}, {8, 1}}), TestLimits(), 1, table);
  ASSERT_TRUE(second.ok()) << second.status();
  ASSERT_EQ(second->copies.restores.size(), 3u);
  EXPECT_EQ(second->copies.restores[1].block, 2);
  EXPECT_EQ(second->copies.restores[1].host_block, 3);
}

TEST(BlockCopies, AreRefusedWhenTheyMakeNoSense) {
  struct Case {
    const char* name;
    Pairs saves;
    Pairs restores;
    absl::StatusCode code;
    const char* says;
  };
  const Case cases[] = {
      {"block", {{16, 0}}, {}, absl::StatusCode::kInvalidArgument, "has 16 and 4"},
      {"huge block", {{0xFFFFFFFF, 0}}, {}, absl::StatusCode::kInvalidArgument, "has 16 and 4"},
      {"host block", {{0, 4}}, {}, absl::StatusCode::kInvalidArgument, "has 16 and 4"},
      {"restored block", {}, {{16, 0}}, absl::StatusCode::kInvalidArgument, "has 16 and 4"},
      {"restored host block", {}, {{0, 4}}, absl::StatusCode::kInvalidArgument, "has 16 and 4"},
      {"saved twice", {{1, 2}, {3, 2}}, {}, absl::StatusCode::kInvalidArgument, "twice"},
      {"restored twice", {{1, 2}}, {{5, 0}, {5, 2}}, absl::StatusCode::kInvalidArgument, "twice"},
      {"never saved", {}, {{5, 1}}, absl::StatusCode::kFailedPrecondition, "host block 1"},
      {"read twice", {}, {{5, 0}, {6, 0}}, absl::StatusCode::kFailedPrecondition, "host block 0"},
  };
  for (const Case& tested : cases) {
    SCOPED_TRACE(tested.name);
    SequenceTable table;
    ASSERT_TRUE(AdmitPlan(Plan(1, {{9, 0}}, {}), TestLimits(), 0, table).ok());
    const absl::Status status =
        AdmitPlan(Plan(2, tested.saves, tested.restores), TestLimits(), 1, table).status();
    EXPECT_EQ(status.code(), tested.code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(tested.says));
    // The refused plan left no trace: what was saved before is still there, and nothing else.
    EXPECT_TRUE(AdmitPlan(Plan(2, {}, {{3, 0}}), TestLimits(), 1, table).ok());
    EXPECT_FALSE(AdmitPlan(Plan(3, {}, {{3, 2}}), TestLimits(), 2, table).ok());
  }
}

TEST(BlockCopies, AreRefusedByAStageWithoutHostBlocks) {
  StageLimits limits = TestLimits();
  limits.host_kv_blocks = 0;
  SequenceTable table;
  EXPECT_EQ(AdmitPlan(Plan(1, {{0, 0}}, {}), limits, 0, table).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace layercake::stage_worker
