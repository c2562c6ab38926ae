#include "stage_worker/step_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "stage_worker/activation_frame.h"
#include "stage_worker/testing/fake_channel.h"
#include "stage_worker/testing/fake_device.h"
#include "stage_worker/testing/manual_time.h"
#include "stage_worker/testing/tiny_stages.h"

namespace layercake::stage_worker {
namespace {

using stage_worker::testing::BeginOf;
using stage_worker::testing::FakeDevice;
using stage_worker::testing::FakeReceiver;
using stage_worker::testing::FakeRing;
using stage_worker::testing::FakeSender;
using stage_worker::testing::MakeStage;
using stage_worker::testing::ManualTime;
using stage_worker::testing::RowsOf;
using stage_worker::testing::TinyModel;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using transport::Lane;

// Several stages with everything between them in the test's hands.
class StepLoopTest : public ::testing::Test {
 protected:
  struct Link {
    Link(const v1::RingGeometry& g)
        : ring(g.plan_slots(), g.plan_slot_bytes(), g.activation_slots(),
               g.activation_slot_bytes()),
          sender(ring),
          receiver(ring) {}
    FakeRing ring;
    FakeSender sender;
    FakeReceiver receiver;
  };
  struct Part {
    std::unique_ptr<FakeDevice> device;
    std::unique_ptr<Stage> stage;
    std::unique_ptr<StepLoop> loop;
    std::vector<absl::Status> failures;
    int drained = 0;
  };

  void Build(int stages, const TinyModel& model) {
    cpu_ = kernels::CreateCpuDevice({.threads = 1}, time_).value();
    ops_ = kernels::CreateCpuOps(*cpu_).value();
    for (int i = 0; i + 1 < stages; ++i) {
      links_.push_back(std::make_unique<Link>(model.Assign(i, stages).ring()));
    }
    for (int i = 0; i < stages; ++i) {
      parts_.push_back(std::make_unique<Part>());
      Part& part = *parts_.back();
      const v1::Assignment assignment = model.Assign(i, stages);
      part.device = std::make_unique<FakeDevice>(*cpu_, time_);
      part.stage = MakeStage(model, assignment, *part.device, *ops_);
      StepLoopOptions options;
      options.limits = LimitsForModel(assignment, model.config()).value();
      options.step_timeout = absl::Seconds(10);
      options.upstream_peer = absl::StrCat("stage ", i - 1, " (host a)");
      options.downstream_peer = absl::StrCat("stage ", i + 1, " (host b)");
      StepLoop::Callbacks callbacks;
      callbacks.on_result = [this](v1::StepResult result) { results_.push_back(result); };
      callbacks.on_failure = [&part](absl::Status status) { part.failures.push_back(status); };
      callbacks.on_drained = [&part] { ++part.drained; };
      part.loop = std::make_unique<StepLoop>(
          options, time_, time_, *part.device, *part.stage,
          i > 0 ? &links_[static_cast<size_t>(i - 1)]->receiver : nullptr,
          i + 1 < stages ? &links_[static_cast<size_t>(i)]->sender : nullptr, std::move(callbacks));
    }
  }
  void Build(int stages) { Build(stages, model_); }
  void TearDown() override {
    for (auto& part : parts_) part->loop.reset();
    parts_.clear();
    ops_.reset();
    cpu_.reset();
  }

  Part& part(int i) { return *parts_[static_cast<size_t>(i)]; }
  FakeRing& ring(int i) { return links_[static_cast<size_t>(i)]->ring; }

  // Everybody looks at their channels; nothing computes.
  void Look() {
    for (int round = 0; round < 4; ++round) {
      time_.RunPosted();
      for (auto& p : parts_) p->loop->OnChannelReady();
    }
    time_.RunPosted();
  }
  // Until nothing moves any more.
  void RunAll() {
    for (bool moved = true; moved;) {
      Look();
      moved = false;
      for (auto& p : parts_) moved |= p->device->RunOne();
    }
    Look();
  }

  v1::MicroBatchPlan Plan(uint64_t step) const {
    v1::MicroBatchPlan plan;
    plan.set_term(7);
    plan.set_epoch(3);
    plan.set_step(step);
    return plan;
  }
  // A prompt of four tokens of a new sequence in a block of its own.
  v1::MicroBatchPlan Prompt(uint64_t step, uint64_t sequence) const {
    v1::MicroBatchPlan plan = Plan(step);
    *plan.add_begins() = BeginOf(sequence, 4);
    *plan.add_rows() = RowsOf(sequence, {1, 2, static_cast<int>(sequence), 4}, 0, 4, true);
    plan.mutable_rows(0)->add_blocks(static_cast<uint32_t>(sequence));
    return plan;
  }
  std::vector<uint64_t> ResultSteps() const {
    std::vector<uint64_t> steps;
    for (const v1::StepResult& result : results_) steps.push_back(result.step());
    return steps;
  }

  const TinyModel model_{model::testing::TinyModelOptions()};
  ManualTime time_;
  std::unique_ptr<kernels::Device> cpu_;
  std::unique_ptr<kernels::Ops> ops_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::vector<v1::StepResult> results_;
};

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
