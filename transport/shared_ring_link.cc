#include "transport/shared_ring_link.h"

#include <sys/eventfd.h>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/pinned_host_socket.h"

namespace layercake::transport {

Watches::~Watches() {
  for (const int fd : fds_) watcher_.Unwatch(fd);
}

absl::Status Watches::Add(int fd, base::Task on_readable) {
  LC_RETURN_IF_ERROR(watcher_.Watch(fd, std::move(on_readable)));
  fds_.push_back(fd);
  return absl::OkStatus();
}

void Watches::Remove(int fd) {
  if (std::erase(fds_, fd) > 0) watcher_.Unwatch(fd);
}

SharedRingLink::SharedRingLink(TransportKind kind, std::string peer, ChannelContext context)
    : kind_(kind),
      peer_(std::move(peer)),
      signal_(std::make_shared<ReadySignal>(*context.executor, std::move(context.on_ready))),
      watches_(*context.watcher) {}

absl::Status SharedRingLink::Start(base::UniqueFd socket, base::UniqueFd own_bell,
                                   base::UniqueFd peer_bell) {
  socket_ = std::move(socket);
  own_bell_ = std::move(own_bell);
  peer_bell_ = std::move(peer_bell);
  LC_RETURN_IF_ERROR(watches_.Add(socket_.get(), [this] { OnSocket(); }));
  return watches_.Add(own_bell_.get(), [this] { OnDoorbell(); });
}

void SharedRingLink::RingPeer() { eventfd_write(peer_bell_.get(), 1); }

const absl::Status& SharedRingLink::FailPeerGone() {
  return Fail(absl::UnavailableError(absl::StrCat(peer_, " closed its end of the ", kind_name(),
                                                  " channel, or its process ended")));
}

void SharedRingLink::OnDoorbell() {
  eventfd_t rings = 0;
  eventfd_read(own_bell_.get(), &rings);
  RunReady();
}

void SharedRingLink::OnSocket() {
  const absl::StatusOr<std::optional<SocketMessage>> message = ReceiveMessage(socket_.get());
  // A connected peer has nothing more to say: a message is dropped, the end is the end.
  if (message.ok() && (!message->has_value() || !(*message)->bytes.empty())) return;
  FailPeerGone();
  watches_.Remove(socket_.get());
  RunReady();
}

// on_ready may destroy this object: nothing of it is touched afterwards.
void SharedRingLink::RunReady() {
  const std::shared_ptr<ReadySignal> signal = signal_;
  signal->RunNow();
}

}  // namespace layercake::transport
