#include "coordinator/control_service.h"

#include "absl/strings/str_cat.h"
#include "coordinator/grpc_server.h"
#include "coordinator/inference_service.h"
#include "coordinator/testing/fake_engine.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "model/gguf/testing/tiny_model.h"
#include "proto/errors.h"
#include "proto/rpc_status.h"
#include "proto/testing/loop_thread.h"

namespace layercake::coordinator {
namespace {

using testing::FakeEngine;
using ::testing::HasSubstr;
using testing::kPatience;
using ::testing::StartsWith;

class ControlServiceTest : public ::testing::Test {
 protected:
  void Start(const ControlServiceOptions& options, bool serve = true) {
    bytes_ = model::testing::BuildTinyModel({}).Build();
    std::vector<model::GgufFile> shards;
    shards.push_back(model::GgufFile::Parse(bytes_, "tiny.gguf").value());
    files_ = model::ModelFiles::FromShards(std::move(shards)).value();
    control_ = std::make_unique<ControlService>(options);
    if (serve) control_->Serve(engine_, decision_.loop(), *files_);
    servers_ = GrpcServers::Start({}, inference_, *control_).value();
    channel_ = MakeChannel({servers_->worker_address(), {}, kMaxControlMessageBytes}).value();
    stub_ = v1::Control::NewStub(channel_);
  }

  // The whole tensor as the stream gives it; checks that chunks are in order and bounded.
  absl::StatusOr<std::string> Fetch(const std::string& name, size_t max_chunk) {
    grpc::ClientContext context;
    v1::ReadTensorRequest request;
    request.set_name(name);
    const auto reader = stub_->ReadTensor(&context, request);
    std::string bytes;
    v1::ReadTensorChunk chunk;
    while (reader->Read(&chunk)) {
      EXPECT_EQ(chunk.offset(), bytes.size());
      EXPECT_LE(chunk.bytes().size(), max_chunk);
      bytes += chunk.bytes();
    }
    const absl::Status status = FromGrpcStatus(reader->Finish());
    if (!status.ok()) return status;
    return bytes;
  }

  void TearDown() override {
    if (servers_ != nullptr) servers_->Shutdown(absl::Seconds(1));
  }

