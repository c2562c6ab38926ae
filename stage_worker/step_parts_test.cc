// Long activations in parts: what the step loops at both ends make of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "stage_worker/testing/step_chain.h"

namespace layercake::stage_worker {
namespace {

using stage_worker::testing::StepChainTest;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using transport::Lane;

class StepPartsTest : public StepChainTest {
 protected:
  // Two stages, an activation of four rows between them in parts of one row.
  void BuildInParts() {
    Build(2);
    ring(0).part_bytes = RowBytes();
  }
  uint32_t RowBytes() const {
    return static_cast<uint32_t>(model_.config().hidden_size * sizeof(float));
  }
  // Stage 0 does everything it can.
  void RunFirstStage() {
    Look();
    while (part(0).device->RunOne()) Look();
  }
};

TEST_F(StepPartsTest, AnswersWhatWholeFramesAnswer) {
  std::vector<std::string> answers;
  for (const bool in_parts : {false, true}) {
    Build(3);
    for (int i = 0; i < 2; ++i) {
      ring(i).part_bytes = in_parts ? RowBytes() : 0;
      ring(i).arrived = ~0u;
    }
    for (uint64_t step = 1; step <= 3; ++step) part(0).loop->OnPlan(Prompt(step, step));
    while (results_.size() < 3) {
      const size_t before = ring(0).said.size() + ring(1).said.size();
      for (int i = 0; i < 2; ++i) ring(i).arrived = ~0u;
      RunAll();
      ASSERT_TRUE(results_.size() == 3 || ring(0).said.size() + ring(1).said.size() > before);
    }
    std::string all;
    for (const v1::StepResult& result : results_) all += result.SerializeAsString();
    answers.push_back(all);
    EXPECT_EQ(ring(0).said.empty(), !in_parts);
    TearDown();
    results_.clear();
    links_.clear();
  }
  EXPECT_EQ(answers[0], answers[1]);
}

TEST_F(StepPartsTest, SaysEachPartWhenItIsWritten) {
  BuildInParts();
  part(0).loop->OnPlan(Prompt(1, 1));
  Look();
  ASSERT_EQ(part(0).device->queued(), 5u) << "the step with the first part, then four more";
  ASSERT_TRUE(part(0).device->RunOne());
  EXPECT_TRUE(ring(0).said.empty());
  Look();
  EXPECT_THAT(ring(0).said, ElementsAre(RowBytes()));
  EXPECT_EQ(part(0).loop->Counters().steps_done(), 0u);
  while (part(0).device->RunOne()) Look();
  const uint32_t row = RowBytes();
  ASSERT_EQ(ring(0).said.size(), 5u);
  EXPECT_THAT(std::vector<uint32_t>(ring(0).said.begin(), ring(0).said.begin() + 4),
              ElementsAre(row, 2 * row, 3 * row, 4 * row));
  EXPECT_GT(ring(0).said[4], 4 * row) << "the section's length is left for the last part";
  EXPECT_EQ(part(0).loop->Counters().steps_done(), 1u);
  EXPECT_EQ(part(0).loop->Counters().frames_committed(), 1u);
}

TEST_F(StepPartsTest, TakesPartsAsTheyComeAndComputesAfterTheLast) {
  BuildInParts();
  part(0).loop->OnPlan(Prompt(1, 1));
  RunFirstStage();
  ASSERT_EQ(part(1).device->queued(), 1u) << "the copy of the first part";
  ASSERT_TRUE(part(1).device->RunOne());
  ring(0).arrived = 3 * RowBytes();
  Look();
  ASSERT_EQ(part(1).device->queued(), 1u) << "two parts may be taken as one piece";
  ASSERT_TRUE(part(1).device->RunOne());
  Look();
  EXPECT_EQ(part(1).loop->Counters().steps_begun(), 0u);
  EXPECT_EQ(ring(0).lane(Lane::kActivation).released, 0u);
  EXPECT_THAT(part(1).loop->WaitingFor(), HasSubstr("the activation of step 1"));
  ring(0).arrived = ~0u;
  Look();
  EXPECT_EQ(part(1).device->queued(), 2u) << "the last copy, then the step";
  EXPECT_EQ(part(1).loop->Counters().steps_begun(), 1u);
  RunAll();
  EXPECT_EQ(ring(0).lane(Lane::kActivation).released, 1u);
  EXPECT_EQ(results_.size(), 1u);
}

TEST_F(StepPartsTest, ComputesNothingOfAPartThatIsNotWhatWasSent) {
  BuildInParts();
  part(0).loop->OnPlan(Prompt(1, 1));
  RunFirstStage();
  ring(0).harm = absl::DataLossError("checksum of part");
  ring(0).arrived = ~0u;
  RunAll();
  ASSERT_EQ(part(1).failures.size(), 1u);
  EXPECT_TRUE(absl::IsDataLoss(part(1).failures[0])) << part(1).failures[0];
  EXPECT_EQ(part(1).loop->Counters().steps_begun(), 0u);
  EXPECT_TRUE(results_.empty());
  EXPECT_TRUE(part(1).loop->drained());
}

TEST_F(StepPartsTest, GivesUpOnAFrameThatNeverEndsAndNamesItsSender) {
  BuildInParts();
  part(0).loop->OnPlan(Prompt(1, 1));
  RunFirstStage();
  while (part(1).device->RunOne()) Look();
  EXPECT_TRUE(part(1).failures.empty());
  time_.Advance(absl::Seconds(19));
  Look();
  EXPECT_TRUE(part(1).failures.empty());
  time_.Advance(absl::Seconds(2));
  Look();
  ASSERT_EQ(part(1).failures.size(), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(part(1).failures[0]));
  EXPECT_THAT(part(1).failures[0].message(),
              AllOf(HasSubstr("the activation of step 1"), HasSubstr("stage 0 (host a)")));
  EXPECT_TRUE(part(1).loop->drained());
}

TEST_F(StepPartsTest, SaysNothingMoreOfAFrameWhoseStepFailed) {
  BuildInParts();
  part(0).loop->OnPlan(Prompt(1, 1));
  Look();
  ASSERT_TRUE(part(0).device->RunOne());
  Look();
  part(0).device->fail = absl::InternalError("the copy went wrong");
  RunAll();
  ASSERT_EQ(part(0).failures.size(), 1u);
  EXPECT_THAT(part(0).failures[0].message(), HasSubstr("step 1: the copy went wrong"));
  EXPECT_EQ(ring(0).said.size(), 1u);
  EXPECT_TRUE(part(0).loop->drained());
  EXPECT_EQ(part(0).drained, 1);
}

TEST_F(StepPartsTest, CountsHowLongActivationsWereUnderWay) {
  Build(2);
  ring(0).hold = true;
  part(0).loop->OnPlan(Prompt(1, 1));
  Look();
  ring(0).Deliver(Lane::kPlan);
  RunFirstStage();
  time_.Advance(absl::Milliseconds(3));
  ring(0).Deliver(Lane::kActivation);
  RunAll();
  const v1::StageCounters counters = part(1).loop->Counters();
  EXPECT_EQ(counters.hops(), 1u);
  EXPECT_GT(counters.hop_bytes(), 4 * RowBytes());
  EXPECT_NEAR(counters.hop_seconds(), 3e-3, 1e-9);
  EXPECT_EQ(part(0).loop->Counters().hops(), 0u);
}

}  // namespace
}  // namespace layercake::stage_worker
