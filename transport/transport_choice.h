// Which kinds of channel to try between two stages, in order, and why.
//
// Thread rule: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/channel.h"
#include "transport/host_identity.h"

namespace layercake::transport {

// auto: no kind. A kind: that one is preferred; a worker uses no other in its place. required: it
// is refused at once when it cannot work between these ends.
struct TransportRequest {
  std::optional<TransportKind> kind;
  bool required = false;
};
// "auto", a kind's name, or "require:" and a kind's name. InvalidArgument lists the choices.
absl::StatusOr<TransportRequest> ParseTransportRequest(absl::string_view text);

// What one end says of itself.
struct EndpointFacts {
  HostIdentity host;
  // The device and inode of its socket folder's parent: two ends with the same one can meet at a
  // Unix socket, whatever namespaces they are in. Empty: unknown.
  std::string socket_scope;
  bool has_ucx = true;
  bool on_cuda = false;  // computes on a CUDA device, whose memory it can share
  friend bool operator==(const EndpointFacts&, const EndpointFacts&) = default;
};

struct TransportChoice {
  std::vector<TransportKind> kinds;  // in the order to try; never empty
  std::string reason;                // one line for the log, without the kinds' measured numbers
};

// Whether copies between two devices arrive is not known here: the probe finds out, and the next
// kind's turn comes when they do not.
// FailedPrecondition: a required kind cannot work between these ends, or nothing can.
absl::StatusOr<TransportChoice> ChooseTransport(const TransportRequest& request,
                                                const EndpointFacts& upstream,
                                                const EndpointFacts& downstream);

// The socket_scope of `socket_folder`. A Posix error, naming it, when it is not there.
absl::StatusOr<std::string> ReadSocketScope(const std::string& socket_folder);

}  // namespace layercake::transport
