// "host:port" of a listener, checked. Pure apart from TryBind; any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace layercake::coordinator {

struct ListenAddress {
  std::string host;  // numeric; IPv6 without brackets
  int port = 0;
  bool ipv6 = false;
  bool loopback = false;

  std::string ToString() const;  // "127.0.0.1:50051", "[::1]:50051"
};

// Takes numeric addresses and "localhost" (which becomes 127.0.0.1: a name with two addresses could
// be taken on one of them and still seem to listen). InvalidArgument says what is wrong.
absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text);

// Binds and lets go again: why a listener could not be made, in the system's words. The code is
// FailedPrecondition when the port is taken.
absl::Status TryBind(const ListenAddress& address);

}  // namespace layercake::coordinator
