// The engine with a worker that the test plays: one stage, virtual time.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/virtual_loop.h"
#include "coordinator/engine_impl.h"
#include "coordinator/testing/fake_link.h"
#include "coordinator/testing/word_tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/errors.h"
#include "proto/protocol_version.h"

namespace layercake::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct RecordingSink final : RequestSink {
  void OnStarted(const v1::Started& event) override { started = event; }
  void OnPromptLogprobs(const v1::PromptLogprobs& event) override { prompt_logprobs = event; }
  void OnDelta(v1::Delta event) override {
    text += event.text();
    if (!reads) unread += event.text().size();
  }
  void OnFinished(const v1::Finished& event) override { finished = event; }
  void OnError(const absl::Status& event) override { error = event; }
  size_t pending_bytes() const override { return unread; }

  std::optional<v1::Started> started;
  std::optional<v1::PromptLogprobs> prompt_logprobs;
  std::string text;
  std::optional<v1::Finished> finished;
  absl::Status error;
  bool reads = true;
  size_t unread = 0;
};

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(tokenizer_, nullptr); }

  void StartEngine(int kv_blocks = 64, int max_queued = 8,
                   absl::Duration queue_timeout = absl::Seconds(60)) {
    EngineOptions options;
    options.chain.plan.stages = {{0, 1}};
    options.chain.plan.ring.set_plan_slot_bytes(65'536);
    options.scheduler.kv_blocks = kv_blocks;
    options.scheduler.block_tokens = 4;
    options.scheduler.max_queued = max_queued;
    options.scheduler.queue_timeout = queue_timeout;
    options.scheduler.max_sequences = 8;
    options.model_name = "words";
    options.max_pending_bytes = 20;
    engine_ = std::make_unique<EngineImpl>(
        options, *tokenizer_, loop_, loop_, loop_, random_,
        EngineImpl::Events{.on_changed = [] {},
                           .on_ready = [this](bool ready) { ready_ = ready; },
                           .on_stopped = [this](absl::Status status) { stopped_ = status; }});
    engine_->Start();
  }

  void Connect() {
    worker_ = std::make_shared<FakeWorkerEnd>();
    engine_->AddSession(std::make_unique<FakeLink>(worker_), "here");
    loop_.RunPosted();
    v1::FromWorker hello;
    hello.mutable_hello()->set_protocol_version(kProtocolVersion);
    hello.mutable_hello()->set_role(v1::WORKER_ROLE_STAGE);
    worker_->Say(hello);
    v1::FromWorker ready;
    ready.mutable_stage_ready()->set_term(1);
    ready.mutable_stage_ready()->set_epoch(1);
    worker_->Say(ready);
    worker_->received.clear();
    v1::FromWorker tested;
    tested.mutable_step_result()->set_term(1);
    tested.mutable_step_result()->set_epoch(1);
    tested.mutable_step_result()->set_step(1);
    tested.mutable_step_result()->add_results()->add_tokens();
    worker_->Say(tested);
    ASSERT_TRUE(ready_);
  }

  std::shared_ptr<RecordingSink> Ask(std::vector<int32_t> prompt, int max_tokens,
                                     std::vector<std::string> stop = {}, std::string id = "") {
    auto sink = std::make_shared<RecordingSink>();
    PreparedRequest request;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.stop = std::move(stop);
    request.request_id = std::move(id);
    engine_->Submit(std::move(request), sink);
    loop_.RunPosted();
    return sink;
  }

  // Answers the oldest unanswered plan: each sampled row gets `next` of the token before it.
  bool Step(const std::map<int32_t, int32_t>& next) {
    if (answered_ >= worker_->received.size()) return false;
    const v1::MicroBatchPlan plan = worker_->received[answered_++].plan();
    v1::FromWorker message;
    v1::StepResult& result = *message.mutable_step_result();
    result.set_term(plan.term());
    result.set_epoch(plan.epoch());
    result.set_step(plan.step());
    for (const v1::RowDescriptor& row : plan.rows()) {
      ++rows_;
      if (row.sample_bitmap().empty()) continue;
      v1::SequenceResult& one = *result.add_results();
      one.set_sequence(row.sequence());
      one.set_position(row.kv_position() + static_cast<uint32_t>(row.tokens_size()));
      one.add_tokens()->set_token(next.at(row.tokens(row.tokens_size() - 1)));
    }
    worker_->Say(message);
    loop_.RunPosted();
    return true;
  }
  void StepAll(const std::map<int32_t, int32_t>& next, int limit = 1000) {
    for (int i = 0; i < limit && Step(next); ++i) {
    }
  }

  // "The quick brown fox!", then the end.
  const std::map<int32_t, int32_t> sentence_ = {{0, 1}, {1, 2}, {2, 3}, {3, 6}, {6, 13}};

  base::VirtualLoop loop_;
  base::SeededRandom random_{1};
  std::unique_ptr<model::Tokenizer> tokenizer_ = MakeWordTokenizer();
  std::unique_ptr<EngineImpl> engine_;
  std::shared_ptr<FakeWorkerEnd> worker_;
  size_t answered_ = 0;
  int rows_ = 0;
  bool ready_ = false;
  std::optional<absl::Status> stopped_;
};

