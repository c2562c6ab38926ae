#include "coordinator/chain.h"

#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "base/virtual_loop.h"
#include "coordinator/testing/fake_link.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/protocol_version.h"

namespace layercake::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ChainTest : public ::testing::Test {
 protected:
  void StartChain(int stages, ChainOptions options = {}) {
    for (int i = 0; i < stages; ++i) {
      options.plan.stages.push_back({static_cast<uint32_t>(i), static_cast<uint32_t>(i) + 1});
    }
    options.plan.ring.set_plan_slot_bytes(65'536);
    chain_ = std::make_unique<Chain>(
        options, loop_, loop_, loop_,
        Chain::Events{.on_serving = [this] { serving_ = true; },
                      .on_step_result =
                          [this](v1::StepResult result) { results_.push_back(std::move(result)); },
                      .on_failed = [this](absl::Status status) { failed_ = status; },
                      .on_changed = [] {}});
    chain_->Start();
  }

  std::shared_ptr<FakeWorkerEnd> Dial(std::optional<int> stage = std::nullopt,
                                      uint32_t version = kProtocolVersion, bool continues = false,
                                      const std::string& placement = {}) {
    auto end = std::make_shared<FakeWorkerEnd>();
    chain_->AddSession(std::make_unique<FakeLink>(end), "10.0.0.9:1");
    v1::FromWorker message;
    v1::Hello& hello = *message.mutable_hello();
    hello.set_protocol_version(version);
    hello.set_software_version("9.9.9");
    hello.set_role(v1::WORKER_ROLE_STAGE);
    hello.set_device("cpu");
    hello.mutable_host()->set_host_name("box");
    hello.mutable_host()->set_pid(4711);
    hello.set_placement(placement);
    if (stage) hello.set_preferred_stage(*stage);
    if (continues) hello.add_capabilities(v1::CAPABILITY_AUTO_CONTINUE);
    end->Say(message);
    return end;
  }

  static v1::FromWorker Ready() {
    v1::FromWorker message;
    message.mutable_stage_ready()->set_term(1);
    message.mutable_stage_ready()->set_epoch(1);
    return message;
  }
  static v1::FromWorker ChannelUp(v1::ChannelReady::End end) {
    v1::FromWorker message;
    message.mutable_channel_ready()->set_term(1);
    message.mutable_channel_ready()->set_epoch(1);
    message.mutable_channel_ready()->set_end(end);
    return message;
  }
  static v1::FromWorker Result(uint64_t step, uint64_t sequence, int tokens) {
    v1::FromWorker message;
    v1::StepResult& result = *message.mutable_step_result();
    result.set_term(1);
    result.set_epoch(1);
    result.set_step(step);
    v1::SequenceResult& row = *result.add_results();
    row.set_sequence(sequence);
    for (int i = 0; i < tokens; ++i) row.add_tokens()->set_token(7);
    return message;
  }

  // What a stage says whose channel has ended.
  static v1::FromWorker Misses(const std::string& what) {
    v1::FromWorker message;
    message.mutable_failure()->set_code(static_cast<int32_t>(absl::StatusCode::kUnavailable));
    message.mutable_failure()->set_message(what);
    return message;
  }

  // Two stages, serving.
  void Serve() {
    StartChain(2);
    first_ = Dial();
    last_ = Dial();
    first_->Say(Ready());
    last_->Say(Ready());
    first_->Say(ChannelUp(v1::ChannelReady::END_SENDER));
    last_->Say(ChannelUp(v1::ChannelReady::END_RECEIVER));
    last_->Say(Result(1, 0, 1));
    ASSERT_TRUE(serving_);
  }

  void Beat(const std::shared_ptr<FakeWorkerEnd>& end, uint64_t plans, uint64_t activations,
            uint64_t begun, uint64_t done) {
    v1::FromWorker message;
    v1::StageCounters& counters = *message.mutable_heartbeat()->mutable_counters();
    counters.set_plans_seen(plans);
    counters.set_activations_seen(activations);
    counters.set_steps_begun(begun);
    counters.set_steps_done(done);
    message.mutable_heartbeat()->set_waiting_for("nothing in particular");
    end->Say(message);
  }

  base::VirtualLoop loop_;
  std::unique_ptr<Chain> chain_;
  std::shared_ptr<FakeWorkerEnd> first_, last_;
  bool serving_ = false;
  absl::Status failed_;
  std::vector<v1::StepResult> results_;
};

TEST_F(ChainTest, AssignsEveryStageOnceAllWorkersAreThere) {
  StartChain(2);
  const auto late = Dial(1);
  EXPECT_EQ(late->Last(v1::ToWorker::kAssignment), nullptr);
  const auto first = Dial();
  ASSERT_NE(late->Last(v1::ToWorker::kAssignment), nullptr);
  EXPECT_EQ(late->Last(v1::ToWorker::kAssignment)->assignment().stage(), 1);
  EXPECT_EQ(first->Last(v1::ToWorker::kAssignment)->assignment().stage(), 0);
}

TEST_F(ChainTest, RefusesAnotherProtocolVersionNamingBoth) {
  StartChain(1);
  const auto worker = Dial(std::nullopt, 77);
  ASSERT_NE(worker->Last(v1::ToWorker::kRefused), nullptr);
  EXPECT_THAT(worker->Last(v1::ToWorker::kRefused)->refused().reason(),
              AllOf(HasSubstr("version 77"), HasSubstr(absl::StrCat(kProtocolVersion))));
  EXPECT_TRUE(worker->closed);
  EXPECT_TRUE(failed_.ok()) << "the chain still waits for a good one";
}

TEST_F(ChainTest, RefusesASecondWorkerForAStageAndOneTooMany) {
  StartChain(2);
  Dial(1);
  EXPECT_THAT(Dial(1)->Last(v1::ToWorker::kRefused)->refused().reason(), HasSubstr("belongs to"));
  EXPECT_THAT(Dial(5)->Last(v1::ToWorker::kRefused)->refused().reason(), HasSubstr("stage 5"));
  Dial();
  EXPECT_THAT(Dial()->Last(v1::ToWorker::kRefused)->refused().reason(), HasSubstr("all 2 stages"));
}

TEST_F(ChainTest, RefusesAMessageOutOfOrderWithoutHarmToOthers) {
  StartChain(2);
  const auto worker = Dial(1);
  v1::FromWorker offer;
  offer.mutable_channel_offer()->set_receiver_stage(1);
  worker->Say(offer);
  EXPECT_TRUE(worker->closed);
  EXPECT_TRUE(failed_.ok());
  EXPECT_NE(Dial(1)->Last(v1::ToWorker::kWelcome), nullptr) << "the stage is free again";
}

TEST_F(ChainTest, CarriesTheOfferUpstreamAndServesAfterTheTest) {
  StartChain(2);
  const auto first = Dial();
  const auto last = Dial();
  v1::FromWorker offer;
  offer.mutable_channel_offer()->set_term(1);
  offer.mutable_channel_offer()->set_epoch(1);
  offer.mutable_channel_offer()->set_receiver_stage(1);
  last->Say(offer);
  ASSERT_NE(first->Last(v1::ToWorker::kConnectDownstream), nullptr);
  first->Say(Ready());
  last->Say(Ready());
  EXPECT_EQ(first->Last(v1::ToWorker::kPlan), nullptr);
  first->Say(ChannelUp(v1::ChannelReady::END_SENDER));
  last->Say(ChannelUp(v1::ChannelReady::END_RECEIVER));
  ASSERT_NE(first->Last(v1::ToWorker::kPlan), nullptr);
  EXPECT_EQ(first->Last(v1::ToWorker::kPlan)->plan().step(), 1u);
  EXPECT_FALSE(serving_);
  last->Say(Result(1, 0, 1));
  EXPECT_TRUE(serving_);
}

// Prompts that no client waits for: of growing sizes, whole, each in the first blocks of the cache.
TEST_F(ChainTest, WarmsUpWithGrowingPromptsBeforeItServes) {
  ChainOptions options;
  options.test_token = 3;
  options.warm_up = absl::Seconds(1);
  options.plan.max_rows = 100;
  options.plan.context_tokens = 64;
  options.plan.kv_blocks = 2;
  options.plan.kv_block_tokens = 20;
  StartChain(1, options);
  const auto worker = Dial();
  worker->Say(Ready());
  uint64_t step = 0;
  for (const int rows : {1, 1, 8, 16, 32, 40}) {
    ASSERT_NE(worker->Last(v1::ToWorker::kPlan), nullptr);
    const v1::MicroBatchPlan& plan = worker->Last(v1::ToWorker::kPlan)->plan();
    EXPECT_EQ(plan.step(), ++step);
    ASSERT_EQ(plan.rows_size(), 1);
    const v1::RowDescriptor& row = plan.rows(0);
    EXPECT_EQ(row.tokens_size(), rows);
    EXPECT_EQ(row.tokens(rows - 1), 3);
    EXPECT_EQ(row.known_tokens(), static_cast<uint32_t>(rows));
    EXPECT_EQ(plan.begins(0).prompt_tokens(), static_cast<uint32_t>(rows));
    EXPECT_EQ(row.blocks_size(), (rows + 19) / 20);
    int sampled = 0;
    for (const char byte : row.sample_bitmap())
      sampled += std::popcount(static_cast<uint8_t>(byte));
    EXPECT_EQ(sampled, 1);
    EXPECT_NE(row.sample_bitmap()[static_cast<size_t>(rows - 1) / 8] & (1 << ((rows - 1) % 8)), 0);
    EXPECT_FALSE(serving_);
    loop_.Advance(absl::Milliseconds(2));
    worker->Say(Result(step, 0, 1));
  }
  EXPECT_TRUE(serving_);
  EXPECT_TRUE(results_.empty());
}

TEST_F(ChainTest, AStepOfTheWarmUpThatFindsANonFiniteValueEndsTheStart) {
  ChainOptions options;
  options.warm_up = absl::Seconds(1);
  options.plan.max_rows = options.plan.context_tokens = options.plan.kv_blocks = 16;
  StartChain(1, options);
  const auto worker = Dial();
  worker->Say(Ready());
  worker->Say(Result(1, 0, 1));
  ASSERT_EQ(worker->Last(v1::ToWorker::kPlan)->plan().step(), 2u);
  v1::FromWorker bad = Result(2, 0, 0);
  bad.mutable_step_result()->mutable_results(0)->set_non_finite_stage(0);
  worker->Say(bad);
  EXPECT_FALSE(serving_);
  EXPECT_FALSE(failed_.ok());
}

TEST_F(ChainTest, CarriesTheOfferOfTheWayBackToTheLastStage) {
  StartChain(3);
  std::vector<std::shared_ptr<FakeWorkerEnd>> ends;
  for (int i = 0; i < 3; ++i) ends.push_back(Dial(std::nullopt, kProtocolVersion, true));
  EXPECT_TRUE(chain_->all_offer(v1::CAPABILITY_AUTO_CONTINUE));
  EXPECT_FALSE(chain_->all_offer(v1::CAPABILITY_TOKEN_MASK));
  v1::FromWorker offer;
  offer.mutable_channel_offer()->set_term(1);
  offer.mutable_channel_offer()->set_epoch(1);
  offer.mutable_channel_offer()->set_receiver_stage(0);
  offer.mutable_channel_offer()->add_feedback_kinds()->set_kind("local");
  ends[0]->Say(offer);
  EXPECT_EQ(ends[1]->Last(v1::ToWorker::kConnectDownstream), nullptr);
  ASSERT_NE(ends[2]->Last(v1::ToWorker::kConnectDownstream), nullptr);
  for (int i = 0; i < 3; ++i) {
    ends[static_cast<size_t>(i)]->Say(Ready());
    if (i < 2) ends[static_cast<size_t>(i)]->Say(ChannelUp(v1::ChannelReady::END_SENDER));
    if (i > 0) ends[static_cast<size_t>(i)]->Say(ChannelUp(v1::ChannelReady::END_RECEIVER));
  }
  ends[2]->Say(ChannelUp(v1::ChannelReady::END_FEEDBACK_SENDER));
  EXPECT_EQ(ends[0]->Last(v1::ToWorker::kPlan), nullptr) << "one end of the way back is missing";
  ends[0]->Say(ChannelUp(v1::ChannelReady::END_FEEDBACK_RECEIVER));
  v1::GetStatusResponse status;
  chain_->FillStatus(status);
  EXPECT_THAT(status.stages(0).upstream_transport(), HasSubstr("tokens of stage 2"));
  EXPECT_NE(ends[0]->Last(v1::ToWorker::kPlan), nullptr);
  EXPECT_TRUE(failed_.ok()) << failed_;
}

TEST_F(ChainTest, NamesTheWayBackThatDoesNotComeUp) {
  StartChain(2);
  first_ = Dial(std::nullopt, kProtocolVersion, true);
  last_ = Dial(std::nullopt, kProtocolVersion, true);
  first_->Say(Ready());
  last_->Say(Ready());
  first_->Say(ChannelUp(v1::ChannelReady::END_SENDER));
  last_->Say(ChannelUp(v1::ChannelReady::END_RECEIVER));
  for (int i = 0; i < 40 && failed_.ok(); ++i) {
    Beat(first_, 0, 0, 0, 0);
    Beat(last_, 0, 0, 0, 0);
    loop_.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(failed_.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(failed_.message(), HasSubstr("the feedback channel from stage 1 to stage 0 (box"));
}

TEST_F(ChainTest, RefusesAWayBackWhereNoneCanBe) {
  for (const auto end :
       {v1::ChannelReady::END_FEEDBACK_SENDER, v1::ChannelReady::END_FEEDBACK_RECEIVER}) {
    StartChain(1);
    failed_ = absl::OkStatus();
    Dial(std::nullopt, kProtocolVersion, true)->Say(ChannelUp(end));
    EXPECT_EQ(failed_.code(), absl::StatusCode::kInvalidArgument) << failed_;
  }
  StartChain(1);
  failed_ = absl::OkStatus();
  v1::FromWorker offer;
  offer.mutable_channel_offer()->set_term(1);
  offer.mutable_channel_offer()->set_epoch(1);
  offer.mutable_channel_offer()->add_feedback_kinds()->set_kind("local");
  Dial()->Say(offer);
  EXPECT_EQ(failed_.code(), absl::StatusCode::kInvalidArgument) << failed_;
}

TEST_F(ChainTest, RunsAheadOnlyWhenEveryWorkerCan) {
  StartChain(2);
  Dial(std::nullopt, kProtocolVersion, true);
  EXPECT_FALSE(chain_->all_offer(v1::CAPABILITY_AUTO_CONTINUE)) << "one is not there yet";
  Dial();
  EXPECT_FALSE(chain_->all_offer(v1::CAPABILITY_AUTO_CONTINUE));
}

TEST_F(ChainTest, ShowsWhatWorkersSayOfThemselves) {
  StartChain(1);
  const auto worker = Dial(std::nullopt, kProtocolVersion, false, "threads on CPUs 32-63");
  v1::FromWorker ready = Ready();
  ready.mutable_stage_ready()->set_copy_gigabytes_per_second(4300);
  worker->Say(ready);
  v1::FromWorker beat;
  v1::StageCounters& counters = *beat.mutable_heartbeat()->mutable_counters();
  counters.set_hops(7);
  counters.set_hop_bytes(7000);
  counters.set_hop_seconds(0.5);
  worker->Say(beat);
  v1::GetStatusResponse status;
  chain_->FillStatus(status);
  ASSERT_EQ(status.stages_size(), 1);
  EXPECT_EQ(status.stages(0).placement(), "threads on CPUs 32-63");
  EXPECT_EQ(status.stages(0).copy_gigabytes_per_second(), 4300);
  EXPECT_EQ(status.stages(0).hops(), 7u);
  EXPECT_EQ(status.stages(0).hop_bytes(), 7000u);
  EXPECT_EQ(status.stages(0).hop_seconds(), 0.5);
}

TEST_F(ChainTest, FailsWhenTheTestFindsANonFiniteValue) {
  StartChain(1);
  const auto only = Dial();
  only->Say(Ready());
  v1::FromWorker result = Result(1, 0, 0);
  result.mutable_step_result()->mutable_results(0)->set_non_finite_stage(0);
  only->Say(result);
  EXPECT_THAT(failed_.message(), HasSubstr("NaN or infinity, first in stage 0"));
  EXPECT_FALSE(serving_);
}

TEST_F(ChainTest, NamesTheWorkerWhoseSessionEnds) {
  Serve();
  last_->callbacks.on_closed(absl::UnavailableError("connection reset"));
  EXPECT_EQ(failed_.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(failed_.message(),
              AllOf(HasSubstr("stage 1 (box, pid 4711, cpu)"), HasSubstr("connection reset")));
  EXPECT_NE(first_->Last(v1::ToWorker::kShutdown), nullptr) << "the others are told";
}

// A worker that is killed closes its channels and its session at the same time, and a neighbour may
// be heard first.
TEST_F(ChainTest, NamesTheStageThatIsGoneAndNotTheNeighbourThatMissesIt) {
  Serve();
  last_->Say(Misses("stage 1: the feedback channel with stage 0: stage 0 closed its end"));
  EXPECT_TRUE(failed_.ok()) << failed_;
  first_->callbacks.on_closed(absl::UnavailableError("connection reset"));
  EXPECT_EQ(failed_.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(failed_.message(), AllOf(HasSubstr("stage 0 (box"),
                                       HasSubstr("is gone: connection reset; the end of its log")));
}

TEST_F(ChainTest, NamesTheStageThatIsGoneBetweenTwoThatMissIt) {
  StartChain(3);
  const std::vector<std::shared_ptr<FakeWorkerEnd>> ends = {Dial(), Dial(), Dial()};
  for (const size_t stage : {0, 2}) {
    ends[stage]->Say(Misses("stage 1 closed its end"));
    ends[stage]->callbacks.on_closed(absl::UnavailableError("it had said why"));
  }
  EXPECT_TRUE(failed_.ok()) << failed_;
  v1::FromWorker last_words;
  last_words.mutable_failure()->set_code(static_cast<int32_t>(absl::StatusCode::kInternal));
  last_words.mutable_failure()->set_message("illegal address");
  ends[1]->Say(last_words);
  EXPECT_THAT(failed_.message(), AllOf(HasSubstr("stage 1 (box"), HasSubstr("illegal address")));
}

TEST_F(ChainTest, BelievesTheNeighbourWhenNobodyElseIsHeard) {
  Serve();
  last_->Say(Misses("stage 1: the channel with stage 0: no answer"));
  loop_.Advance(absl::Seconds(2));
  EXPECT_THAT(failed_.message(), AllOf(HasSubstr("stage 1 (box"), HasSubstr("no answer")));
}

TEST_F(ChainTest, NamesTheStageThatAPlanCannotBeSentTo) {
  Serve();
  first_->broken = true;
  EXPECT_THAT(chain_->SendPlan({}).status().ToString(),
              AllOf(HasSubstr("stage 0 (box"), HasSubstr("the wire is cut")));
}

TEST_F(ChainTest, FindsASilentWorkerWithinItsLease) {
  Serve();
  for (int i = 0; i < 7 && failed_.ok(); ++i) {
    loop_.Advance(absl::Seconds(1));
    Beat(first_, 1, 0, 1, 1);
  }
  EXPECT_THAT(failed_.message(), AllOf(HasSubstr("stage 1"), HasSubstr("silent")));
}

TEST_F(ChainTest, JudgesNobodyAfterAStallOfItsOwn) {
  Serve();
  loop_.Stall(absl::Seconds(60));
  loop_.Advance(absl::Seconds(1));
  EXPECT_TRUE(failed_.ok()) << failed_;
  for (int i = 0; i < 10; ++i) {
    Beat(first_, 1, 0, 1, 1);
    Beat(last_, 1, 1, 1, 1);
    loop_.Advance(absl::Seconds(1));
  }
  EXPECT_TRUE(failed_.ok()) << failed_;
}

TEST_F(ChainTest, BlamesByCountersWhenAStepDoesNotComeBack) {
  Serve();
  ASSERT_TRUE(chain_->SendPlan({}).ok());
  for (int i = 0; i < 70 && failed_.ok(); ++i) {
    Beat(first_, 2, 0, 2, 2);
    Beat(last_, 2, 2, 2, 1);
    loop_.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(failed_.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(failed_.message(), AllOf(HasSubstr("stage 1 began 2 steps and finished 1"),
                                       HasSubstr("nothing in particular")));
}

TEST_F(ChainTest, RefusesResultsOutOfOrderAndOfAnotherEpoch) {
  Serve();
  ASSERT_EQ(*chain_->SendPlan({}), 2u);
  v1::FromWorker stale = Result(2, 1, 1);
  stale.mutable_step_result()->set_epoch(9);
  last_->Say(stale);
  EXPECT_THAT(failed_.message(), HasSubstr("epoch 9"));
  EXPECT_TRUE(results_.empty());
}

TEST_F(ChainTest, SaysWhichStageNobodyCameFor) {
  StartChain(3);
  const auto worker = Dial(1);
  for (int i = 0; i < 130 && failed_.ok(); ++i) {
    Beat(worker, 0, 0, 0, 0);
    loop_.Advance(absl::Seconds(1));
  }
  EXPECT_THAT(failed_.message(), HasSubstr("stage 0, 2"));
}

TEST_F(ChainTest, EndsALoadThatMakesNoProgress) {
  StartChain(1);
  const auto worker = Dial();
  v1::FromWorker progress;
  progress.mutable_load_progress()->set_loaded_bytes(5);
  progress.mutable_load_progress()->set_total_bytes(10);
  worker->Say(progress);
  for (int i = 0; i < 40 && failed_.ok(); ++i) {
    Beat(worker, 0, 0, 0, 0);
    worker->Say(progress);
    loop_.Advance(absl::Seconds(1));
  }
  EXPECT_THAT(failed_.message(), HasSubstr("5 of 10 bytes"));
}

TEST_F(ChainTest, LetsALoadedStageWaitForASlowerNeighbourButNotForEver) {
  StartChain(2);
  const auto quick = Dial();
  const auto slow = Dial();
  v1::FromWorker progress;
  progress.mutable_load_progress()->set_total_bytes(1000);
  progress.mutable_load_progress()->set_loaded_bytes(1000);
  quick->Say(progress);
  for (uint64_t second = 1; second <= 100; ++second) {
    Beat(quick, 0, 0, 0, 0);
    Beat(slow, 0, 0, 0, 0);
    progress.mutable_load_progress()->set_loaded_bytes(10 * second);
    slow->Say(progress);
    loop_.Advance(absl::Seconds(1));
  }
  EXPECT_TRUE(failed_.ok()) << failed_;
  slow->Say(Ready());
  for (int i = 0; i < 40 && failed_.ok(); ++i) {
    Beat(quick, 0, 0, 0, 0);
    Beat(slow, 0, 0, 0, 0);
    loop_.Advance(absl::Seconds(1));
  }
  EXPECT_THAT(failed_.message(), AllOf(HasSubstr("stage 0"), HasSubstr("was not ready")));
}

TEST_F(ChainTest, ShutsDownByTellingEveryWorker) {
  Serve();
  chain_->Shutdown("bye", absl::Seconds(1));
  EXPECT_NE(first_->Last(v1::ToWorker::kShutdown), nullptr);
  EXPECT_TRUE(last_->closed);
  EXPECT_EQ(chain_->SendPlan({}).status().code(), absl::StatusCode::kFailedPrecondition);
  loop_.Advance(absl::Seconds(100));
  EXPECT_TRUE(failed_.ok());
}

}  // namespace
}  // namespace layercake::coordinator
