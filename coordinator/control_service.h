// The Control service over gRPC: hands each worker's Session to the engine as a CoordinatorLink,
// and gives the model's bytes to workers that have no file of their own.
//
// Thread rule: gRPC's threads call the handlers. Reading a tensor touches the mapped file, so a
// handler may wait for the disk, for one chunk at a time; nothing else here blocks.
#pragma once

#include <atomic>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/executor.h"
#include "coordinator/engine.h"
#include "layercake/v1/control.grpc.pb.h"
#include "model/gguf/model_files.h"
#include "proto/grpc_link.h"

namespace layercake::coordinator {

struct ControlServiceOptions {
  int max_sessions = 256;        // and drafters; beyond: ResourceExhausted
  int max_tensor_reads = 64;     // streams at once
  size_t chunk_bytes = 1 << 20;  // of ReadTensor
  GrpcLinkOptions link = {};
};

class ControlService final : public v1::Control::CallbackService {
 public:
  explicit ControlService(ControlServiceOptions options = {}) : options_(options) {}

  // Until then every call is refused with not_ready. `executor` is the decision thread's; all three
  // outlive the service's last call (GrpcServers::Shutdown waits for that).
  void Serve(Engine& engine, base::Executor& executor, const model::ModelFiles& files);

  grpc::ServerBidiReactor<v1::FromWorker, v1::ToWorker>* Session(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* GetModelHeader(grpc::CallbackServerContext* context,
                                           const v1::GetModelHeaderRequest* request,
                                           v1::GetModelHeaderResponse* response) override;
  // Chunks in order, without gaps, to the tensor's end. NotFound for a name that the model lacks.
  grpc::ServerWriteReactor<v1::ReadTensorChunk>* ReadTensor(
      grpc::CallbackServerContext* context, const v1::ReadTensorRequest* request) override;

 private:
  struct Backend {
    Engine* engine = nullptr;
    base::Executor* executor = nullptr;
    const model::ModelFiles* files = nullptr;
  };
  // NotReady before Serve.
  absl::StatusOr<Backend> backend();

  const ControlServiceOptions options_;
  absl::Mutex mutex_;
  Backend backend_ ABSL_GUARDED_BY(mutex_);
  // Shared with the calls, which count themselves out.
  const std::shared_ptr<std::atomic<int>> sessions_ = std::make_shared<std::atomic<int>>(0);
  const std::shared_ptr<std::atomic<int>> reads_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace layercake::coordinator