TEST_F(EngineTest, RefusesRequestsUntilTheChainServes) {
  StartEngine();
  EXPECT_EQ(ReasonOf(Ask({0}, 5)->error), ErrorReason::kNotReady);
}

TEST_F(EngineTest, StreamsUntilTheEndToken) {
  StartEngine();
  Connect();
  const auto sink = Ask({0}, 50);
  StepAll(sentence_);
  EXPECT_EQ(sink->started->prompt_tokens(), 1);
  EXPECT_EQ(sink->text, " quick brown fox!");
  ASSERT_TRUE(sink->finished);
  EXPECT_EQ(sink->finished->reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(sink->finished->matched_stop_token(), 13);
  EXPECT_EQ(sink->finished->usage().completion_tokens(), 5);
}

// CASES D1: nothing is computed after the match.
TEST_F(EngineTest, AStopStringEndsTheRequestAndItsWork) {
  StartEngine();
  Connect();
  const auto sink = Ask({0}, 50, {"own fox"});
  StepAll(sentence_);
  EXPECT_EQ(sink->text, " quick br");
  EXPECT_EQ(sink->finished->matched_stop(), "own fox");
  EXPECT_EQ(rows_, 3) << "' quick', ' brown', ' fox', and no row after";
  EXPECT_THAT(worker_->received.back().plan().ends(), ElementsAre(1u));
}

TEST_F(EngineTest, MaxTokensEndsWithLengthUnlessAStopEndsThere) {
  StartEngine();
  Connect();
  const auto cut = Ask({0}, 2);
  StepAll(sentence_);
  EXPECT_EQ(cut->text, " quick brown");
  EXPECT_EQ(cut->finished->reason(), v1::FINISH_REASON_LENGTH);
  const auto stopped = Ask({0}, 2, {"brown"});
  StepAll(sentence_);
  EXPECT_EQ(stopped->finished->reason(), v1::FINISH_REASON_STOP);
}

TEST_F(EngineTest, AbortIsIdempotentAndFreesTheBlocks) {
  StartEngine();
  Connect();
  const auto sink = Ask({0}, 50, {}, "mine");
  EXPECT_EQ(ReasonOf(Ask({0}, 5, {}, "mine")->error), ErrorReason::kRequestIdInUse);
  engine_->Abort({"mine", "unknown", "mine"});
  loop_.RunPosted();
  EXPECT_EQ(sink->finished->reason(), v1::FINISH_REASON_CANCELLED);
  StepAll(sentence_);
  v1::GetLoadsResponse loads;
  engine_->GetLoads([&](v1::GetLoadsResponse response) { loads = response; });
  loop_.RunPosted();
  EXPECT_EQ(loads.kv_blocks_used(), 0);
  EXPECT_EQ(loads.running(), 0);
}

TEST_F(EngineTest, ADroppedRequestGetsNoFurtherEvent) {
  StartEngine();
  Connect();
  const auto sink = Ask({0}, 50);
  engine_->Drop(sink);
  loop_.RunPosted();
  StepAll(sentence_);
  EXPECT_FALSE(sink->finished);
  EXPECT_TRUE(sink->error.ok());
}

TEST_F(EngineTest, AFullQueueSaysTryLater) {
  StartEngine(/*kv_blocks=*/2, /*max_queued=*/2);
  Connect();
  Ask({0, 1, 2, 3}, 4);
  Ask({0}, 4);
  Ask({0}, 4);
  EXPECT_EQ(ReasonOf(Ask({0}, 4)->error), ErrorReason::kQueueFull);
}

// CASES D4: more than the memory holds at once is queued, and everything ends.
TEST_F(EngineTest, OversubscribedMemoryQueuesAndEveryRequestEnds) {
  StartEngine(/*kv_blocks=*/4, /*max_queued=*/64);
  Connect();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 20; ++i) sinks.push_back(Ask({0, 0, 0}, 10));
  StepAll({{0, 1}, {1, 2}, {2, 3}, {3, 0}});
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->finished);
    EXPECT_EQ(sink->text, " quick brown foxThe quick brown foxThe quick brown");
  }
}

