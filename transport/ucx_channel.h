// The `ucx` kind: frames as UCX active messages (RDMA, shared memory or TCP, whatever UCX has),
// each landing in the receiver's slot; credits as small messages back.
//
// An offer carries the receiver's worker address. Every message names a channel by a random token
// that only its peer was told, so what an older process still sends finds no channel.
// Thread rule: a factory and its channels belong to their executor's thread.
#pragma once

#include <memory>

#include "transport/channel.h"
#include "transport/ring_memory.h"
#include "transport/ucx_worker.h"

namespace layercake::transport {

class UcxChannelFactory final : public ChannelFactory {
 public:
  // `worker` outlives the factory and its channels. `register_host_memory` is called with the slots
  // of every channel; empty: plain memory.
  explicit UcxChannelFactory(UcxWorker& worker, RegisterHostMemory register_host_memory = {})
      : worker_(worker), register_host_memory_(std::move(register_host_memory)) {}

  TransportKind kind() const override { return TransportKind::kUcx; }
  absl::StatusOr<std::unique_ptr<ChannelReceiver>> CreateReceiver(const ChannelOptions& options,
                                                                  ChannelContext context) override;
  // A receiver that is gone shows later, in the sender's status().
  absl::StatusOr<std::unique_ptr<ChannelSender>> Connect(absl::string_view offer,
                                                         const ChannelOptions& options,
                                                         ChannelContext context) override;

 private:
  UcxWorker& worker_;
  const RegisterHostMemory register_host_memory_;
};

}  // namespace layercake::transport
