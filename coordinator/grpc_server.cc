#include "coordinator/grpc_server.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/listen_address.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"
#include "proto/protocol_version.h"

namespace layercake::coordinator {
namespace {

constexpr char kInferenceName[] = "layercake.v1.Inference";
constexpr int kMaxMetadataBytes = 16 << 10;

enum class Door { kClients, kWorkers, kBoth };

struct Listener {
  std::unique_ptr<grpc::Server> server;
  ListenAddress bound;
};

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> CredentialsFor(
    const ListenOptions& listen, const ListenAddress& address, Door door) {
  if (!listen.tls.empty()) return MakeServerCredentials(listen.tls);
  if (address.loopback || listen.insecure) return grpc::InsecureServerCredentials();
  return absl::InvalidArgumentError(absl::StrCat(
      "refusing to listen on ", address.ToString(), " for ",
      door == Door::kWorkers ? "workers" : "clients",
      " without TLS: everybody who can reach it could use it; give certificate, key and authority "
      "for mutual TLS, listen on loopback, or allow it with insecure"));
}

std::string WarningFor(const ListenAddress& address, Door door) {
  std::string open;
  if (door != Door::kWorkers) {
    open = "read every prompt and answer on the way, use the model, and exhaust the server";
  }
  if (door != Door::kClients) {
    absl::StrAppend(&open, open.empty() ? "" : "; ",
                    "join as a worker, read the model's weights and change its answers");
  }
  return absl::StrCat("gRPC on ", address.ToString(),
                      " is open without TLS: everybody who can reach it can ", open);
}

void SetArguments(const GrpcServerOptions& options, Door door, grpc::ServerBuilder* builder) {
  // A second server must fail to bind instead of taking every other connection.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kKeepaliveTimeMs / 2);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams_per_connection);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder->SetMaxReceiveMessageSize(door == Door::kClients ? kMaxInferenceRequestBytes
                                                           : kMaxControlMessageBytes);
  builder->SetMaxSendMessageSize(door == Door::kClients ? kMaxInferenceResponseBytes
                                                        : kMaxControlMessageBytes);
  grpc::ResourceQuota quota("layercake");
  quota.Resize(options.max_memory_bytes);
  quota.SetMaxThreads(options.max_threads);
  builder->SetResourceQuota(quota);
  // Reflection is a synchronous service: one queue, few pollers.
  builder->SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder->SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder->SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
}

void SetHealth(grpc::Server& server, bool serving) {
  grpc::HealthCheckServiceInterface* health = server.GetHealthCheckService();
  if (health == nullptr) return;
  health->SetServingStatus("", serving);
  health->SetServingStatus(kInferenceName, serving);
}

absl::StatusOr<Listener> Listen(const GrpcServerOptions& options, const ListenOptions& listen,
                                Door door, std::initializer_list<grpc::Service*> services) {
  LC_ASSIGN_OR_RETURN(ListenAddress address, ParseListenAddress(listen.address));
  LC_ASSIGN_OR_RETURN(std::shared_ptr<grpc::ServerCredentials> credentials,
                      CredentialsFor(listen, address, door));
  // gRPC says only that it failed: learn the reason first.
  LC_RETURN_IF_ERROR(TryBind(address));
  grpc::ServerBuilder builder;
  SetArguments(options, door, &builder);
  int port = 0;
  builder.AddListeningPort(address.ToString(), std::move(credentials), &port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  Listener listener{builder.BuildAndStart(), address};
  if (listener.server == nullptr || port == 0) {
    // Somebody was faster, or the certificate and key are unusable.
    LC_RETURN_IF_ERROR(TryBind(address));
    return absl::InvalidArgumentError(
        absl::StrCat("cannot listen on ", address.ToString(),
                     listen.tls.empty() ? ": gRPC refused it, see its log"
                                        : ": gRPC refused the TLS certificate, key or authority; "
                                          "check that the key belongs to the certificate"));
  }
  listener.bound.port = port;
  SetHealth(*listener.server, false);
  return listener;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServers>> GrpcServers::Start(const GrpcServerOptions& options,
                                                                grpc::Service& inference,
                                                                grpc::Service& control) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  std::unique_ptr<GrpcServers> servers(new GrpcServers);
  const auto add =
      [&](const ListenOptions& listen, Door door,
          std::initializer_list<grpc::Service*> services) -> absl::StatusOr<std::string> {
    LC_ASSIGN_OR_RETURN(Listener listener, Listen(options, listen, door, services));
    if (!listener.bound.loopback && listen.tls.empty()) {
      servers->warnings_.push_back(WarningFor(listener.bound, door));
    }
    servers->servers_.push_back(std::move(listener.server));
    return listener.bound.ToString();
  };
  if (options.share_listener) {
    LC_ASSIGN_OR_RETURN(servers->client_address_,
                        add(options.clients, Door::kBoth, {&inference, &control}));
    servers->worker_address_ = servers->client_address_;
    return servers;
  }
  LC_ASSIGN_OR_RETURN(servers->client_address_, add(options.clients, Door::kClients, {&inference}));
  LC_ASSIGN_OR_RETURN(servers->worker_address_, add(options.workers, Door::kWorkers, {&control}));
  return servers;
}

GrpcServers::~GrpcServers() { Shutdown(absl::ZeroDuration()); }

void GrpcServers::SetServing(bool serving) {
  for (const std::unique_ptr<grpc::Server>& server : servers_) SetHealth(*server, serving);
}

void GrpcServers::Shutdown(absl::Duration grace) {
  SetServing(false);
  // Clients first: their running streams still need the workers.
  for (const std::unique_ptr<grpc::Server>& server : servers_) {
    // A span from now, on gRPC's own clock.
    server->Shutdown(gpr_time_from_millis(absl::ToInt64Milliseconds(grace), GPR_TIMESPAN));
  }
}

}  // namespace layercake::coordinator