TEST_F(EngineTest, ANonFiniteValueEndsThatRequestNamingTheStage) {
  StartEngine();
  Connect();
  const auto bad = Ask({0}, 5);
  const auto good = Ask({1}, 1);
  v1::FromWorker message;
  v1::StepResult& result = *message.mutable_step_result();
  result.set_term(1);
  result.set_epoch(1);
  result.set_step(2);
  result.add_results()->set_sequence(1);
  result.mutable_results(0)->set_non_finite_stage(0);
  ++answered_;
  worker_->Say(message);
  EXPECT_EQ(ReasonOf(bad->error), ErrorReason::kNonFinite);
  EXPECT_THAT(bad->error.message(), HasSubstr("stage 0"));
  StepAll(sentence_);
  EXPECT_EQ(good->text, " brown");
}

TEST_F(EngineTest, AWorkersDeathEndsEveryRequestWithTheReason) {
  StartEngine();
  Connect();
  const auto sink = Ask({0}, 50);
  worker_->callbacks.on_closed(absl::UnavailableError("connection reset by peer"));
  EXPECT_EQ(ReasonOf(sink->error), ErrorReason::kChainFailed);
  EXPECT_THAT(sink->error.message(), HasSubstr("connection reset by peer"));
  ASSERT_TRUE(stopped_);
  EXPECT_FALSE(stopped_->ok());
  EXPECT_FALSE(ready_);
  EXPECT_EQ(ReasonOf(Ask({0}, 5)->error), ErrorReason::kChainFailed);
}

