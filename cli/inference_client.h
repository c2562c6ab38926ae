// A client of one server's Inference service, over gRPC.
//
// Thread rule: any thread; the calls block. CancelAll ends the calls that are running, from another
// thread.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "layercake/v1/inference.pb.h"
#include "proto/grpc_channel.h"

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace layercake::cli {

class InferenceClient {
 public:
  // Connects on first use.
  static absl::StatusOr<std::unique_ptr<InferenceClient>> Create(const std::string& address,
                                                                 const TlsFiles& tls);
  ~InferenceClient();

  const std::string& address() const { return address_; }

  // Calls `on_event` for every event of the answer. OK after Finished; Cancelled after CancelAll;
  // DataLoss when the stream ended without Finished; else the server's error.
  absl::Status Generate(const v1::GenerateRequest& request,
                        const std::function<void(const v1::GenerateResponse&)>& on_event);
  // Bounded by 10 s, as a server answers these at once.
  absl::StatusOr<v1::GetModelResponse> GetModel();
  absl::StatusOr<v1::GetStatusResponse> GetStatus();
  absl::StatusOr<v1::GetLoadsResponse> GetLoads();

  void CancelAll();

 private:
  struct Stub;  // holds gRPC's own
  class Call;

  InferenceClient(std::string address, std::unique_ptr<Stub> stub);

  const std::string address_;
  const std::unique_ptr<Stub> stub_;
  absl::Mutex mutex_;
  std::set<grpc::ClientContext*> running_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace layercake::cli
