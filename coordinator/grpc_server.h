// The coordinator's gRPC listeners: one for clients, one for workers, with limits, health and
// reflection.
//
// gRPC of the distribution has known ways to be brought down before any token is read, so both
// listen on loopback unless told otherwise, and beyond loopback only with mutual TLS or `insecure`.
// Health (grpc.health.v1) of "" and "layercake.v1.Inference" says NOT_SERVING until SetServing.
//
// Thread rule: any thread. Time is gRPC's own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/server.h"
#include "proto/grpc_channel.h"

namespace layercake::coordinator {

struct ListenOptions {
  // "127.0.0.1:50051", "[::1]:0", "localhost:0", "0.0.0.0:50051". Port 0: one that is free.
  std::string address = "127.0.0.1:0";
  TlsFiles tls;           // also honoured on loopback
  bool insecure = false;  // listen beyond loopback without TLS
};

struct GrpcServerOptions {
  ListenOptions clients;
  ListenOptions workers;
  // Workers dial the clients' listener; `workers` is not used. Everybody who may ask may then also
  // join as a worker.
  bool share_listener = false;

  // Of each listener.
  int max_threads = 16;
  size_t max_memory_bytes = size_t{512} << 20;  // gRPC's own buffers
  int max_streams_per_connection = 1024;
};

class GrpcServers {
 public:
  // Binds the ports; from then on the services are called. FailedPrecondition names the address
  // when its port is taken; InvalidArgument for an address that cannot be used, or one beyond
  // loopback without TLS or `insecure`. Services outlive the servers.
  static absl::StatusOr<std::unique_ptr<GrpcServers>> Start(const GrpcServerOptions& options,
                                                            grpc::Service& inference,
                                                            grpc::Service& control);
  // Shutdown without grace.
  ~GrpcServers();
  GrpcServers(const GrpcServers&) = delete;
  GrpcServers& operator=(const GrpcServers&) = delete;

  // With the port that was bound: what to dial. A wildcard address stays one.
  const std::string& client_address() const { return client_address_; }
  const std::string& worker_address() const { return worker_address_; }
  // One line for each listener that is open beyond loopback without TLS: what that means.
  const std::vector<std::string>& warnings() const { return warnings_; }

  void SetServing(bool serving);

  // NOT_SERVING, no new calls; running ones may end within `grace` and are cancelled then. Returns
  // when the last handler is done. Idempotent. Blocks: not for the decision thread, which those
  // calls may need to end.
  void Shutdown(absl::Duration grace);

 private:
  GrpcServers() = default;

  std::vector<std::unique_ptr<grpc::Server>> servers_;
  std::string client_address_;
  std::string worker_address_;
  std::vector<std::string> warnings_;
};

}  // namespace layercake::coordinator