TEST_F(EngineTest, AReaderThatStandsStillIsPausedThenDropped) {
  StartEngine();
  Connect();
  const std::map<int32_t, int32_t> endless = {{0, 1}, {1, 2}, {2, 3}, {3, 0}};
  const auto slow = Ask({0}, 100'000);
  slow->reads = false;
  for (int i = 0; i < 100; ++i) Step(endless);
  EXPECT_LT(slow->unread, 40u) << "paused soon after 20 bytes";
  slow->unread = 0;
  loop_.Advance(absl::Milliseconds(60));
  EXPECT_TRUE(Step(endless)) << "it has read and goes on";
  for (int i = 0; i < 100; ++i) Step(endless);
  for (int i = 0; i < 40; ++i) {
    v1::FromWorker beat;
    beat.mutable_heartbeat();
    worker_->Say(beat);
    loop_.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(ReasonOf(slow->error), ErrorReason::kDeadline) << slow->error;
}

TEST_F(EngineTest, DrainsRunningRequestsWithinTheGrace) {
  StartEngine();
  Connect();
  const auto sink = Ask({0}, 50);
  engine_->Drain(absl::Seconds(5));
  EXPECT_EQ(ReasonOf(Ask({0}, 5)->error), ErrorReason::kShuttingDown);
  EXPECT_FALSE(stopped_);
  StepAll(sentence_);
  EXPECT_TRUE(sink->finished);
  ASSERT_TRUE(stopped_);
  EXPECT_TRUE(stopped_->ok());
}

TEST_F(EngineTest, EndsWhatTheGraceDoesNotSuffice) {
  StartEngine();
  Connect();
  const auto sink = Ask({0}, 50);
  engine_->Drain(absl::Seconds(3));
  loop_.Advance(absl::Seconds(4));
  EXPECT_EQ(ReasonOf(sink->error), ErrorReason::kShuttingDown);
  EXPECT_TRUE(stopped_);
}

TEST_F(EngineTest, SeveralChoicesEndOneByOneAndTheRequestWithTheLast) {
  StartEngine();
  Connect();
  struct ChoiceSink final : RequestSink {
    void OnStarted(const v1::Started&) override { ++started; }
    void OnPromptLogprobs(const v1::PromptLogprobs&) override {}
    void OnDelta(v1::Delta delta) override { text[delta.index()] += delta.text(); }
    void OnFinished(const v1::Finished& event) override { finished.push_back(event); }
    void OnError(const absl::Status& status) override { error = status; }
    size_t pending_bytes() const override { return 0; }
    int started = 0;
    std::map<int, std::string> text;
    std::vector<v1::Finished> finished;
    absl::Status error;
  };
  auto sink = std::make_shared<ChoiceSink>();
  PreparedRequest request;
  request.prompt = {0, 1, 2, 0, 1, 2, 0, 1, 2};
  request.max_tokens = 2;
  request.n = 3;
  request.sampling.set_seed(77);
  engine_->Submit(std::move(request), sink);
  loop_.RunPosted();
  StepAll(sentence_);
  EXPECT_EQ(sink->started, 1);
  EXPECT_TRUE(sink->error.ok()) << sink->error;
  ASSERT_EQ(sink->finished.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(sink->text[i], " fox!");
    EXPECT_EQ(sink->finished[static_cast<size_t>(i)].usage().completion_tokens(), 2);
  }
  // Eight of the prompt's nine tokens lie in full blocks: two choices found them there.
  engine_->GetLoads([](v1::GetLoadsResponse loads) {
    EXPECT_EQ(loads.cached_prompt_tokens_total(), 16u);
    EXPECT_EQ(loads.kv_blocks_used(), 0);
  });
  loop_.RunPosted();
  std::map<uint64_t, uint64_t> seeds;
  for (const v1::ToWorker& message : worker_->received) {
    for (const v1::SequenceBegin& begin : message.plan().begins()) {
      seeds[begin.sequence()] = begin.sampling().seed();
      EXPECT_EQ(begin.history_size(), begin.sequence() == 1 ? 0 : 8);
    }
  }
  ASSERT_EQ(seeds.size(), 3u);
  EXPECT_EQ(seeds[1], 77u);
  EXPECT_NE(seeds[2], seeds[3]);
}

TEST_F(EngineTest, ARequestThatIsNotAdmittedInTimeIsToldToTryLater) {
  StartEngine(/*kv_blocks=*/4, /*max_queued=*/8, absl::Seconds(2));
  Connect();
  const auto first = Ask({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 1);
  const auto second = Ask({1, 0, 0, 0, 0, 0, 0, 0, 1}, 1);
  loop_.Advance(absl::Seconds(1.9));
  EXPECT_TRUE(second->error.ok());
  loop_.Advance(absl::Seconds(0.2));
  EXPECT_TRUE(first->error.ok());
  EXPECT_EQ(ReasonOf(second->error), ErrorReason::kQueueFull);
  EXPECT_THAT(std::string(second->error.message()), HasSubstr("overloaded"));
}

}  // namespace
}  // namespace layercake::coordinator
