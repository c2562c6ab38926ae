#include "transport/cuda_ipc_channel.h"

#include <utility>

#include "transport/shared_ring_channel.h"

namespace layercake::transport {

absl::StatusOr<std::unique_ptr<ChannelReceiver>> CudaIpcChannelFactory::CreateReceiver(
    const ChannelOptions& options, ChannelContext context) {
  return CreateSharedRingReceiver({kind(), plain_, &memory_}, socket_folder_, options,
                                  std::move(context));
}

absl::StatusOr<std::unique_ptr<ChannelSender>> CudaIpcChannelFactory::Connect(
    absl::string_view offer, const ChannelOptions& options, ChannelContext context) {
  return ConnectSharedRing({kind(), plain_, &memory_}, offer, options, std::move(context));
}

}  // namespace layercake::transport
