// How Layercake's own programs dial each other: limits, keepalive and mutual TLS in one place.
// Pure functions apart from reading the TLS files; any thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace layercake {

// Paths of PEM files: one's own certificate and key, and the authority that the peer's certificate
// must come from. All empty: no TLS.
struct TlsFiles {
  std::string certificate;
  std::string key;
  std::string authority;

  bool empty() const { return certificate.empty() && key.empty() && authority.empty(); }
};

// Server credentials that demand and verify a client certificate. InvalidArgument when only some of
// the three are given, NotFound and others (with the path) when one cannot be read.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsFiles& files);

struct ChannelOptions {
  std::string target;  // "host:port"
  TlsFiles tls;
  int max_message_bytes = 0;  // received and sent; from protocol_version.h
};
// A channel with keepalive (a frozen or unplugged peer ends the calls within 15 s) that never
// shares its connection with another channel. Connects on first use. Errors as above.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const ChannelOptions& options);

// A connection that says nothing for this long is pinged, and ends when no answer comes within
// the timeout. Servers allow pings half as far apart.
inline constexpr int kKeepaliveTimeMs = 10'000;
inline constexpr int kKeepaliveTimeoutMs = 5'000;

}  // namespace layercake
