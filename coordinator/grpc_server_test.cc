#include "coordinator/grpc_server.h"

#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "coordinator/control_service.h"
#include "coordinator/inference_service.h"
#include "coordinator/testing/fake_engine.h"
#include "coordinator/testing/preparer_fixture.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "gtest/gtest.h"
#include "proto/protocol_version.h"

namespace layercake::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

std::string TextOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& part : slices) {
    text.append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  return text;
}

bool Next(grpc::CompletionQueue* queue) {
  void* tag = nullptr;
  bool ok = false;
  return queue->Next(&tag, &ok) && ok;
}

// A unary call by name, for services whose generated code the distribution does not ship.
grpc::Status CallByName(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                        const std::string& request, std::string* response) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const grpc::Slice slice(request);
  const grpc::ByteBuffer out(&slice, 1);
  grpc::ByteBuffer in;
  grpc::Status status;
  const auto call = stub.PrepareUnaryCall(&context, method, out, &queue);
  call->StartCall();
  call->Finish(&in, &status, nullptr);
  Next(&queue);
  if (status.ok()) *response = TextOf(in);
  return status;
}

enum Health { kUnknownHealth = 0, kServing = 1, kNotServing = 2 };

// grpc.health.v1.Health/Check: the request's field 1 is the service, the answer's field 1 the
// state.
Health HealthOf(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
  std::string request;
  if (!service.empty()) {
    request = absl::StrCat("\x0A", std::string(1, static_cast<char>(service.size())), service);
  }
  std::string response;
  const grpc::Status status =
      CallByName(channel, "/grpc.health.v1.Health/Check", request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.size() == 2 && response[0] == 8 ? static_cast<Health>(response[1])
                                                  : kUnknownHealth;
}

int PortOf(const std::string& address) { return std::stoi(address.substr(address.rfind(':') + 1)); }

class GrpcServersTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<GrpcServers>> Start(const GrpcServerOptions& options) {
    return GrpcServers::Start(options, inference_, control_);
  }
  static std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address,
                                                  const TlsFiles& tls = {}) {
    return MakeChannel({address, tls, kMaxInferenceRequestBytes}).value();
  }
  static grpc::Status GetModel(const std::shared_ptr<grpc::Channel>& channel) {
    const auto stub = v1::Inference::NewStub(channel);
    grpc::ClientContext context;
    context.set_deadline(gpr_time_from_seconds(20, GPR_TIMESPAN));
    v1::GetModelResponse response;
    return stub->GetModel(&context, {}, &response);
  }

  testing::FakeEngine engine_;
  testing::PreparerFixture preparer_;
  InferenceService inference_;
  ControlService control_;
};

