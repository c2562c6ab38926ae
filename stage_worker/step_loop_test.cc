#include "stage_worker/step_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "stage_worker/testing/step_chain.h"

namespace layercake::stage_worker {
namespace {

using stage_worker::testing::BeginOf;
using stage_worker::testing::StepChainTest;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using transport::Lane;

class StepLoopTest : public StepChainTest {};

TEST_F(StepLoopTest, MovesStepsThroughTheChainInOrder) {
  Build(3);
  for (uint64_t step = 1; step <= 4; ++step) part(0).loop->OnPlan(Prompt(step, step));
  RunAll();
  EXPECT_THAT(ResultSteps(), ElementsAre(1, 2, 3, 4));
  for (const v1::StepResult& result : results_) {
    ASSERT_EQ(result.results_size(), 1);
    EXPECT_EQ(result.results(0).sequence(), result.step());
    EXPECT_EQ(result.results(0).tokens_size(), 1);
    EXPECT_EQ(result.term(), 7u);
    EXPECT_EQ(result.epoch(), 3u);
  }
  for (int i = 0; i < 3; ++i) {
    const v1::StageCounters counters = part(i).loop->Counters();
    EXPECT_EQ(counters.plans_seen(), 4u);
    EXPECT_EQ(counters.activations_seen(), i > 0 ? 4u : 0u);
    EXPECT_EQ(counters.steps_begun(), 4u);
    EXPECT_EQ(counters.steps_done(), 4u);
    EXPECT_EQ(counters.frames_committed(), i < 2 ? 4u : 0u);
    EXPECT_EQ(part(i).loop->WaitingFor(), "");
    EXPECT_EQ(part(i).loop->NextWakeup(), base::Instant::Infinite());
  }
  EXPECT_EQ(ring(0).lane(Lane::kActivation).free.size(), 2u) << "every credit is back";
  EXPECT_EQ(ring(0).lane(Lane::kPlan).free.size(), 4u);
}

TEST_F(StepLoopTest, AnswersWhatOneStageAnswers) {
  Build(1);
  part(0).loop->OnPlan(Prompt(1, 5));
  RunAll();
  ASSERT_EQ(results_.size(), 1u);
  const std::string alone = results_[0].SerializeAsString();
  TearDown();
  results_.clear();
  Build(4);
  part(0).loop->OnPlan(Prompt(1, 5));
  RunAll();
  ASSERT_EQ(results_.size(), 1u);
  EXPECT_EQ(results_[0].SerializeAsString(), alone);
}

TEST_F(StepLoopTest, SendsPlansAheadOfTheirActivations) {
  Build(3);
  part(0).loop->OnPlan(Prompt(1, 1));
  part(0).loop->OnPlan(Prompt(2, 2));
  part(0).loop->OnPlan(Prompt(3, 3));
  Look();
  // No device has computed anything, and the last stage knows all three.
  EXPECT_EQ(part(2).loop->Counters().plans_seen(), 3u);
  EXPECT_EQ(part(2).loop->Counters().activations_seen(), 0u);
  EXPECT_THAT(part(2).loop->WaitingFor(),
              AllOf(HasSubstr("the activation of step 1"), HasSubstr("stage 1 (host a)"),
                    HasSubstr("over local")));
  RunAll();
  EXPECT_THAT(ResultSteps(), ElementsAre(1, 2, 3));
}

TEST_F(StepLoopTest, GivesTheUpstreamSlotBackBeforeTheStepIsComputed) {
  Build(2);
  part(0).loop->OnPlan(Prompt(1, 1));
  Look();
  while (part(0).device->RunOne()) {
  }
  Look();
  ASSERT_EQ(part(1).device->queued(), 2u) << "copy in, then compute";
  EXPECT_EQ(ring(0).lane(Lane::kActivation).released, 0u);
  ASSERT_TRUE(part(1).device->RunOne());
  Look();
  EXPECT_EQ(ring(0).lane(Lane::kActivation).released, 1u);
  EXPECT_TRUE(results_.empty());
  RunAll();
  EXPECT_EQ(results_.size(), 1u);
}

// The copy out of a device slot has only begun when ReadActivation returns.
TEST_F(StepLoopTest, KeepsAnUpstreamDeviceSlotUntilTheStepIsComputed) {
  Build(2);
  ring(0).device_slots = true;
  part(0).loop->OnPlan(Prompt(1, 1));
  Look();
  while (part(0).device->RunOne()) {
  }
  Look();
  ASSERT_TRUE(part(1).device->RunOne());
  Look();
  EXPECT_EQ(ring(0).lane(Lane::kActivation).released, 0u);
  ASSERT_TRUE(part(1).device->RunOne());
  Look();
  EXPECT_EQ(ring(0).lane(Lane::kActivation).released, 1u);
  EXPECT_EQ(results_.size(), 1u);
}

TEST_F(StepLoopTest, AnswersTheSameThroughDeviceSlots) {
  std::vector<std::string> answers;
  for (const bool device_slots : {false, true}) {
    Build(3);
    for (int i = 0; i < 2; ++i) ring(i).device_slots = device_slots;
    for (uint64_t step = 1; step <= 4; ++step) part(0).loop->OnPlan(Prompt(step, step));
    RunAll();
    ASSERT_EQ(results_.size(), 4u);
    for (const v1::StepResult& result : results_) answers.push_back(result.SerializeAsString());
    TearDown();
    links_.clear();
    results_.clear();
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(answers[i], answers[4 + i]) << i;
}

TEST_F(StepLoopTest, KeepsTheDeviceSuppliedWithTheNextStep) {
  Build(1);
  for (uint64_t step = 1; step <= 4; ++step) part(0).loop->OnPlan(Prompt(step, step));
  EXPECT_EQ(part(0).device->queued(), 2u);
  ASSERT_TRUE(part(0).device->RunOne());
  Look();
  EXPECT_EQ(part(0).device->queued(), 2u);
}

TEST_F(StepLoopTest, PassesOnStepsWithoutRows) {
  Build(3);
  part(0).loop->OnPlan(Plan(1));
  part(0).loop->OnPlan(Prompt(2, 2));
  RunAll();
  EXPECT_THAT(ResultSteps(), ElementsAre(1, 2));
  EXPECT_EQ(results_[0].results_size(), 0);
}

TEST_F(StepLoopTest, WaitsForCreditAndSaysSo) {
  Build(2);
  ring(0).lane(Lane::kActivation).free.clear();
  part(0).loop->OnPlan(Prompt(1, 1));
  EXPECT_THAT(part(0).loop->WaitingFor(),
              AllOf(HasSubstr("an activation slot for step 1"), HasSubstr("stage 1 (host b)")));
  EXPECT_EQ(part(0).device->queued(), 0u);
  ring(0).lane(Lane::kActivation).free.push_back(0);
  RunAll();
  EXPECT_EQ(results_.size(), 1u);
}

TEST_F(StepLoopTest, BoundsWhatIsInFlight) {
  Build(1);
  for (uint64_t step = 1; step <= 5; ++step) part(0).loop->OnPlan(Prompt(step, step));
  ASSERT_EQ(part(0).failures.size(), 1u);
  EXPECT_EQ(part(0).failures[0].code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(part(0).failures[0].message(), HasSubstr("max_in_flight"));
}

TEST_F(StepLoopTest, StopsAtAPlanThatItMayNotRun) {
  struct Case {
    std::string words;
    v1::MicroBatchPlan plan;
  };
  std::vector<Case> cases = {{"a repeat", Prompt(1, 2)},
                             {"a gap", Prompt(3, 2)},
                             {"epoch 2", Prompt(2, 2)},
                             {"term 6", Prompt(2, 2)},
                             {"77", Plan(2)}};
  cases[2].plan.set_epoch(2);
  cases[3].plan.set_term(6);
  cases[4].plan.add_ends(77);
  for (const Case& test : cases) {
    SCOPED_TRACE(test.words);
    Build(2);
    part(0).loop->OnPlan(Prompt(1, 1));
    part(0).loop->OnPlan(test.plan);
    ASSERT_EQ(part(0).failures.size(), 1u);
    EXPECT_EQ(part(0).failures[0].code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(part(0).failures[0].message(), AllOf(HasSubstr("stage 0"), HasSubstr(test.words)));
    EXPECT_EQ(ring(0).lane(Lane::kPlan).committed, 1u) << "what is refused is not sent on";
    part(0).loop->OnPlan(Prompt(2, 2));
    RunAll();
    EXPECT_EQ(ring(0).lane(Lane::kActivation).committed, 0u) << "the first error is the last word";
    EXPECT_EQ(part(0).failures.size(), 1u);
    EXPECT_EQ(part(0).drained, 1);
    EXPECT_TRUE(part(0).loop->drained());
    TearDown();
    links_.clear();
  }
}

TEST_F(StepLoopTest, RefusesAPlanFromTheSessionBehindTheFirstStage) {
  Build(2);
  part(1).loop->OnPlan(Prompt(1, 1));
  ASSERT_EQ(part(1).failures.size(), 1u);
  EXPECT_EQ(part(1).failures[0].code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(StepLoopTest, RefusesActivationsOfAnotherStep) {
  Build(2);
  ring(0).hold = true;
  part(0).loop->OnPlan(Prompt(1, 1));
  RunAll();
  ring(0).Deliver(Lane::kPlan);
  ring(0).lane(Lane::kActivation).sent.front().header.step = 2;
  ring(0).Deliver(Lane::kActivation);
  RunAll();
  ASSERT_EQ(part(1).failures.size(), 1u);
  EXPECT_EQ(part(1).failures[0].code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(part(1).failures[0].message(), HasSubstr("stage 0 (host a)"));
}

TEST_F(StepLoopTest, RefusesBytesThatAreNoPlan) {
  Build(2);
  ring(0).hold = true;
  part(0).loop->OnPlan(Prompt(1, 1));
  Look();
  ring(0).lane(Lane::kPlan).sent.front().payload.address[0] = std::byte{0xff};
  ring(0).Deliver(Lane::kPlan);
  Look();
  ASSERT_EQ(part(1).failures.size(), 1u);
  EXPECT_EQ(part(1).failures[0].code(), absl::StatusCode::kDataLoss);
}

TEST_F(StepLoopTest, RefusesAPlanThatDoesNotFitItsSlot) {
  Build(2);
  v1::MicroBatchPlan plan = Plan(1);
  for (uint64_t sequence = 1; sequence <= 8; ++sequence) {
    *plan.add_begins() = BeginOf(sequence, 4);
    for (int i = 0; i < 64; ++i) plan.mutable_begins()->rbegin()->add_history(300 + i % 16);
  }
  for (uint64_t step = 1; step <= 4; ++step) {
    plan.set_step(step);
    part(0).loop->OnPlan(plan);
  }
  // 8 x 64 tokens of two bytes are about 1.3 kB: they fit. Then a slot is too small for them.
  ASSERT_TRUE(part(0).failures.empty());
  RunAll();
  for (auto& slot : ring(0).lane(Lane::kPlan).slots) slot.resize(100);
  plan.set_step(5);
  part(0).loop->OnPlan(plan);
  ASSERT_EQ(part(0).failures.size(), 1u);
  EXPECT_EQ(part(0).failures[0].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(part(0).failures[0].message(), HasSubstr("plan_slot_bytes"));
}

TEST_F(StepLoopTest, TellsOfAPeerThatIsGone) {
  Build(3);
  ring(1).status = absl::UnavailableError("peer gone");
  Look();
  ASSERT_EQ(part(1).failures.size(), 1u);
  ASSERT_EQ(part(2).failures.size(), 1u);
  EXPECT_EQ(part(2).failures[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(part(0).failures.empty());
}

TEST_F(StepLoopTest, LatchesAnErrorOfTheDevice) {
  Build(2);
  part(0).device->fail = absl::InternalError("the device said no");
  part(0).loop->OnPlan(Prompt(1, 1));
  RunAll();
  ASSERT_EQ(part(0).failures.size(), 1u);
  EXPECT_THAT(part(0).failures[0].message(),
              AllOf(HasSubstr("stage 0"), HasSubstr("step 1"), HasSubstr("said no")));
  EXPECT_EQ(ring(0).lane(Lane::kActivation).committed, 0u);
}

TEST_F(StepLoopTest, GivesUpOnADeviceThatDoesNotComeBack) {
  Build(2);
  part(0).device->stuck = true;
  part(0).loop->OnPlan(Prompt(1, 1));
  Look();
  time_.Advance(absl::Seconds(9));
  EXPECT_TRUE(part(0).failures.empty());
  EXPECT_THAT(part(0).loop->WaitingFor(), HasSubstr("device fake to finish step 1 since 9s"));
  time_.Advance(absl::Seconds(2));
  ASSERT_EQ(part(0).failures.size(), 1u);
  EXPECT_EQ(part(0).failures[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(part(0).failures[0].message(),
              AllOf(HasSubstr("stage 0"), HasSubstr("device fake to finish step 1"),
                    HasSubstr("last progress 10s ago")));
  EXPECT_TRUE(part(1).failures.empty()) << "who waits for others is more patient";
  EXPECT_FALSE(part(0).loop->drained());
}

TEST_F(StepLoopTest, GivesUpOnAnActivationThatDoesNotCome) {
  Build(2);
  ring(0).hold = true;
  part(0).loop->OnPlan(Prompt(1, 1));
  RunAll();
  ring(0).Deliver(Lane::kPlan);
  Look();
  time_.Advance(absl::Seconds(19));
  EXPECT_TRUE(part(1).failures.empty());
  time_.Advance(absl::Seconds(2));
  ASSERT_EQ(part(1).failures.size(), 1u);
  EXPECT_EQ(part(1).failures[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(part(1).failures[0].message(),
              AllOf(HasSubstr("the activation of step 1"), HasSubstr("stage 0 (host a)"),
                    HasSubstr("over local"), HasSubstr("20s")));
}

TEST_F(StepLoopTest, GivesUpOnCreditThatDoesNotComeBack) {
  Build(2);
  ring(0).lane(Lane::kPlan).free.clear();
  part(0).loop->OnPlan(Prompt(1, 1));
  time_.Advance(absl::Seconds(21));
  ASSERT_GE(part(0).failures.size(), 1u);
  EXPECT_EQ(part(0).failures[0].code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(StepLoopTest, JudgesNobodyRightAfterItStoodStillItself) {
  Build(1);
  part(0).device->stuck = true;
  part(0).loop->OnPlan(Prompt(1, 1));
  time_.Stall(absl::Seconds(60));
  EXPECT_TRUE(part(0).failures.empty());
  part(0).device->stuck = false;
  RunAll();
  EXPECT_EQ(results_.size(), 1u);
  part(0).device->stuck = true;
  part(0).loop->OnPlan(Prompt(2, 2));
  time_.Stall(absl::Seconds(60));
  time_.Advance(absl::Seconds(6));
  EXPECT_EQ(part(0).failures.size(), 1u) << "but not for ever";
}

TEST_F(StepLoopTest, StopsWithoutAWordAndDrains) {
  Build(1);
  part(0).loop->OnPlan(Prompt(1, 1));
  part(0).loop->Stop();
  EXPECT_FALSE(part(0).loop->drained());
  RunAll();
  EXPECT_TRUE(part(0).loop->drained());
  EXPECT_EQ(part(0).drained, 1);
  EXPECT_TRUE(results_.empty());
  EXPECT_TRUE(part(0).failures.empty());
}

TEST_F(StepLoopTest, MayGoBeforeItsWorkHasEnded) {
  Build(1);
  part(0).loop->OnPlan(Prompt(1, 1));
  part(0).loop.reset();
  ASSERT_TRUE(part(0).device->RunOne());
  time_.RunPosted();
  EXPECT_TRUE(results_.empty());
  parts_.clear();
}

}  // namespace
}  // namespace layercake::stage_worker
