#include "coordinator/control_service.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "proto/errors.h"
#include "proto/rpc_status.h"

namespace layercake::coordinator {
namespace {

// Ends a call that never began.
class RefusedSession final : public grpc::ServerBidiReactor<v1::FromWorker, v1::ToWorker> {
 public:
  explicit RefusedSession(const absl::Status& status) { Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

// Streams the bytes of one tensor. One chunk exists at a time; gRPC asks for the next one when the
// last is on its way, so a slow worker costs one chunk. Only gRPC's reactions run after
// construction, one after the other, apart from OnCancel, which has nothing to do: a write that is
// in flight then ends with ok = false.
class TensorStream final : public grpc::ServerWriteReactor<v1::ReadTensorChunk> {
 public:
  TensorStream(absl::StatusOr<absl::Span<const std::byte>> bytes, size_t chunk_bytes,
               std::shared_ptr<std::atomic<int>> count)
      : chunk_bytes_(chunk_bytes), count_(std::move(count)) {
    if (!bytes.ok()) {
      Finish(ToGrpcStatus(bytes.status()));
      return;
    }
    left_ = *bytes;
    WriteNext();
  }

  void OnWriteDone(bool ok) override {
    if (ok) return WriteNext();
    Finish(ToGrpcStatus(absl::CancelledError("the worker stopped reading the tensor")));
  }
  void OnDone() override {
    count_->fetch_sub(1, std::memory_order_relaxed);
    delete this;
  }

 private:
  void WriteNext() {
    if (left_.empty()) {
      Finish(grpc::Status::OK);
      return;
    }
    const absl::Span<const std::byte> piece = left_.first(std::min(chunk_bytes_, left_.size()));
    chunk_.set_offset(offset_);
    chunk_.set_bytes(piece.data(), piece.size());
    offset_ += piece.size();
    left_.remove_prefix(piece.size());
    StartWrite(&chunk_);
  }

  const size_t chunk_bytes_;
  const std::shared_ptr<std::atomic<int>> count_;
  absl::Span<const std::byte> left_;
  uint64_t offset_ = 0;
  v1::ReadTensorChunk chunk_;
};

}  // namespace

void ControlService::Serve(Engine& engine, base::Executor& executor,
                           const model::ModelFiles& files) {
  absl::MutexLock lock(&mutex_);
  backend_ = {&engine, &executor, &files};
}

absl::StatusOr<ControlService::Backend> ControlService::backend() {
  absl::MutexLock lock(&mutex_);
  if (backend_.engine == nullptr) {
    return MakeError(ErrorReason::kNotReady, "the coordinator is reading the model; try later");
  }
  return backend_;
}

grpc::ServerBidiReactor<v1::FromWorker, v1::ToWorker>* ControlService::Session(
    grpc::CallbackServerContext* context) {
  const absl::StatusOr<Backend> backend = this->backend();
  if (!backend.ok()) return new RefusedSession(backend.status());
  if (sessions_->fetch_add(1, std::memory_order_relaxed) >= options_.max_sessions) {
    sessions_->fetch_sub(1, std::memory_order_relaxed);
    return new RefusedSession(
        MakeError(ErrorReason::kQueueFull,
                  absl::StrCat("all ", options_.max_sessions, " worker Sessions are taken")));
  }
  AcceptedSession session = AcceptCoordinatorLink(
      context, *backend->executor,
      [count = sessions_] { count->fetch_sub(1, std::memory_order_relaxed); }, options_.link);
  // The reactor frees itself only after this function has returned it, whatever the engine does.
  backend->engine->AddSession(std::move(session.link), context->peer());
  return session.reactor;
}

grpc::ServerUnaryReactor* ControlService::GetModelHeader(
    grpc::CallbackServerContext* context, const v1::GetModelHeaderRequest* /*request*/,
    v1::GetModelHeaderResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::StatusOr<Backend> backend = this->backend();
  absl::Status status = backend.status();
  if (status.ok()) {
    const std::vector<std::byte> header = backend->files->SerializeHeader();
    response->set_header(header.data(), header.size());
    response->set_fingerprint(backend->files->fingerprint());
    if (response->ByteSizeLong() > static_cast<size_t>(kMaxControlMessageBytes)) {
      status = absl::UnimplementedError(
          absl::StrCat("the model's header of ", header.size(), " bytes does not fit a message of ",
                       kMaxControlMessageBytes, " bytes; copy the model file to the worker"));
      response->Clear();
    }
  }
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

grpc::ServerWriteReactor<v1::ReadTensorChunk>* ControlService::ReadTensor(
    grpc::CallbackServerContext* /*context*/, const v1::ReadTensorRequest* request) {
  absl::StatusOr<absl::Span<const std::byte>> bytes;
  const absl::StatusOr<Backend> backend = this->backend();
  if (reads_->fetch_add(1, std::memory_order_relaxed) >= options_.max_tensor_reads) {
    bytes = MakeError(ErrorReason::kQueueFull,
                      absl::StrCat("all ", options_.max_tensor_reads, " tensor reads are taken"));
  } else if (!backend.ok()) {
    bytes = backend.status();
  } else {
    bytes = backend->files->TensorBytes(request->name());
  }
  return new TensorStream(std::move(bytes), options_.chunk_bytes, reads_);
}

}  // namespace layercake::coordinator
