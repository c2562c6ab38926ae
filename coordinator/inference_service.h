// The Inference service over gRPC: checks through RequestPreparer, work through Engine, errors as
// statuses with details (proto/rpc_status.h).
//
// Thread rule: gRPC's threads call the handlers, the decision thread calls the sinks; neither ever
// blocks. Serve from any thread.
#pragma once

#include <atomic>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/engine.h"
#include "coordinator/request_preparer.h"
#include "layercake/v1/inference.grpc.pb.h"

namespace layercake::coordinator {

struct InferenceServiceOptions {
  // A client that leaves this much unread is cut off, whatever the engine does about it before.
  size_t max_pending_bytes = 8 << 20;
  int max_calls = 4096;  // Generate streams at once; beyond: queue_full
};

class InferenceService final : public v1::Inference::CallbackService {
 public:
  explicit InferenceService(InferenceServiceOptions options = {}) : options_(options) {}

  // Until then every call is refused with not_ready, so that the port can be taken before the model
  // is read. Both outlive the service's last call (GrpcServers::Shutdown waits for that).
  void Serve(Engine& engine, const RequestPreparer& preparer);

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;
  grpc::ServerUnaryReactor* GetLoads(grpc::CallbackServerContext* context,
                                     const v1::GetLoadsRequest* request,
                                     v1::GetLoadsResponse* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;

 private:
  struct Backend {
    Engine* engine = nullptr;
    const RequestPreparer* preparer = nullptr;
  };
  // NotReady before Serve.
  absl::StatusOr<Backend> backend();

  const InferenceServiceOptions options_;
  absl::Mutex mutex_;
  Backend backend_ ABSL_GUARDED_BY(mutex_);
  // Shared with the calls, which count themselves out.
  const std::shared_ptr<std::atomic<int>> calls_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace layercake::coordinator
