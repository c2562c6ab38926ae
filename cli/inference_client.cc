#include "cli/inference_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "grpc/support/time.h"
#include "grpcpp/client_context.h"
#include "layercake/v1/inference.grpc.pb.h"
#include "proto/protocol_version.h"
#include "proto/rpc_status.h"

namespace layercake::cli {
namespace {

constexpr absl::Duration kShortCall = absl::Seconds(10);

// What gRPC says of a connection names neither the server nor what to do ("Socket closed"); a
// server's own errors come with a reason and stay as they are.
absl::Status FromServer(const std::string& address, const grpc::Status& from) {
  absl::Status status = FromGrpcStatus(from);
  if (!absl::IsUnavailable(status) || status.GetPayload(kErrorInfoType)) return status;
  return absl::UnavailableError(
      absl::StrCat("no server answers at ", address, ", or it has ended (", status.message(),
                   "): its own output says why; `layercake serve` starts one"));
}

}  // namespace

struct InferenceClient::Stub {
  std::unique_ptr<v1::Inference::Stub> inference;
};

// A context that CancelAll knows of while the call runs.
class InferenceClient::Call {
 public:
  explicit Call(InferenceClient& client) : client_(client) {
    absl::MutexLock lock(&client_.mutex_);
    client_.running_.insert(&context_);
  }
  ~Call() {
    absl::MutexLock lock(&client_.mutex_);
    client_.running_.erase(&context_);
  }
  grpc::ClientContext* context() { return &context_; }
  // A time span is a deadline counted from now.
  void SetDeadline(absl::Duration timeout) {
    context_.set_deadline(gpr_time_from_millis(absl::ToInt64Milliseconds(timeout), GPR_TIMESPAN));
  }

 private:
  InferenceClient& client_;
  grpc::ClientContext context_;
};

absl::StatusOr<std::unique_ptr<InferenceClient>> InferenceClient::Create(const std::string& address,
                                                                         const TlsFiles& tls) {
  LC_ASSIGN_OR_RETURN(
      auto channel,
      MakeChannel({.target = address, .tls = tls, .max_message_bytes = kMaxInferenceRequestBytes}));
  auto stub = std::make_unique<Stub>(Stub{.inference = v1::Inference::NewStub(channel)});
  return std::unique_ptr<InferenceClient>(new InferenceClient(address, std::move(stub)));
}

InferenceClient::InferenceClient(std::string address, std::unique_ptr<Stub> stub)
    : address_(std::move(address)), stub_(std::move(stub)) {}

InferenceClient::~InferenceClient() = default;

absl::Status InferenceClient::Generate(
    const v1::GenerateRequest& request,
    const std::function<void(const v1::GenerateResponse&)>& on_event) {
  Call call(*this);
  const auto reader = stub_->inference->Generate(call.context(), request);
  v1::GenerateResponse event;
  bool finished = false;
  while (reader->Read(&event)) {
    finished = finished || event.has_finished();
    on_event(event);
  }
  const absl::Status status = FromServer(address_, reader->Finish());
  if (status.ok() && !finished) {
    return absl::DataLossError(
        absl::StrCat("the answer from ", address_, " ended before it was finished"));
  }
  return status;
}

absl::StatusOr<v1::GetModelResponse> InferenceClient::GetModel() {
  Call call(*this);
  call.SetDeadline(kShortCall);
  v1::GetModelResponse response;
  LC_RETURN_IF_ERROR(
      FromServer(address_, stub_->inference->GetModel(call.context(), {}, &response)));
  return response;
}

absl::StatusOr<v1::GetStatusResponse> InferenceClient::GetStatus() {
  Call call(*this);
  call.SetDeadline(kShortCall);
  v1::GetStatusResponse response;
  LC_RETURN_IF_ERROR(
      FromServer(address_, stub_->inference->GetStatus(call.context(), {}, &response)));
  return response;
}

absl::StatusOr<v1::GetLoadsResponse> InferenceClient::GetLoads() {
  Call call(*this);
  call.SetDeadline(kShortCall);
  v1::GetLoadsResponse response;
  LC_RETURN_IF_ERROR(
      FromServer(address_, stub_->inference->GetLoads(call.context(), {}, &response)));
  return response;
}

void InferenceClient::CancelAll() {
  absl::MutexLock lock(&mutex_);
  for (grpc::ClientContext* context : running_) context->TryCancel();
}

}  // namespace layercake::cli
