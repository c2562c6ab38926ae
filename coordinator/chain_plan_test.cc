#include "coordinator/chain_plan.h"

#include <gtest/gtest.h>

#include <limits>

namespace layercake::coordinator {
namespace {

constexpr uint32_t kLargeId = 1u << 28;

TEST(PlanRing, HasSlotsForAWholeHistoryAndAllCopiesBesideIt) {
  constexpr int kContext = 1 << 20;
  const int copies = MaxBlockCopies(1 << 22, kContext, 16);
  EXPECT_EQ(copies, kContext / 16);
  const v1::RingGeometry ring = PlanRing(model::ModelConfig(), /*max_rows=*/1, kContext,
                                         /*kv_block_tokens=*/16, /*max_in_flight=*/2, copies);
  v1::MicroBatchPlan plan;
  plan.add_begins()->mutable_history()->Resize(kContext, std::numeric_limits<int32_t>::max());
  plan.add_rows()->mutable_blocks()->Resize(kContext / 16, kLargeId);
  for (int i = 0; i < copies; ++i) {
    for (v1::BlockCopy* copy : {plan.add_saves(), plan.add_restores()}) {
      copy->set_block(kLargeId);
      copy->set_host_block(kLargeId);
    }
  }
  EXPECT_LE(plan.ByteSizeLong(), ring.plan_slot_bytes());
  EXPECT_GT(plan.ByteSizeLong(),
            PlanRing(model::ModelConfig(), 1, kContext, 16, 2, 0).plan_slot_bytes())
      << "without room for copies it would not fit";
}

TEST(MaxBlockCopies, AreThoseOfOneSequenceOrAllThereIsHostMemoryFor) {
  EXPECT_EQ(MaxBlockCopies(0, 4096, 16), 0);
  EXPECT_EQ(MaxBlockCopies(100, 4096, 16), 100);
  EXPECT_EQ(MaxBlockCopies(1000, 4096, 16), 256);
  EXPECT_EQ(MaxBlockCopies(1000, 4097, 16), 257);
}

TEST(MakeAssignment, TellsEveryStageOfTheSameHostBlocks) {
  ChainPlan plan;
  plan.stages = {{0, 3}, {3, 4}};
  plan.kv_blocks = 20;
  plan.host_kv_blocks = 7;
  for (const int stage : {0, 1}) {
    const v1::Assignment assignment = MakeAssignment(plan, stage, 1, 1);
    EXPECT_EQ(assignment.kv_blocks(), 20);
    EXPECT_EQ(assignment.host_kv_blocks(), 7);
  }
}

}  // namespace
}  // namespace layercake::coordinator
