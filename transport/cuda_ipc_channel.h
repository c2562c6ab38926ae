// The `cuda_ipc` kind: both ends on CUDA devices of one host. The sender's device copies rows
// straight into the receiver's device memory, which it has mapped.
//
// Everything but the rows of activations goes as in pinned_host_channel.h: control words, plans and
// the sections of activations through shared host memory, doorbells, a socket that tells the peer's
// end. The handle of the device memory goes to a sender that has proved the offer's secret.
//
// That a handle could be opened says little (copies may "succeed" and move nothing): a channel is
// trusted after the probe (probe.h), which moves patterns by copies of both devices.
// Thread rule: a factory and its channels belong to their executor's thread; the factory outlives
// its channels.
#pragma once

#include <memory>
#include <string>

#include "transport/channel.h"
#include "transport/ring_memory.h"

namespace layercake::transport {

class CudaIpcChannelFactory final : public ChannelFactory {
 public:
  // `memory` is of the device that the stage computes on, and outlives the factory.
  // `socket_folder`: as PinnedHostOptions has it.
  CudaIpcChannelFactory(kernels::PeerMemory& memory, std::string socket_folder)
      : memory_(memory), socket_folder_(std::move(socket_folder)) {}

  TransportKind kind() const override { return TransportKind::kCudaIpc; }
  kernels::PeerMemory* peer_memory() const override { return &memory_; }
  // As PinnedHostChannelFactory, and the errors of PeerMemory::Create.
  absl::StatusOr<std::unique_ptr<ChannelReceiver>> CreateReceiver(const ChannelOptions& options,
                                                                  ChannelContext context) override;
  absl::StatusOr<std::unique_ptr<ChannelSender>> Connect(absl::string_view offer,
                                                         const ChannelOptions& options,
                                                         ChannelContext context) override;

 private:
  kernels::PeerMemory& memory_;
  const std::string socket_folder_;
  const RegisterHostMemory plain_;  // devices copy nothing to or from the host part
};

}  // namespace layercake::transport
