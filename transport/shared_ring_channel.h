// The channels between two processes of one host that share memory: pinned_host, with every slot in
// host memory, and cuda_ipc, with the activation slots in the receiver's device memory.
// pinned_host_channel.h says how the two ends meet and signal.
//
// Thread rule: as the factories say.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/peer_memory.h"
#include "transport/channel.h"
#include "transport/ring_memory.h"

namespace layercake::transport {

// What a factory lends its channels. What it refers to outlives them.
struct SharedRingMeans {
  TransportKind kind;
  const RegisterHostMemory& register_host;
  kernels::PeerMemory* peer_memory;  // null: every slot in host memory
};

absl::StatusOr<std::unique_ptr<ChannelReceiver>> CreateSharedRingReceiver(
    const SharedRingMeans& means, const std::string& socket_folder, const ChannelOptions& options,
    ChannelContext context);
absl::StatusOr<std::unique_ptr<ChannelSender>> ConnectSharedRing(const SharedRingMeans& means,
                                                                 absl::string_view offer,
                                                                 const ChannelOptions& options,
                                                                 ChannelContext context);

}  // namespace layercake::transport
