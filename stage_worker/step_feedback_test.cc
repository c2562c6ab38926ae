// Rows whose token an earlier step samples, through one stage and several.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "stage_worker/testing/step_chain.h"

namespace layercake::stage_worker {
namespace {

using stage_worker::testing::RowsOf;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using transport::Lane;

class StepFeedbackTest : public testing::StepChainTest {
 protected:
  // The next row of the sequence of Prompt(_, sequence): at `position`, in its first block.
  v1::MicroBatchPlan Next(uint64_t step, uint64_t sequence, int position, int32_t token,
                          uint64_t token_of_step) const {
    v1::MicroBatchPlan plan = Plan(step);
    v1::RowDescriptor& rows = *plan.add_rows();
    rows = RowsOf(sequence, {token}, 0, 1, true);
    rows.set_kv_position(static_cast<uint32_t>(position));
    rows.set_token_of_step(token_of_step);
    rows.add_blocks(static_cast<uint32_t>(sequence));
    if (position >= 4) rows.add_blocks(static_cast<uint32_t>(sequence) + 4);
    return plan;
  }
  // A prompt whose sampling looks at its past.
  v1::MicroBatchPlan PenalisedPrompt(uint64_t step, uint64_t sequence) const {
    v1::MicroBatchPlan plan = Prompt(step, sequence);
    v1::ResolvedSampling& sampling = *plan.mutable_begins(0)->mutable_sampling();
    sampling.set_repetition_penalty(1.7f);
    sampling.set_frequency_penalty(1.5f);
    sampling.set_temperature(0.9f);
    sampling.set_seed(11);
    sampling.set_top_logprobs(3);
    return plan;
  }
  int32_t TokenOfResult(size_t i) const { return results_[i].results(0).tokens(0).token(); }
  // The results of a prompt and three tokens more, planned ahead of what is known or not.
  std::vector<std::string> Answers(int stages, bool ahead) {
    Build(stages);
    std::vector<std::string> answers;
    part(0).loop->OnPlan(PenalisedPrompt(1, 1));
    for (uint64_t step = 2; step <= 4; ++step) {
      int32_t token = 0;
      if (!ahead) {
        RunAll();
        token = TokenOfResult(step - 2);
      }
      part(0).loop->OnPlan(Next(step, 1, static_cast<int>(step) + 2, token, ahead ? step - 1 : 0));
    }
    RunAll();
    for (const v1::StepResult& result : results_) answers.push_back(result.SerializeAsString());
    TearDown();
    links_.clear();
    results_.clear();
    return answers;
  }
};

TEST_F(StepFeedbackTest, AnswersTheSameWhetherItsTokensAreKnownOrNot) {
  const std::vector<std::string> expected = Answers(1, /*ahead=*/false);
  ASSERT_EQ(expected.size(), 4u);
  for (const int stages : {1, 2, 3, 4}) {
    EXPECT_EQ(Answers(stages, /*ahead=*/true), expected) << stages << " stages";
  }
}

TEST_F(StepFeedbackTest, AnswersTheSameWhenStepsArePreparedBeforeTheirInputIsHere) {
  const std::vector<std::string> expected = Answers(1, /*ahead=*/false);
  defers_ = true;
  for (const int stages : {1, 2, 3, 4}) {
    EXPECT_EQ(Answers(stages, /*ahead=*/true), expected) << stages << " stages";
    EXPECT_EQ(Answers(stages, /*ahead=*/false), expected) << stages << " stages";
  }
}

TEST_F(StepFeedbackTest, PreparesTheNextStepWhileItsInputIsUnderWay) {
  defers_ = true;
  Build(2);
  part(0).loop->OnPlan(Prompt(1, 1));
  part(0).loop->OnPlan(Next(2, 1, 4, 0, 1));
  Look();
  EXPECT_EQ(part(0).device->queued(), 2u) << "a step, and what of the next needs no token";
  ASSERT_EQ(part(1).device->queued(), 1u) << "what needs no activation";
  ASSERT_TRUE(part(1).device->RunOne());
  Look();
  EXPECT_EQ(part(1).deferred->holds, 1);
  EXPECT_EQ(part(1).device->queued(), 0u) << "once";
  ASSERT_TRUE(part(0).device->RunOne());
  ASSERT_TRUE(part(0).device->RunOne());
  EXPECT_EQ(part(0).deferred->holds, 1);
  RunAll();
  EXPECT_EQ(part(1).deferred->holds, 2);
  EXPECT_THAT(ResultSteps(), ElementsAre(1, 2));
  EXPECT_TRUE(part(0).failures.empty());
}

TEST_F(StepFeedbackTest, NamesTheStepThatCannotBePrepared) {
  defers_ = true;
  Build(2);
  part(1).device->fail = absl::InternalError("the device is lost");
  part(0).loop->OnPlan(Prompt(1, 1));
  Look();
  ASSERT_TRUE(part(1).device->RunOne());
  Look();
  ASSERT_EQ(part(1).failures.size(), 1u);
  EXPECT_THAT(std::string(part(1).failures[0].message()),
              AllOf(HasSubstr("prepare step 1"), HasSubstr("the device is lost")));
  EXPECT_TRUE(part(1).loop->drained());
}

TEST_F(StepFeedbackTest, GivesOneStageItsNextStepBeforeItsTokenIsKnown) {
  Build(1);
  part(0).loop->OnPlan(Prompt(1, 1));
  part(0).loop->OnPlan(Next(2, 1, 4, 0, 1));
  EXPECT_EQ(part(0).device->queued(), 2u) << "the device takes the token up itself";
  RunAll();
  EXPECT_EQ(results_.size(), 2u);
}

TEST_F(StepFeedbackTest, BeginsAStepOfSeveralStagesWhenItsTokenComesBack) {
  Build(3);
  back().hold = true;
  part(0).loop->OnPlan(Prompt(1, 1));
  part(0).loop->OnPlan(Next(2, 1, 4, 0, 1));
  part(0).loop->OnPlan(Prompt(3, 2));
  RunAll();
  ASSERT_EQ(results_.size(), 1u);
  EXPECT_EQ(part(2).loop->Counters().plans_seen(), 3u) << "plans go ahead";
  EXPECT_EQ(part(0).loop->Counters().steps_begun(), 1u) << "and step 3 does not overtake";
  EXPECT_THAT(part(0).loop->WaitingFor(),
              AllOf(HasSubstr("the token of step 1 from stage 2 (host c) over local")));
  EXPECT_EQ(ring(0).lane(Lane::kActivation).free.size(), 2u) << "no slot is held meanwhile";
  back().Deliver(Lane::kPlan);
  RunAll();
  EXPECT_THAT(ResultSteps(), ElementsAre(1, 2, 3));
  EXPECT_EQ(part(0).loop->WaitingFor(), "");
}

TEST_F(StepFeedbackTest, SendsTokensBeforeTheCoordinatorHearsOfThem) {
  Build(2);
  uint64_t sent = 0;
  at_result_ = [&] { sent = back().lane(Lane::kPlan).committed; };
  part(0).loop->OnPlan(Prompt(1, 1));
  RunAll();
  ASSERT_EQ(results_.size(), 1u);
  EXPECT_EQ(sent, 1u);
}

TEST_F(StepFeedbackTest, SendsOneFrameForEachStepThatSamples) {
  Build(2);
  part(0).loop->OnPlan(Prompt(1, 1));
  part(0).loop->OnPlan(Plan(2));
  v1::MicroBatchPlan silent = Prompt(3, 2);
  silent.mutable_rows(0)->clear_sample_bitmap();
  part(0).loop->OnPlan(silent);
  part(0).loop->OnPlan(Prompt(4, 3));
  RunAll();
  EXPECT_THAT(ResultSteps(), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(back().lane(Lane::kPlan).committed, 2u);
  EXPECT_EQ(back().lane(Lane::kPlan).released, 2u) << "read though no row asked for them";
}

TEST_F(StepFeedbackTest, GivesUpOnATokenThatDoesNotCome) {
  Build(3);
  back().hold = true;
  part(0).loop->OnPlan(Prompt(1, 1));
  part(0).loop->OnPlan(Next(2, 1, 4, 0, 1));
  RunAll();
  time_.Advance(absl::Seconds(39));
  EXPECT_TRUE(part(0).failures.empty()) << "every stage may take its time";
  time_.Advance(absl::Seconds(2));
  ASSERT_EQ(part(0).failures.size(), 1u);
  EXPECT_EQ(part(0).failures[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(part(0).failures[0].message(),
              AllOf(HasSubstr("the token of step 1"), HasSubstr("stage 2 (host c)")));
}

TEST_F(StepFeedbackTest, GivesUpOnASlotForATokenThatDoesNotComeBack) {
  Build(2);
  back().lane(Lane::kPlan).free.clear();
  part(0).loop->OnPlan(Prompt(1, 1));
  RunAll();
  EXPECT_EQ(results_.size(), 1u) << "the coordinator hears of it all the same";
  EXPECT_THAT(part(1).loop->WaitingFor(),
              HasSubstr("a slot for the token of step 1 at stage 0 (host c) over local"));
  time_.Advance(absl::Seconds(31));
  ASSERT_EQ(part(1).failures.size(), 1u);
  EXPECT_EQ(part(1).failures[0].code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(StepFeedbackTest, TellsOfAPeerThatIsGone) {
  Build(3);
  back().status = absl::UnavailableError("peer gone");
  Look();
  for (const int i : {0, 2}) {
    ASSERT_EQ(part(i).failures.size(), 1u);
    EXPECT_EQ(part(i).failures[0].code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(part(i).failures[0].message(),
                AllOf(HasSubstr("the feedback channel with stage"), HasSubstr("peer gone")));
  }
  EXPECT_TRUE(part(1).failures.empty());
}

// The first stage of two, and whatever the last one says.
class BadFeedback : public StepFeedbackTest {
 protected:
  void Say(const v1::StepFeedback& feedback, transport::FrameKind kind, uint64_t step) {
    testing::FakeRing::LaneState& lane = back().lane(Lane::kPlan);
    const std::string bytes = feedback.SerializeAsString();
    const transport::SendSlot slot = **back_->sender.Acquire(Lane::kPlan);
    ASSERT_LE(bytes.size(), slot.memory.bytes);
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(slot.memory.address));
    ASSERT_TRUE(back_->sender
                    .Commit(slot, {.kind = kind,
                                   .step = step,
                                   .payload_bytes = static_cast<uint32_t>(bytes.size())})
                    .ok());
    EXPECT_TRUE(lane.sent.empty());
  }
  // Of Prompt(1, 1).
  static v1::StepFeedback Good() {
    v1::StepFeedback feedback;
    feedback.set_term(7);
    feedback.set_epoch(3);
    feedback.set_step(1);
    feedback.add_sequences(1);
    feedback.add_tokens(2);
    return feedback;
  }
  void ExpectFailure(absl::StatusCode code, const std::string& words) {
    part(0).loop->OnChannelReady();
    ASSERT_EQ(part(0).failures.size(), 1u) << words;
    EXPECT_EQ(part(0).failures[0].code(), code);
    EXPECT_THAT(part(0).failures[0].message(), HasSubstr(words));
    TearDown();
    links_.clear();
  }
  void BuildWithAStepAway() {
    Build(2);
    part(0).loop->OnPlan(Prompt(1, 1));
    part(0).loop->OnPlan(Next(2, 1, 4, 0, 1));
  }
};

TEST_F(BadFeedback, EndsTheStageAsEveryBadFrameDoes) {
  struct Case {
    std::string words;
    void (*change)(v1::StepFeedback&);
    absl::StatusCode code;
  };
  constexpr auto kWrong = absl::StatusCode::kFailedPrecondition;
  const std::vector<Case> cases = {
      {"term 6", [](v1::StepFeedback& f) { f.set_term(6); }, kWrong},
      {"epoch 2", [](v1::StepFeedback& f) { f.set_epoch(2); }, kWrong},
      {"the 1 sequences", [](v1::StepFeedback& f) { f.set_sequences(0, 9); }, kWrong},
      {"the 1 sequences",
       [](v1::StepFeedback& f) {
         f.add_sequences(9);
         f.add_tokens(1);
       },
       kWrong},
      {"cannot be read", [](v1::StepFeedback& f) { f.add_tokens(1); }, absl::StatusCode::kDataLoss},
      {"cannot be read", [](v1::StepFeedback& f) { f.set_step(2); }, absl::StatusCode::kDataLoss},
      {"token 9999", [](v1::StepFeedback& f) { f.set_tokens(0, 9999); },
       absl::StatusCode::kInvalidArgument},
      {"token -2", [](v1::StepFeedback& f) { f.set_tokens(0, -2); },
       absl::StatusCode::kInvalidArgument},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.words);
    BuildWithAStepAway();
    v1::StepFeedback feedback = Good();
    test.change(feedback);
    Say(feedback, transport::FrameKind::kFeedback, 1);
    ExpectFailure(test.code, test.words);
  }
  BuildWithAStepAway();
  Say(Good(), transport::FrameKind::kPlan, 1);
  ExpectFailure(kWrong, "a frame of kind 1");
}

TEST_F(BadFeedback, EndsTheStageWhenItIsOfAnotherStepOrComesTwice) {
  BuildWithAStepAway();
  v1::StepFeedback later = Good();
  later.set_step(2);
  Say(later, transport::FrameKind::kFeedback, 2);
  ExpectFailure(absl::StatusCode::kFailedPrecondition, "step 2, expected that of step 1");
  Build(2);
  part(0).loop->OnPlan(Prompt(1, 1));
  Say(Good(), transport::FrameKind::kFeedback, 1);
  Look();
  ASSERT_TRUE(part(0).failures.empty());
  Say(Good(), transport::FrameKind::kFeedback, 1);
  ExpectFailure(absl::StatusCode::kFailedPrecondition, "step 1, expected none");
}

TEST_F(BadFeedback, ComputesARowWithoutATokenForNothing) {
  BuildWithAStepAway();
  v1::StepFeedback none = Good();
  none.set_tokens(0, -1);
  Say(none, transport::FrameKind::kFeedback, 1);
  part(0).loop->OnChannelReady();
  EXPECT_TRUE(part(0).failures.empty());
  while (part(0).device->RunOne()) {
  }
  Look();
  EXPECT_EQ(part(0).loop->Counters().steps_done(), 2u);
}

TEST(FeedbackChannel, HasSlotsForTheFeedbackOfEveryStepInFlight) {
  const testing::TinyModel model{model::testing::TinyModelOptions()};
  for (const int sequences : {1, 8, 1000, kMaxSequences}) {
    v1::Assignment assignment = model.Assign(0, 2);
    assignment.set_max_rows(kMaxRows);
    assignment.set_max_sequences(sequences);
    const transport::ChannelGeometry geometry = FeedbackGeometry(assignment);
    EXPECT_TRUE(transport::ValidateGeometry(geometry).ok());
    EXPECT_GT(geometry.plan_slots, static_cast<uint32_t>(assignment.max_in_flight()));
    v1::StepFeedback largest;
    largest.set_term(~uint64_t{0});
    largest.set_epoch(~uint32_t{0});
    largest.set_step(~uint64_t{0});
    for (int i = 0; i < sequences; ++i) {
      largest.add_sequences(~uint64_t{0});
      largest.add_tokens(-1);
    }
    EXPECT_LE(largest.ByteSizeLong(), geometry.plan_slot_bytes) << sequences;
  }
}

TEST(FeedbackChannel, IsOfHostMemoryWhateverActivationsUse) {
  EXPECT_EQ(FeedbackTransport("auto"), "auto");
  EXPECT_EQ(FeedbackTransport("cuda_ipc"), "pinned_host");
  EXPECT_EQ(FeedbackTransport("require:cuda_ipc"), "require:pinned_host");
  EXPECT_EQ(FeedbackTransport("require:ucx"), "require:ucx");
}

}  // namespace
}  // namespace layercake::stage_worker
