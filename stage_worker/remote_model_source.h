// A model whose bytes come from the coordinator (Control.GetModelHeader and ReadTensor): the one
// place of the stage worker that calls gRPC to wait for it, on the loading thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/client_context.h"
#include "layercake/v1/control.grpc.pb.h"
#include "model/model_source.h"
#include "stage_worker/model_provider.h"

namespace layercake::stage_worker {

// Makes calls that can be ended from another thread: the present one, and all that come later.
// Shared by the provider and the sources that it opened, which outlive each other either way.
class CancellableCalls {
 public:
  // The context of the next call, or Cancelled.
  absl::StatusOr<std::unique_ptr<grpc::ClientContext>> Begin();
  void End();
  void Cancel();

 private:
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* current_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

// Tensors are streamed in order: a Read that goes on where the last one ended continues its stream,
// any other one begins the tensor's stream anew.
// Thread rule: the loading thread. How long a call may take is the worker's to judge: it cancels
// when no byte came for a while.
class RemoteModelSource final : public model::ModelSource {
 public:
  // `stub` outlives the source.
  RemoteModelSource(v1::Control::Stub& stub, model::ModelFiles files,
                    std::shared_ptr<CancellableCalls> calls);
  ~RemoteModelSource() override;

  const model::ModelFiles& files() const override { return files_; }
  std::optional<absl::Span<const std::byte>> Map(absl::string_view /*tensor_name*/) const override {
    return std::nullopt;
  }
  absl::Status Read(absl::string_view tensor_name, uint64_t offset,
                    absl::Span<std::byte> out) override;

 private:
  absl::Status BeginStream(absl::string_view tensor_name);
  // Takes the next chunk of the stream; DataLoss when it ended early or skips bytes.
  absl::Status NextChunk();
  // After the last byte of a tensor: the stream has to be over too.
  absl::Status ExpectEnd();
  void EndStream();

  v1::Control::Stub& stub_;
  const model::ModelFiles files_;
  const std::shared_ptr<CancellableCalls> calls_;

  std::string tensor_;  // of the open stream; empty: none is open
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReader<v1::ReadTensorChunk>> reader_;
  v1::ReadTensorChunk chunk_;
  size_t chunk_used_ = 0;
  uint64_t position_ = 0;  // of the next byte that the stream gives
};

class RemoteModelProvider final : public ModelProvider {
 public:
  // `stub` outlives the provider and what it opens.
  explicit RemoteModelProvider(v1::Control::Stub& stub);

  absl::StatusOr<std::unique_ptr<model::ModelSource>> Open(
      const v1::Assignment& assignment) override;
  void Cancel() override { calls_->Cancel(); }

 private:
  v1::Control::Stub& stub_;
  const std::shared_ptr<CancellableCalls> calls_;
};

}  // namespace layercake::stage_worker
