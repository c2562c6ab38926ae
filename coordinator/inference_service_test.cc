#include "coordinator/inference_service.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "coordinator/control_service.h"
#include "coordinator/grpc_server.h"
#include "coordinator/testing/fake_engine.h"
#include "coordinator/testing/preparer_fixture.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "proto/errors.h"
#include "proto/protocol_version.h"
#include "proto/rpc_status.h"

namespace layercake::coordinator {
namespace {

using ::testing::ElementsAre;
using testing::FakeEngine;

v1::Delta DeltaOf(int32_t token, std::string text) {
  v1::Delta delta;
  delta.add_token_ids(token);
  delta.set_text(std::move(text));
  return delta;
}

v1::Finished FinishedOf(v1::FinishReason reason) {
  v1::Finished finished;
  finished.set_reason(reason);
  return finished;
}

class InferenceServiceTest : public ::testing::Test {
 protected:
  void Start(const InferenceServiceOptions& options = {}, bool serve = true) {
    inference_ = std::make_unique<InferenceService>(options);
    if (serve) inference_->Serve(engine_, *preparer_);
    servers_ = GrpcServers::Start({}, *inference_, control_).value();
    channel_ = MakeChannel({servers_->client_address(), {}, kMaxInferenceRequestBytes}).value();
    stub_ = v1::Inference::NewStub(channel_);
  }

  static v1::GenerateRequest TextRequest() {
    v1::GenerateRequest request;
    request.set_text("Hi");
    return request;
  }

  // Starts a stream and returns what reached the engine.
  FakeEngine::Submitted Generate(grpc::ClientContext* context,
                                 const v1::GenerateRequest& request = TextRequest()) {
    reader_ = stub_->Generate(context, request);
    return engine_.WaitForSubmit();
  }

  absl::Status StatusOfGenerate(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    const auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse response;
    EXPECT_FALSE(reader->Read(&response));
    return FromGrpcStatus(reader->Finish());
  }

  void TearDown() override {
    if (servers_ != nullptr) servers_->Shutdown(absl::Seconds(1));
  }

