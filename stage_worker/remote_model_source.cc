#include "stage_worker/remote_model_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "proto/rpc_status.h"

namespace layercake::stage_worker {
namespace {

absl::Status Annotated(const absl::Status& status, absl::string_view attempt) {
  return absl::Status(status.code(), absl::StrCat(attempt, ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<grpc::ClientContext>> CancellableCalls::Begin() {
  absl::MutexLock lock(&mutex_);
  if (cancelled_) return absl::CancelledError("loading from the coordinator was stopped");
  auto context = std::make_unique<grpc::ClientContext>();
  current_ = context.get();
  return context;
}

void CancellableCalls::End() {
  absl::MutexLock lock(&mutex_);
  current_ = nullptr;
}

void CancellableCalls::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  // Held over the call so that the context cannot go meanwhile; TryCancel does not wait.
  if (current_ != nullptr) current_->TryCancel();
}

RemoteModelSource::RemoteModelSource(v1::Control::Stub& stub, model::ModelFiles files,
                                     std::shared_ptr<CancellableCalls> calls)
    : stub_(stub), files_(std::move(files)), calls_(std::move(calls)) {}

RemoteModelSource::~RemoteModelSource() { EndStream(); }

absl::Status RemoteModelSource::Read(absl::string_view tensor_name, uint64_t offset,
                                     absl::Span<std::byte> out) {
  LC_ASSIGN_OR_RETURN(const model::TensorInfo* tensor, FindRange(tensor_name, offset, out.size()));
  if (tensor_ != tensor_name || offset < position_) {
    EndStream();
    LC_RETURN_IF_ERROR(BeginStream(tensor_name));
  }
  size_t filled = 0;
  while (filled < out.size()) {
    if (chunk_used_ == chunk_.bytes().size()) {
      const absl::Status next = NextChunk();
      if (!next.ok()) {
        EndStream();
        return Annotated(next, absl::StrCat("read tensor ", tensor_name, " from the coordinator"));
      }
    }
    size_t available = chunk_.bytes().size() - chunk_used_;
    if (position_ < offset) {
      const size_t skipped = static_cast<size_t>(std::min<uint64_t>(available, offset - position_));
      chunk_used_ += skipped;
      position_ += skipped;
      continue;
    }
    available = std::min(available, out.size() - filled);
    std::memcpy(out.data() + filled, chunk_.bytes().data() + chunk_used_, available);
    chunk_used_ += available;
    position_ += available;
    filled += available;
  }
  return position_ == tensor->byte_size ? ExpectEnd() : absl::OkStatus();
}

absl::Status RemoteModelSource::ExpectEnd() {
  const std::string tensor = tensor_;
  absl::Status ended;
  if (chunk_used_ != chunk_.bytes().size() || reader_->Read(&chunk_)) {
    ended = absl::DataLossError(absl::StrCat("the coordinator sent more than the ", position_,
                                             " bytes of tensor ", tensor));
  } else {
    ended = FromGrpcStatus(reader_->Finish());
    reader_.reset();
  }
  EndStream();
  return ended;
}

absl::Status RemoteModelSource::BeginStream(absl::string_view tensor_name) {
  LC_ASSIGN_OR_RETURN(context_, calls_->Begin());
  v1::ReadTensorRequest request;
  request.set_name(std::string(tensor_name));
  reader_ = stub_.ReadTensor(context_.get(), request);
  tensor_ = std::string(tensor_name);
  position_ = 0;
  return absl::OkStatus();
}

absl::Status RemoteModelSource::NextChunk() {
  chunk_used_ = 0;
  if (!reader_->Read(&chunk_)) {
    chunk_.clear_bytes();
    const absl::Status ended = FromGrpcStatus(reader_->Finish());
    reader_.reset();
    if (!ended.ok()) return ended;
    return absl::DataLossError(absl::StrCat("the stream ended after ", position_, " bytes"));
  }
  if (chunk_.offset() != position_ || chunk_.bytes().empty()) {
    return absl::DataLossError(absl::StrCat("a chunk of ", chunk_.bytes().size(), " bytes at ",
                                            chunk_.offset(), " came, expected one at ", position_));
  }
  return absl::OkStatus();
}

void RemoteModelSource::EndStream() {
  if (reader_ != nullptr) {
    // Finish waits for the server's word; a stream that was left in the middle is cancelled first.
    context_->TryCancel();
    reader_->Finish();
    reader_.reset();
  }
  calls_->End();
  context_.reset();
  tensor_.clear();
  chunk_.Clear();
  chunk_used_ = 0;
  position_ = 0;
}

RemoteModelProvider::RemoteModelProvider(v1::Control::Stub& stub)
    : stub_(stub), calls_(std::make_shared<CancellableCalls>()) {}

absl::StatusOr<std::unique_ptr<model::ModelSource>> RemoteModelProvider::Open(
    const v1::Assignment& assignment) {
  v1::GetModelHeaderResponse response;
  {
    LC_ASSIGN_OR_RETURN(const std::unique_ptr<grpc::ClientContext> context, calls_->Begin());
    const grpc::Status status =
        stub_.GetModelHeader(context.get(), v1::GetModelHeaderRequest(), &response);
    calls_->End();
    if (!status.ok()) {
      return Annotated(FromGrpcStatus(status), "get the model's header from the coordinator");
    }
  }
  const std::string& header = response.header();
  LC_ASSIGN_OR_RETURN(model::ModelFiles files,
                      model::ModelFiles::FromHeader(absl::MakeConstSpan(
                          reinterpret_cast<const std::byte*>(header.data()), header.size())));
  if (files.fingerprint() != assignment.model_fingerprint()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the coordinator's header has the fingerprint %016x, its assignment says %016x",
        files.fingerprint(), assignment.model_fingerprint()));
  }
  return std::make_unique<RemoteModelSource>(stub_, std::move(files), calls_);
}

}  // namespace layercake::stage_worker
