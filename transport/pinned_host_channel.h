// The `pinned_host` kind: both ends on one host, slots in shared memory.
//
// The receiver makes a sealed memfd with the slots and control words of both lanes and listens on a
// Unix socket in a fresh folder that only its user may enter. The sender connects, proves the
// offer's secret, and gets the memfd and two doorbells (eventfds) over the socket; each side checks
// the other's user id. The folder goes as soon as the sender is in. Frames and credits then move
// through shared memory; a doorbell rings only for a side that asked for it after finding nothing.
// The socket stays open for one purpose: its end of file says at once that the peer is gone.
//
// A new ring is a new memfd: what an older process still writes, it writes into the old one.
// Thread rule: a factory and its channels belong to their executor's thread; the factory outlives
// its channels.
#pragma once

#include <memory>
#include <string>

#include "transport/channel.h"
#include "transport/ring_memory.h"

namespace layercake::transport {

struct PinnedHostOptions {
  // Where socket folders are made: an existing folder, short (a socket's path has 107 bytes).
  std::string socket_folder;
  // Called with every mapping of a ring, in both processes. Empty: plain memory.
  RegisterHostMemory register_host_memory;
};

// $XDG_RUNTIME_DIR, else $TMPDIR, else /tmp. Reads the environment: for main.
std::string DefaultSocketFolder();

class PinnedHostChannelFactory final : public ChannelFactory {
 public:
  explicit PinnedHostChannelFactory(PinnedHostOptions options) : options_(std::move(options)) {}

  TransportKind kind() const override { return TransportKind::kPinnedHost; }
  // ResourceExhausted, naming the bytes, when the memory is not there. NotFound or InvalidArgument
  // when the socket folder is unfit.
  absl::StatusOr<std::unique_ptr<ChannelReceiver>> CreateReceiver(const ChannelOptions& options,
                                                                  ChannelContext context) override;
  // Unavailable: nobody listens there any more.
  absl::StatusOr<std::unique_ptr<ChannelSender>> Connect(absl::string_view offer,
                                                         const ChannelOptions& options,
                                                         ChannelContext context) override;

 private:
  const PinnedHostOptions options_;
};

}  // namespace layercake::transport