TEST_F(GrpcServersTest, ListensOnTwoLoopbackPortsThatItReports) {
  const auto servers = Start({});
  ASSERT_TRUE(servers.ok()) << servers.status();
  EXPECT_THAT((*servers)->client_address(), StartsWith("127.0.0.1:"));
  EXPECT_THAT((*servers)->worker_address(), StartsWith("127.0.0.1:"));
  EXPECT_GT(PortOf((*servers)->client_address()), 0);
  EXPECT_NE((*servers)->client_address(), (*servers)->worker_address());
  EXPECT_THAT((*servers)->warnings(), IsEmpty());
  inference_.Serve(engine_, *preparer_);
  EXPECT_TRUE(GetModel(ChannelTo((*servers)->client_address())).ok());
  // Each door has its own service only.
  EXPECT_EQ(GetModel(ChannelTo((*servers)->worker_address())).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(GrpcServersTest, SharesOneListenerWhenAsked) {
  GrpcServerOptions options;
  options.share_listener = true;
  const auto servers = Start(options);
  ASSERT_TRUE(servers.ok()) << servers.status();
  EXPECT_EQ((*servers)->client_address(), (*servers)->worker_address());
  inference_.Serve(engine_, *preparer_);
  EXPECT_TRUE(GetModel(ChannelTo((*servers)->worker_address())).ok());
}

TEST_F(GrpcServersTest, ASecondServerOnAPortIsRefusedByItsNumber) {
  auto first = Start({});
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string taken = (*first)->client_address();
  const std::string port = absl::StrCat(PortOf(taken));
  for (const std::string& address : {taken, "localhost:" + port, "0.0.0.0:" + port}) {
    GrpcServerOptions options;
    options.clients.address = address;
    options.clients.insecure = true;
    const auto second = Start(options);
    EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition) << address;
    EXPECT_THAT(std::string(second.status().message()), HasSubstr(port)) << address;
  }
  GrpcServerOptions options;
  options.workers.address = taken;
  EXPECT_EQ(Start(options).status().code(), absl::StatusCode::kFailedPrecondition);
  // The port is free again with its owner.
  first->reset();
  const auto third = Start(options);
  EXPECT_TRUE(third.ok()) << third.status();
}

TEST_F(GrpcServersTest, DoesNotOpenBeyondLoopbackByAccident) {
  GrpcServerOptions clients;
  clients.clients.address = "0.0.0.0:0";
  const auto refused = Start(clients);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("insecure"));
  GrpcServerOptions workers;
  workers.workers.address = "0.0.0.0:0";
  EXPECT_EQ(Start(workers).status().code(), absl::StatusCode::kInvalidArgument);

  clients.clients.insecure = true;
  const auto opened = Start(clients);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_THAT((*opened)->warnings(),
              ElementsAre(AllOf(HasSubstr((*opened)->client_address()), HasSubstr("without TLS"),
                                Not(HasSubstr("worker")))));
  workers.workers.insecure = true;
  const auto open_workers = Start(workers);
  ASSERT_TRUE(open_workers.ok()) << open_workers.status();
  EXPECT_THAT((*open_workers)->warnings(), ElementsAre(HasSubstr("join as a worker")));
}

TEST_F(GrpcServersTest, HealthSaysNotServingUntilTold) {
  const auto servers = Start({});
  ASSERT_TRUE(servers.ok()) << servers.status();
  for (const std::string& address : {(*servers)->client_address(), (*servers)->worker_address()}) {
    const auto channel = ChannelTo(address);
    for (const char* service : {"", "layercake.v1.Inference"}) {
      EXPECT_EQ(HealthOf(channel, service), kNotServing) << service;
      (*servers)->SetServing(true);
      EXPECT_EQ(HealthOf(channel, service), kServing) << service;
      (*servers)->SetServing(false);
      EXPECT_EQ(HealthOf(channel, service), kNotServing) << service;
    }
    std::string response;
    EXPECT_EQ(
        CallByName(channel, "/grpc.health.v1.Health/Check", "\x0A\x01x", &response).error_code(),
        grpc::StatusCode::NOT_FOUND);
  }
}

TEST_F(GrpcServersTest, ReflectionListsTheServices) {
  const auto servers = Start({});
  ASSERT_TRUE(servers.ok()) << servers.status();
  grpc::GenericStub stub(ChannelTo((*servers)->client_address()));
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  call->StartCall(nullptr);
  ASSERT_TRUE(Next(&queue));
  const grpc::Slice slice(std::string("\x3A\x01*"));  // field 7, list_services: "*"
  call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  ASSERT_TRUE(Next(&queue));
  grpc::ByteBuffer in;
  call->Read(&in, nullptr);
  ASSERT_TRUE(Next(&queue));
  const std::string text = TextOf(in);
  EXPECT_THAT(text, HasSubstr("layercake.v1.Inference"));
  EXPECT_THAT(text, Not(HasSubstr("layercake.v1.Control")));
  grpc::Status status;
  call->Finish(&status, nullptr);
  context.TryCancel();
  EXPECT_TRUE(Next(&queue));
}

TEST_F(GrpcServersTest, ShutdownTwiceIsOneShutdown) {
  const auto servers = Start({});
  ASSERT_TRUE(servers.ok()) << servers.status();
  (*servers)->Shutdown(absl::Milliseconds(10));
  (*servers)->Shutdown(absl::Milliseconds(10));
}

