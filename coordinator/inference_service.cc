#include "coordinator/inference_service.h"

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/generate_call.h"
#include "proto/errors.h"
#include "proto/rpc_status.h"

namespace layercake::coordinator {
namespace {

constexpr int kMaxAbortIds = 4096;

grpc::ServerUnaryReactor* FinishWith(grpc::CallbackServerContext* context,
                                     const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

template <class Response>
grpc::ServerUnaryReactor* FinishWith(grpc::CallbackServerContext* context,
                                     absl::StatusOr<Response> result, Response* response) {
  if (result.ok()) *response = *std::move(result);
  return FinishWith(context, result.status());
}

// Ends a unary call with the engine's answer; with an error when the engine lets go of the question
// without one (its queue is full or it has stopped), so that no call stays open for ever.
template <class Response>
class Answer {
 public:
  Answer(grpc::ServerUnaryReactor* reactor, Response* response)
      : reactor_(reactor), response_(response) {}
  Answer(Answer&& other) noexcept
      : reactor_(std::exchange(other.reactor_, nullptr)), response_(other.response_) {}
  Answer& operator=(Answer&&) = delete;
  ~Answer() {
    if (reactor_ == nullptr) return;
    reactor_->Finish(ToGrpcStatus(
        MakeError(ErrorReason::kShuttingDown, "the coordinator gave no answer: it is ending")));
  }

  void operator()(Response response) {
    *response_ = std::move(response);
    std::exchange(reactor_, nullptr)->Finish(grpc::Status::OK);
  }

 private:
  grpc::ServerUnaryReactor* reactor_;
  Response* response_;
};

}  // namespace

void InferenceService::Serve(Engine& engine, const RequestPreparer& preparer) {
  absl::MutexLock lock(&mutex_);
  backend_ = {&engine, &preparer};
}

absl::StatusOr<InferenceService::Backend> InferenceService::backend() {
  absl::MutexLock lock(&mutex_);
  if (backend_.engine == nullptr) {
    return MakeError(ErrorReason::kNotReady, "the coordinator is reading the model; try later");
  }
  return backend_;
}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const int calls = calls_->fetch_add(1, std::memory_order_relaxed);
  const std::shared_ptr<GenerateCall> call =
      GenerateCall::Create(context, options_.max_pending_bytes,
                           [count = calls_] { count->fetch_sub(1, std::memory_order_relaxed); });
  // Alive until OnDone, which needs this function to return first.
  if (calls >= options_.max_calls) {
    call->OnError(MakeError(ErrorReason::kQueueFull,
                            absl::StrCat("all ", options_.max_calls, " streams are taken")));
    return call.get();
  }
  const absl::StatusOr<Backend> backend = this->backend();
  if (!backend.ok()) {
    call->OnError(backend.status());
    return call.get();
  }
  absl::StatusOr<PreparedRequest> prepared = backend->preparer->Prepare(*request, context->peer());
  if (!prepared.ok()) {
    call->OnError(prepared.status());
    return call.get();
  }
  call->Submit(*backend->engine, *std::move(prepared));
  return call.get();
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  const absl::StatusOr<Backend> backend = this->backend();
  if (!backend.ok()) return FinishWith(context, backend.status());
  return FinishWith(context, backend->preparer->Tokenize(*request), response);
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  const absl::StatusOr<Backend> backend = this->backend();
  if (!backend.ok()) return FinishWith(context, backend.status());
  return FinishWith(context, backend->preparer->Detokenize(*request), response);
}

grpc::ServerUnaryReactor* InferenceService::GetModel(grpc::CallbackServerContext* context,
                                                     const v1::GetModelRequest* /*request*/,
                                                     v1::GetModelResponse* response) {
  const absl::StatusOr<Backend> backend = this->backend();
  if (backend.ok()) *response = backend->preparer->model();
  return FinishWith(context, backend.status());
}

grpc::ServerUnaryReactor* InferenceService::GetStatus(grpc::CallbackServerContext* context,
                                                      const v1::GetStatusRequest* /*request*/,
                                                      v1::GetStatusResponse* response) {
  const absl::StatusOr<Backend> backend = this->backend();
  if (!backend.ok()) return FinishWith(context, backend.status());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  backend->engine->GetStatus(Answer<v1::GetStatusResponse>(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::GetLoads(grpc::CallbackServerContext* context,
                                                     const v1::GetLoadsRequest* /*request*/,
                                                     v1::GetLoadsResponse* response) {
  const absl::StatusOr<Backend> backend = this->backend();
  if (!backend.ok()) return FinishWith(context, backend.status());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  backend->engine->GetLoads(Answer<v1::GetLoadsResponse>(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Abort(grpc::CallbackServerContext* context,
                                                  const v1::AbortRequest* request,
                                                  v1::AbortResponse* /*response*/) {
  const absl::StatusOr<Backend> backend = this->backend();
  if (!backend.ok()) return FinishWith(context, backend.status());
  if (request->request_ids_size() > kMaxAbortIds) {
    return FinishWith(context,
                      MakeError(ErrorReason::kInvalidParameter,
                                absl::StrCat(request->request_ids_size(),
                                             " ids are more than the limit of ", kMaxAbortIds),
                                "request_ids"));
  }
  backend->engine->Abort({request->request_ids().begin(), request->request_ids().end()});
  return FinishWith(context, absl::OkStatus());
}

}  // namespace layercake::coordinator
