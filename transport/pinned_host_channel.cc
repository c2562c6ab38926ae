#include "transport/pinned_host_channel.h"

#include <cstdlib>
#include <utility>

#include "transport/shared_ring_channel.h"

namespace layercake::transport {

std::string DefaultSocketFolder() {
  for (const char* name : {"XDG_RUNTIME_DIR", "TMPDIR"}) {
    const char* const folder = std::getenv(name);
    if (folder != nullptr && folder[0] == '/') return folder;
  }
  return "/tmp";
}

absl::StatusOr<std::unique_ptr<ChannelReceiver>> PinnedHostChannelFactory::CreateReceiver(
    const ChannelOptions& options, ChannelContext context) {
  return CreateSharedRingReceiver({kind(), options_.register_host_memory, nullptr},
                                  options_.socket_folder, options, std::move(context));
}

absl::StatusOr<std::unique_ptr<ChannelSender>> PinnedHostChannelFactory::Connect(
    absl::string_view offer, const ChannelOptions& options, ChannelContext context) {
  return ConnectSharedRing({kind(), options_.register_host_memory, nullptr}, offer, options,
                           std::move(context));
}

}  // namespace layercake::transport