  testing::FakeEngine engine_;
  layercake::testing::LoopThread decision_;
  layercake::testing::LoopThread worker_;
  std::vector<std::byte> bytes_;
  std::optional<model::ModelFiles> files_;
  InferenceService inference_;
  std::unique_ptr<ControlService> control_;
  std::unique_ptr<GrpcServers> servers_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Control::Stub> stub_;
};

TEST_F(ControlServiceTest, StreamsEveryTensorByteForByte) {
  Start({.chunk_bytes = 1000});
  ASSERT_GT(files_->tensors().size(), 10u);
  for (const model::TensorInfo& tensor : files_->tensors()) {
    const auto fetched = Fetch(std::string(tensor.name), 1000);
    ASSERT_TRUE(fetched.ok()) << tensor.name << ": " << fetched.status();
    const auto expected = files_->TensorBytes(tensor.name).value();
    EXPECT_EQ(*fetched,
              std::string(reinterpret_cast<const char*>(expected.data()), expected.size()))
        << tensor.name;
  }
}

TEST_F(ControlServiceTest, RefusesATensorThatIsNotThere) {
  Start({});
  for (const char* name : {"", "no.such.tensor", "../../etc/passwd"}) {
    EXPECT_EQ(Fetch(name, 1 << 20).status().code(), absl::StatusCode::kNotFound) << name;
  }
}

TEST_F(ControlServiceTest, AReaderThatStopsInTheMiddleFreesItsPlace) {
  Start({.max_tensor_reads = 1, .chunk_bytes = 16});
  const std::string name(files_->tensors().front().name);
  {
    grpc::ClientContext context;
    v1::ReadTensorRequest request;
    request.set_name(name);
    const auto reader = stub_->ReadTensor(&context, request);
    v1::ReadTensorChunk chunk;
    ASSERT_TRUE(reader->Read(&chunk));
    EXPECT_EQ(Fetch(name, 16).status().code(), absl::StatusCode::kResourceExhausted);
    context.TryCancel();
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  const absl::Time give_up = absl::Now() + kPatience;
  absl::StatusOr<std::string> fetched;
  do {
    fetched = Fetch(name, 16);
  } while (!fetched.ok() && absl::Now() < give_up);
  EXPECT_TRUE(fetched.ok()) << fetched.status();
}

TEST_F(ControlServiceTest, GivesTheHeaderThatRebuildsTheTensorList) {
  Start({});
  grpc::ClientContext context;
  v1::GetModelHeaderResponse response;
  const grpc::Status status = stub_->GetModelHeader(&context, {}, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.fingerprint(), files_->fingerprint());
  const auto rebuilt = model::ModelFiles::FromHeader(absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(response.header().data()), response.header().size()));
  ASSERT_TRUE(rebuilt.ok()) << rebuilt.status();
  EXPECT_EQ(rebuilt->tensors().size(), files_->tensors().size());
  EXPECT_EQ(rebuilt->fingerprint(), files_->fingerprint());
}

TEST_F(ControlServiceTest, HandsASessionToTheEngine) {
  Start({});
  SessionDialer dialer(channel_);
  std::unique_ptr<WorkerLink> link;
  absl::Notification welcomed;
  worker_.Run([&] {
    link = dialer.Connect(worker_.loop());
    WorkerLink::Callbacks callbacks;
    callbacks.on_message = [&](const v1::ToWorker& message) {
      EXPECT_EQ(message.welcome().term(), 5u);
      welcomed.Notify();
    };
    callbacks.on_closed = [](const absl::Status&) {};
    link->Start(std::move(callbacks));
    v1::FromWorker hello;
    hello.mutable_hello()->set_worker_id("w1");
    ASSERT_TRUE(link->Send(hello).ok());
  });
  FakeEngine::Session session = engine_.WaitForSession();
  ASSERT_NE(session.link, nullptr);
  EXPECT_THAT(session.peer, StartsWith("ipv4:127.0.0.1:"));
  decision_.Run([&] {
    CoordinatorLink::Callbacks callbacks;
    callbacks.on_message = [&](const v1::FromWorker& message) {
      EXPECT_EQ(message.hello().worker_id(), "w1");
      v1::ToWorker welcome;
      welcome.mutable_welcome()->set_term(5);
      EXPECT_TRUE(session.link->Send(welcome).ok());
    };
    callbacks.on_closed = [](const absl::Status&) {};
    session.link->Start(std::move(callbacks));
  });
  EXPECT_TRUE(welcomed.WaitForNotificationWithTimeout(kPatience));
  worker_.Run([&] { link.reset(); });
  decision_.Run([&] { session.link.reset(); });
}

// The status that the coordinator ends a new Session with.
absl::Status DialOnce(SessionDialer& dialer, layercake::testing::LoopThread& loop) {
  std::unique_ptr<WorkerLink> link;
  absl::Notification ended;
  absl::Status result;
  loop.Run([&] {
    link = dialer.Connect(loop.loop());
    WorkerLink::Callbacks callbacks;
    callbacks.on_message = [](const v1::ToWorker&) {};
    callbacks.on_closed = [&](const absl::Status& status) {
      result = status;
      ended.Notify();
    };
    link->Start(std::move(callbacks));
  });
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(kPatience));
  loop.Run([&] { link.reset(); });
  return result;
}

TEST_F(ControlServiceTest, BoundsTheNumberOfSessions) {
  Start({.max_sessions = 1});
  SessionDialer dialer(channel_);
  std::unique_ptr<WorkerLink> first;
  worker_.Run([&] { first = dialer.Connect(worker_.loop()); });
  FakeEngine::Session session = engine_.WaitForSession();
  const absl::Status second = DialOnce(dialer, worker_);
  EXPECT_EQ(second.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(second.message()), HasSubstr("1 worker Sessions"));
  worker_.Run([&] { first.reset(); });
  decision_.Run([&] { session.link.reset(); });
}

TEST_F(ControlServiceTest, IsNotReadyBeforeTheModelIsRead) {
  Start({}, /*serve=*/false);
  EXPECT_EQ(ReasonOf(Fetch("token_embd.weight", 1 << 20).status()), ErrorReason::kNotReady);
  grpc::ClientContext context;
  v1::GetModelHeaderResponse response;
  EXPECT_EQ(ReasonOf(FromGrpcStatus(stub_->GetModelHeader(&context, {}, &response))),
            ErrorReason::kNotReady);
  SessionDialer dialer(channel_);
  EXPECT_EQ(ReasonOf(DialOnce(dialer, worker_)), ErrorReason::kNotReady);
}

}  // namespace
}  // namespace layercake::coordinator