  FakeEngine engine_;
  testing::PreparerFixture preparer_;
  std::unique_ptr<InferenceService> inference_;
  ControlService control_;
  std::unique_ptr<GrpcServers> servers_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
};

TEST_F(InferenceServiceTest, StreamsStartedDeltasAndFinishedInOrder) {
  Start();
  grpc::ClientContext context;
  v1::GenerateRequest request = TextRequest();
  request.set_request_id("mine");
  const auto [prepared, sink] = Generate(&context, request);
  ASSERT_NE(sink, nullptr);
  EXPECT_EQ(prepared.request_id, "mine");
  EXPECT_THAT(prepared.client, ::testing::StartsWith("ipv4:127.0.0.1:"));
  v1::Started started;
  started.set_request_id("mine");
  sink->OnStarted(started);
  v1::GenerateResponse response;
  ASSERT_TRUE(reader_->Read(&response));
  EXPECT_EQ(response.started().request_id(), "mine");
  for (int i = 0; i < 20; ++i) {
    sink->OnDelta(DeltaOf(i, absl::StrCat(i, " ")));
    ASSERT_TRUE(reader_->Read(&response)) << "a reader that keeps up gets each token at once";
    EXPECT_THAT(response.delta().token_ids(), ElementsAre(i));
    EXPECT_EQ(response.delta().text(), absl::StrCat(i, " "));
  }
  sink->OnFinished(FinishedOf(v1::FINISH_REASON_STOP));
  ASSERT_TRUE(reader_->Read(&response));
  EXPECT_EQ(response.finished().reason(), v1::FINISH_REASON_STOP);
  EXPECT_FALSE(reader_->Read(&response));
  EXPECT_TRUE(reader_->Finish().ok());
  // Too late, and harmless.
  sink->OnDelta(DeltaOf(1, "x"));
  sink->OnError(MakeError(ErrorReason::kInternal, "late"));
}

TEST_F(InferenceServiceTest, ASlowReaderGetsFewerDeltasAndEveryToken) {
  Start({.max_pending_bytes = size_t{64} << 20});
  grpc::ClientContext context;
  const auto [prepared, sink] = Generate(&context);
  ASSERT_NE(sink, nullptr);
  // How much the transport takes before it makes the writer wait is its own affair.
  constexpr int kLeast = 20'000;
  constexpr int kMost = 600'000;
  std::string expected_text;
  int tokens = 0;
  bool waited = false;
  for (; tokens < kLeast || (tokens < kMost && !waited); ++tokens) {
    const int i = tokens;
    const std::string text = absl::StrCat("token ", i, std::string(40, '.'));
    expected_text += text;
    v1::Delta delta = DeltaOf(i, text);
    delta.add_logprobs()->set_token(i);
    sink->OnDelta(std::move(delta));
    waited = waited || sink->pending_bytes() > 0;
  }
  EXPECT_TRUE(waited) << "nobody read";
  sink->OnFinished(FinishedOf(v1::FINISH_REASON_LENGTH));
  std::string text;
  int32_t next = 0;
  int responses = 0;
  bool finished = false;
  v1::GenerateResponse response;
  while (reader_->Read(&response)) {
    ++responses;
    EXPECT_FALSE(finished);
    EXPECT_LE(response.ByteSizeLong(), static_cast<size_t>(kMaxInferenceResponseBytes));
    finished = response.has_finished();
    if (finished) continue;
    ASSERT_EQ(response.delta().token_ids_size(), response.delta().logprobs_size());
    for (int i = 0; i < response.delta().token_ids_size(); ++i) {
      ASSERT_EQ(response.delta().token_ids(i), next);
      ASSERT_EQ(response.delta().logprobs(i).token(), next++);
    }
    text += response.delta().text();
  }
  EXPECT_TRUE(reader_->Finish().ok());
  EXPECT_TRUE(finished);
  EXPECT_EQ(next, tokens);
  EXPECT_EQ(text, expected_text);
  EXPECT_LT(responses, tokens) << "waiting deltas were not merged";
  EXPECT_EQ(sink->pending_bytes(), 0u);
}

TEST_F(InferenceServiceTest, ChoicesAreNotMixedWhenDeltasAreMerged) {
  Start();
  grpc::ClientContext context;
  const auto [prepared, sink] = Generate(&context);
  ASSERT_NE(sink, nullptr);
  for (int i = 0; i < 2000; ++i) {
    v1::Delta delta = DeltaOf(i / 2 % 2, "x");
    delta.set_index(i / 2 % 2);
    sink->OnDelta(std::move(delta));
  }
  sink->OnFinished(FinishedOf(v1::FINISH_REASON_STOP));
  v1::GenerateResponse response;
  int tokens = 0;
  while (reader_->Read(&response)) {
    for (const int32_t token : response.delta().token_ids()) {
      EXPECT_EQ(token, response.delta().index());
      ++tokens;
    }
  }
  EXPECT_TRUE(reader_->Finish().ok());
  EXPECT_EQ(tokens, 2000);
}

TEST_F(InferenceServiceTest, TheCallEndsWithTheLastOfItsChoices) {
  Start();
  grpc::ClientContext context;
  v1::GenerateRequest request;
  request.set_text("Hi");
  request.set_n(2);
  const auto [prepared, sink] = Generate(&context, request);
  ASSERT_NE(sink, nullptr);
  EXPECT_EQ(prepared.n, 2);
  for (const int index : {1, 0}) {
    v1::Finished finished = FinishedOf(v1::FINISH_REASON_STOP);
    finished.set_index(index);
    sink->OnFinished(finished);
    if (index == 0) break;
    v1::Delta delta = DeltaOf(5, "still");
    delta.set_index(0);
    sink->OnDelta(std::move(delta));
  }
  std::vector<int> ended;
  bool still = false;
  v1::GenerateResponse response;
  while (reader_->Read(&response)) {
    if (response.has_finished()) ended.push_back(response.finished().index());
    still |= response.delta().text() == "still";
  }
  EXPECT_TRUE(reader_->Finish().ok());
  EXPECT_EQ(ended, (std::vector<int>{1, 0}));
  EXPECT_TRUE(still);
}

TEST_F(InferenceServiceTest, CutsOffAClientThatDoesNotReadAndTellsTheEngine) {
  Start({.max_pending_bytes = 1 << 20});
  grpc::ClientContext context;
  const auto [prepared, sink] = Generate(&context);
  ASSERT_NE(sink, nullptr);
  size_t highest = 0;
  for (int i = 0; i < 2000; ++i) {
    sink->OnDelta(DeltaOf(i, std::string(10'000, 'x')));
    highest = std::max(highest, sink->pending_bytes());
  }
  EXPECT_LE(highest, size_t{1'100'000});
  EXPECT_TRUE(engine_.WaitForDrop(sink));
  v1::GenerateResponse response;
  while (reader_->Read(&response)) {
  }
  EXPECT_EQ(reader_->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(InferenceServiceTest, ACancelInTheMiddleDropsTheRequest) {
  Start();
  grpc::ClientContext context;
  const auto [prepared, sink] = Generate(&context);
  ASSERT_NE(sink, nullptr);
  sink->OnDelta(DeltaOf(1, "one"));
  v1::GenerateResponse response;
  ASSERT_TRUE(reader_->Read(&response));
  context.TryCancel();
  EXPECT_TRUE(engine_.WaitForDrop(sink));
  for (int i = 0; i < 100; ++i) sink->OnDelta(DeltaOf(2, "after"));
  EXPECT_EQ(reader_->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(InferenceServiceTest, TheClientsDeadlineDropsTheRequest) {
  Start();
  grpc::ClientContext context;
  context.set_deadline(gpr_time_from_millis(1000, GPR_TIMESPAN));
  const auto [prepared, sink] = Generate(&context);
  ASSERT_NE(sink, nullptr);
  v1::GenerateResponse response;
  EXPECT_FALSE(reader_->Read(&response));
  EXPECT_EQ(reader_->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(engine_.WaitForDrop(sink));
}

TEST_F(InferenceServiceTest, CancelAndFinishMayRace) {
  Start();
  for (int i = 0; i < 100; ++i) {
    grpc::ClientContext context;
    const FakeEngine::Submitted submitted = Generate(&context);
    ASSERT_NE(submitted.sink, nullptr);
    std::thread engine([&submitted] {
      for (int j = 0; j < 5; ++j) submitted.sink->OnDelta(DeltaOf(j, "x"));
      submitted.sink->OnFinished(FinishedOf(v1::FINISH_REASON_STOP));
    });
    context.TryCancel();
    v1::GenerateResponse response;
    while (reader_->Read(&response)) {
    }
    const grpc::StatusCode code = reader_->Finish().error_code();
    EXPECT_TRUE(code == grpc::StatusCode::CANCELLED || code == grpc::StatusCode::OK) << code;
    engine.join();
  }
}

TEST_F(InferenceServiceTest, ErrorsCarryReasonParameterAndMetadata) {
  Start();
  v1::GenerateRequest odd = TextRequest();
  odd.mutable_sampling()->set_top_p(0);
  const absl::Status refused = StatusOfGenerate(odd);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(refused), ErrorReason::kInvalidParameter);
  EXPECT_EQ(ParamOf(refused), "top_p");

  v1::GenerateRequest longer;
  longer.mutable_tokens()->mutable_ids()->Resize(1000, 65);
  const absl::Status context_error = StatusOfGenerate(longer);
  EXPECT_EQ(ReasonOf(context_error), ErrorReason::kContextLengthExceeded);
  EXPECT_EQ(MetadataOf(context_error)["prompt_tokens"], "1000");
  EXPECT_EQ(MetadataOf(context_error)["context"], "64");
  EXPECT_EQ(engine_.submitted_count(), 0u) << "a refused request reached the engine";

  grpc::ClientContext context;
  const auto [prepared, sink] = Generate(&context);
  ASSERT_NE(sink, nullptr);
  sink->OnDelta(DeltaOf(1, "begun"));
  sink->OnError(
      WithMetadata(MakeError(ErrorReason::kChainFailed, "stage 2 is gone"), "stage", "2"));
  v1::GenerateResponse response;
  EXPECT_TRUE(reader_->Read(&response)) << "what was sent before the error arrives";
  EXPECT_FALSE(reader_->Read(&response));
  const absl::Status failed = FromGrpcStatus(reader_->Finish());
  EXPECT_EQ(ReasonOf(failed), ErrorReason::kChainFailed);
  EXPECT_EQ(MetadataOf(failed)["stage"], "2");
}

TEST_F(InferenceServiceTest, OddRequestsLeaveARunningStreamAlone) {
  Start();
  grpc::ClientContext context;
  const auto [prepared, sink] = Generate(&context);
  ASSERT_NE(sink, nullptr);
  v1::GenerateResponse response;
  for (int i = 0; i < 50; ++i) {
    v1::GenerateRequest odd;
    odd.mutable_tokens()->add_ids(i % 2 == 0 ? -1 : 320);
    EXPECT_EQ(ParamOf(StatusOfGenerate(odd)), "prompt");
    sink->OnDelta(DeltaOf(i, "t"));
    ASSERT_TRUE(reader_->Read(&response));
    EXPECT_THAT(response.delta().token_ids(), ElementsAre(i));
  }
  sink->OnFinished(FinishedOf(v1::FINISH_REASON_STOP));
  while (reader_->Read(&response)) {
  }
  EXPECT_TRUE(reader_->Finish().ok());
}

TEST_F(InferenceServiceTest, BadBytesInARequestGetAnErrorAndTheNextRequestIsServed) {
  Start();
  v1::GenerateRequest request;
  request.set_text("bad \xED\xA0\xBD bytes");
  const absl::Status status = StatusOfGenerate(request);
  // Refused by the preparer, or by gRPC when it parses the message.
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.code(), absl::StatusCode::kUnavailable) << status;
  grpc::ClientContext context;
  const auto [prepared, sink] = Generate(&context);
  ASSERT_NE(sink, nullptr);
  sink->OnFinished(FinishedOf(v1::FINISH_REASON_STOP));
  v1::GenerateResponse response;
  while (reader_->Read(&response)) {
  }
  EXPECT_TRUE(reader_->Finish().ok());
}

TEST_F(InferenceServiceTest, PromptLogprobsOverTheMessageLimitComeInPieces) {
#if defined(__SANITIZE_THREAD__)
  // gRPC's hand-over between threads is not instrumented: each of some 400,000 messages that it
  // frees may become a report that is suppressed, at a millisecond each.
  GTEST_SKIP() << "too many reports to suppress under ThreadSanitizer";
#endif
  Start({.max_pending_bytes = size_t{64} << 20});
  grpc::ClientContext context;
  const auto [prepared, sink] = Generate(&context);
  ASSERT_NE(sink, nullptr);
  v1::PromptLogprobs logprobs;
  logprobs.set_first(1);
  for (int i = 0; i < 20'000; ++i) {
    v1::TokenLogprob* logprob = logprobs.add_logprobs();
    logprob->set_token(i);
    for (int j = 0; j < 20; ++j) logprob->add_top()->set_text("0123456789");
  }
  ASSERT_GT(logprobs.ByteSizeLong(), static_cast<size_t>(kMaxInferenceResponseBytes));
  sink->OnPromptLogprobs(logprobs);
  sink->OnFinished(FinishedOf(v1::FINISH_REASON_STOP));
  v1::GenerateResponse response;
  int next = 0;
  while (reader_->Read(&response)) {
    if (!response.has_prompt_logprobs()) continue;
    EXPECT_LE(response.ByteSizeLong(), static_cast<size_t>(kMaxInferenceResponseBytes));
    EXPECT_EQ(response.prompt_logprobs().first(), next + 1);
    for (const v1::TokenLogprob& logprob : response.prompt_logprobs().logprobs()) {
      ASSERT_EQ(logprob.token(), next++);
    }
  }
  EXPECT_EQ(next, 20'000);
  EXPECT_TRUE(reader_->Finish().ok());
}

TEST_F(InferenceServiceTest, RefusesAMessageOverTheLimit) {
  Start();
  v1::GenerateRequest request;
  request.set_text(std::string(kMaxInferenceRequestBytes + 1, 'x'));
  // A channel without limits of its own.
  const auto channel =
      grpc::CreateChannel(servers_->client_address(), grpc::InsecureChannelCredentials());
  const auto stub = v1::Inference::NewStub(channel);
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(engine_.submitted_count(), 0u);
}

TEST_F(InferenceServiceTest, BoundsTheNumberOfStreams) {
  Start({.max_calls = 1});
  grpc::ClientContext context;
  const auto [prepared, sink] = Generate(&context);
  ASSERT_NE(sink, nullptr);
  EXPECT_EQ(ReasonOf(StatusOfGenerate(TextRequest())), ErrorReason::kQueueFull);
  sink->OnFinished(FinishedOf(v1::FINISH_REASON_STOP));
  v1::GenerateResponse response;
  while (reader_->Read(&response)) {
  }
  EXPECT_TRUE(reader_->Finish().ok());
}

TEST_F(InferenceServiceTest, AnswersTheShortQuestions) {
  Start();
  grpc::ClientContext contexts[6];
  v1::TokenizeRequest text;
  text.set_text("Hi");
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(stub_->Tokenize(&contexts[0], text, &tokens).ok());
  v1::DetokenizeRequest ids;
  *ids.mutable_ids() = tokens.ids();
  v1::DetokenizeResponse back;
  ASSERT_TRUE(stub_->Detokenize(&contexts[1], ids, &back).ok());
  EXPECT_EQ(back.text(), "Hi");
  ids.add_ids(-1);
  EXPECT_EQ(ParamOf(FromGrpcStatus(stub_->Detokenize(&contexts[2], ids, &back))), "ids");
  v1::GetModelResponse model;
  ASSERT_TRUE(stub_->GetModel(&contexts[3], {}, &model).ok());
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(model, preparer_->model()));
  v1::GetStatusResponse status;
  ASSERT_TRUE(stub_->GetStatus(&contexts[4], {}, &status).ok());
  EXPECT_EQ(status.state(), v1::CHAIN_STATE_SERVING);
  v1::GetLoadsResponse loads;
  ASSERT_TRUE(stub_->GetLoads(&contexts[5], {}, &loads).ok());
  EXPECT_EQ(loads.running(), 3);
}

TEST_F(InferenceServiceTest, AbortPassesTheIdsOnAndBoundsThem) {
  Start();
  v1::AbortRequest request;
  request.add_request_ids("a");
  request.add_request_ids("b");
  for (int i = 0; i < 2; ++i) {
    grpc::ClientContext context;
    v1::AbortResponse response;
    EXPECT_TRUE(stub_->Abort(&context, request, &response).ok());
  }
  EXPECT_THAT(engine_.aborted(), ElementsAre("a", "b", "a", "b"));
  for (int i = 0; i < 5000; ++i) request.add_request_ids("x");
  grpc::ClientContext context;
  v1::AbortResponse response;
  EXPECT_EQ(ParamOf(FromGrpcStatus(stub_->Abort(&context, request, &response))), "request_ids");
}

TEST_F(InferenceServiceTest, AnEngineThatGivesNoAnswerHoldsNoCall) {
  engine_.set_silent();
  Start();
  grpc::ClientContext status_context;
  v1::GetStatusResponse status;
  EXPECT_EQ(ReasonOf(FromGrpcStatus(stub_->GetStatus(&status_context, {}, &status))),
            ErrorReason::kShuttingDown);
  grpc::ClientContext loads_context;
  v1::GetLoadsResponse loads;
  EXPECT_EQ(ReasonOf(FromGrpcStatus(stub_->GetLoads(&loads_context, {}, &loads))),
            ErrorReason::kShuttingDown);
}

TEST_F(InferenceServiceTest, IsNotReadyBeforeTheModelIsRead) {
  Start({}, /*serve=*/false);
  EXPECT_EQ(ReasonOf(StatusOfGenerate(TextRequest())), ErrorReason::kNotReady);
  grpc::ClientContext context;
  v1::GetStatusResponse response;
  EXPECT_EQ(ReasonOf(FromGrpcStatus(stub_->GetStatus(&context, {}, &response))),
            ErrorReason::kNotReady);
  inference_->Serve(engine_, *preparer_);
  grpc::ClientContext again;
  EXPECT_TRUE(stub_->GetStatus(&again, {}, &response).ok());
}

TEST_F(InferenceServiceTest, ShutdownEndsAStreamThatRuns) {
  Start();
  grpc::ClientContext context;
  const auto [prepared, sink] = Generate(&context);
  ASSERT_NE(sink, nullptr);
  servers_->Shutdown(absl::Milliseconds(50));
  EXPECT_TRUE(engine_.WaitForDrop(sink));
  EXPECT_FALSE(reader_->Finish().ok());
}

}  // namespace
}  // namespace layercake::coordinator