// Two certificate authorities and certificates of theirs, made with the openssl program.
class Certificates {
 public:
  Certificates() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "layercake-tls-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) return;
    folder_ = pattern;
    ok_ = MakeAuthority("ca") && MakeLeaf("ca", "server") && MakeLeaf("ca", "client") &&
          MakeAuthority("other") && MakeLeaf("other", "stranger");
  }
  ~Certificates() {
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }

  bool ok() const { return ok_; }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  TlsFiles Files(const std::string& leaf, const std::string& authority) const {
    return {Path(leaf + ".pem"), Path(leaf + ".key"), Path(authority + ".pem")};
  }

 private:
  static bool Run(const std::string& command) {
    const int status = std::system((command + " >/dev/null 2>&1").c_str());
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  bool MakeAuthority(const std::string& name) const {
    return Run(absl::StrCat("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes ",
                            "-days 2 -subj /CN=", name, " -keyout ", Path(name + ".key"), " -out ",
                            Path(name + ".pem")));
  }
  bool MakeLeaf(const std::string& authority, const std::string& name) const {
    return Run(absl::StrCat("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes ",
                            "-subj /CN=", name, " -addext subjectAltName=IP:127.0.0.1 -keyout ",
                            Path(name + ".key"), " -out ", Path(name + ".csr"))) &&
           Run(absl::StrCat("openssl x509 -req -days 2 -copy_extensions copy -in ",
                            Path(name + ".csr"), " -CA ", Path(authority + ".pem"), " -CAkey ",
                            Path(authority + ".key"), " -CAcreateserial -out ",
                            Path(name + ".pem")));
  }

  std::string folder_;
  bool ok_ = false;
};

class MutualTlsTest : public GrpcServersTest {
 protected:
  void SetUp() override {
    if (!certificates_.ok()) GTEST_SKIP() << "the openssl program cannot make certificates here";
    inference_.Serve(engine_, *preparer_);
  }
  Certificates certificates_;
};

TEST_F(MutualTlsTest, LetsInOnlyClientsOfItsAuthority) {
  GrpcServerOptions options;
  options.clients.tls = certificates_.Files("server", "ca");
  const auto servers = Start(options);
  ASSERT_TRUE(servers.ok()) << servers.status();
  const std::string address = (*servers)->client_address();
  const grpc::Status known = GetModel(ChannelTo(address, certificates_.Files("client", "ca")));
  EXPECT_TRUE(known.ok()) << known.error_message();
  // A certificate of another authority, none at all, a client that trusts another authority.
  EXPECT_FALSE(GetModel(ChannelTo(address, certificates_.Files("stranger", "ca"))).ok());
  EXPECT_FALSE(GetModel(ChannelTo(address)).ok());
  EXPECT_FALSE(GetModel(ChannelTo(address, certificates_.Files("client", "other"))).ok());
}

TEST_F(MutualTlsTest, OpensBeyondLoopbackWithoutAWarning) {
  GrpcServerOptions options;
  options.clients.address = "0.0.0.0:0";
  options.clients.tls = certificates_.Files("server", "ca");
  const auto servers = Start(options);
  ASSERT_TRUE(servers.ok()) << servers.status();
  EXPECT_THAT((*servers)->warnings(), IsEmpty());
  const std::string address = absl::StrCat("127.0.0.1:", PortOf((*servers)->client_address()));
  EXPECT_TRUE(GetModel(ChannelTo(address, certificates_.Files("client", "ca"))).ok());
  EXPECT_FALSE(GetModel(ChannelTo(address)).ok());
}

TEST_F(MutualTlsTest, NamesTheFileThatIsWrong) {
  GrpcServerOptions options;
  options.clients.tls = certificates_.Files("server", "ca");
  options.clients.tls.key.clear();
  EXPECT_EQ(Start(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.clients.tls.key = certificates_.Path("missing.key");
  const auto missing = Start(options);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("missing.key"));
  options.clients.tls.key = certificates_.Path("client.key");  // of another certificate
  const auto mismatch = Start(options);
  EXPECT_EQ(mismatch.status().code(), absl::StatusCode::kInvalidArgument) << mismatch.status();
  EXPECT_THAT(std::string(mismatch.status().message()), HasSubstr("key"));
}

}  // namespace
}  // namespace layercake::coordinator
