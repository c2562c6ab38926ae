#include "transport/pinned_host_channel.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/posix_error.h"
#include "base/status_macros.h"
#include "transport/frame_seal.h"
#include "transport/offer.h"
#include "transport/pinned_host_memory.h"
#include "transport/pinned_host_socket.h"
#include "transport/ready_signal.h"
#include "transport/slot_ring.h"

namespace layercake::transport {
namespace {

// Greetings that may be under way at once before the oldest is dropped.
constexpr size_t kMaxPending = 8;

absl::StatusOr<base::UniqueFd> MakeDoorbell() {
  base::UniqueFd bell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell.valid()) return base::PosixError("create the doorbell of a channel", errno);
  return bell;
}

// Descriptors under watch, all of which end with this object.
class Watches {
 public:
  explicit Watches(base::FdWatcher& watcher) : watcher_(watcher) {}
  ~Watches() {
    for (const int fd : fds_) watcher_.Unwatch(fd);
  }
  absl::Status Add(int fd, base::Task on_readable) {
    LC_RETURN_IF_ERROR(watcher_.Watch(fd, std::move(on_readable)));
    fds_.push_back(fd);
    return absl::OkStatus();
  }
  void Remove(int fd) {
    if (std::erase(fds_, fd) > 0) watcher_.Unwatch(fd);
  }

 private:
  base::FdWatcher& watcher_;
  std::vector<int> fds_;
};

// What both ends hold once they are connected: memory, doorbells, the socket that tells the peer's
// end. The first failure stays.
class PinnedLink {
 public:
  PinnedLink(std::string peer, ChannelContext context)
      : peer_(std::move(peer)),
        signal_(std::make_shared<ReadySignal>(*context.executor, std::move(context.on_ready))),
        watches_(*context.watcher) {}
  ~PinnedLink() { signal_->Cancel(); }

  // From here on `own_bell` runs on_ready, and the end of `socket` is the peer's.
  absl::Status Start(base::UniqueFd socket, base::UniqueFd own_bell, base::UniqueFd peer_bell) {
    socket_ = std::move(socket);
    own_bell_ = std::move(own_bell);
    peer_bell_ = std::move(peer_bell);
    LC_RETURN_IF_ERROR(watches_.Add(socket_.get(), [this] { OnSocket(); }));
    return watches_.Add(own_bell_.get(), [this] { OnDoorbell(); });
  }

  void RingPeer() { eventfd_write(peer_bell_.get(), 1); }
  const absl::Status& Fail(absl::Status status) {
    if (failure_.ok()) failure_ = std::move(status);
    return failure_;
  }
  const absl::Status& FailPeerGone() {
    return Fail(absl::UnavailableError(
        absl::StrCat(peer_, " closed its end of the pinned_host channel, or its process ended")));
  }
  const absl::Status& failure() const { return failure_; }
  const std::string& peer() const { return peer_; }
  const std::shared_ptr<ReadySignal>& signal() const { return signal_; }
  Watches& watches() { return watches_; }

 private:
  void OnDoorbell() {
    eventfd_t rings = 0;
    eventfd_read(own_bell_.get(), &rings);
    RunReady();
  }
  void OnSocket() {
    const absl::StatusOr<std::optional<SocketMessage>> message = ReceiveMessage(socket_.get());
    // A connected peer has nothing more to say: a message is dropped, the end is the end.
    if (message.ok() && (!message->has_value() || !(*message)->bytes.empty())) return;
    FailPeerGone();
    watches_.Remove(socket_.get());
    RunReady();
  }
  // on_ready may destroy this object: nothing of it is touched afterwards.
  void RunReady() {
    const std::shared_ptr<ReadySignal> signal = signal_;
    signal->RunNow();
  }

  const std::string peer_;
  const std::shared_ptr<ReadySignal> signal_;
  absl::Status failure_;
  base::UniqueFd socket_;
  base::UniqueFd own_bell_;
  base::UniqueFd peer_bell_;
  Watches watches_;  // before the descriptors go
};

class PinnedSender final : public ChannelSender {
 public:
  PinnedSender(const ChannelOptions& options, ChannelContext context,
               const RegisterHostMemory& register_memory)
      : options_(options),
        register_memory_(register_memory),
        tap_(context.tap),
        ring_(options.ring, options.geometry),
        link_(options.peer, std::move(context)) {}
  ~PinnedSender() override {
    if (greeting_.valid()) link_.watches().Remove(greeting_.get());
  }

  absl::Status Greet(const Offer& offer) {
    LC_ASSIGN_OR_RETURN(greeting_, ConnectSocket(offer.body));
    const PinnedHello hello{.ring = offer.ring, .secret = offer.secret};
    LC_RETURN_IF_ERROR(SendMessage(greeting_.get(), EncodePinnedHello(hello), {}));
    return link_.watches().Add(greeting_.get(), [this] { OnAnswer(); });
  }

  TransportKind kind() const override { return TransportKind::kPinnedHost; }
  bool connected() const override { return memory_.has_value(); }
  absl::Status status() const override { return link_.failure(); }

  absl::StatusOr<std::optional<SendSlot>> Acquire(Lane lane) override {
    LC_RETURN_IF_ERROR(status());
    if (!connected()) return std::nullopt;
    std::optional<uint32_t> slot = ring_.Acquire(lane);
    while (!slot) {
      absl::StatusOr<std::optional<uint32_t>> credit = memory_->PopCredit(lane);
      if (!credit.ok()) return link_.Fail(credit.status());
      if (!credit->has_value()) return std::nullopt;
      const absl::Status credited = ring_.Credit(lane, **credit);
      if (!credited.ok()) return link_.Fail(credited);
      slot = ring_.Acquire(lane);
    }
    return SendSlot{.lane = lane, .index = *slot, .memory = memory_->Slot(lane, *slot)};
  }

  absl::Status Commit(const SendSlot& slot, const OutgoingFrame& frame) override {
    LC_RETURN_IF_ERROR(status());
    LC_ASSIGN_OR_RETURN(const FrameHeader header, ring_.Commit(slot.lane, slot.index, frame));
    const SealedFrame sealed = SealFrame(header, memory_->Slot(slot.lane, slot.index), tap_);
    const int copies = sealed.verdict == FrameTap::Verdict::kDrop        ? 0
                       : sealed.verdict == FrameTap::Verdict::kSendTwice ? 2
                                                                         : 1;
    for (int i = 0; i < copies; ++i) {
      if (memory_->PushFrame(slot.lane, sealed.header, slot.index)) link_.RingPeer();
    }
    return absl::OkStatus();
  }

 private:
  void OnAnswer() {
    absl::StatusOr<std::optional<SocketMessage>> message = ReceiveMessage(greeting_.get());
    if (message.ok() && !message->has_value()) return;
    base::UniqueFd socket = std::move(greeting_);
    link_.watches().Remove(socket.get());
    const absl::Status taken =
        message.ok() ? TakeAnswer(**std::move(message), std::move(socket)) : message.status();
    if (!taken.ok()) link_.Fail(taken);
    const std::shared_ptr<ReadySignal> signal = link_.signal();
    signal->RunNow();
  }

  absl::Status TakeAnswer(SocketMessage message, base::UniqueFd socket) {
    if (message.bytes.empty()) return link_.FailPeerGone();
    LC_ASSIGN_OR_RETURN(const PinnedAnswer answer, DecodePinnedAnswer(message.bytes));
    if (!answer.welcome) {
      return absl::FailedPreconditionError(
          absl::StrCat(link_.peer(), " refused the pinned_host channel: ", answer.reason));
    }
    if (message.descriptors.size() != 3) {
      return absl::DataLossError(absl::StrCat("the welcome of ", link_.peer(), " came with ",
                                              message.descriptors.size(), " descriptors of 3"));
    }
    LC_ASSIGN_OR_RETURN(PinnedHostMemory memory,
                        PinnedHostMemory::Open(std::move(message.descriptors[0]), options_.geometry,
                                               register_memory_));
    LC_RETURN_IF_ERROR(link_.Start(std::move(socket), std::move(message.descriptors[2]),
                                   std::move(message.descriptors[1])));
    memory_.emplace(std::move(memory));
    return absl::OkStatus();
  }

  const ChannelOptions options_;
  const RegisterHostMemory& register_memory_;
  FrameTap* const tap_;
  SenderRing ring_;
  base::UniqueFd greeting_;  // until the answer
  std::optional<PinnedHostMemory> memory_;
  PinnedLink link_;
};

class PinnedReceiver final : public ChannelReceiver {
 public:
  PinnedReceiver(const ChannelOptions& options, ChannelContext context, PinnedHostMemory memory,
                 SocketListener listener)
      : ring_(options.ring, options.geometry),
        memory_(std::move(memory)),
        listener_(std::move(listener)),
        offer_{.kind = TransportKind::kPinnedHost,
               .ring = options.ring,
               .geometry = options.geometry,
               .secret = MakeSecret(),
               .body = listener_->path()},
        link_(options.peer, std::move(context)) {}
  ~PinnedReceiver() override { StopListening(); }

  absl::Status Start() {
    return link_.watches().Add(listener_->fd(), [this] { OnKnock(); });
  }

  TransportKind kind() const override { return TransportKind::kPinnedHost; }
  std::string offer() const override { return EncodeOffer(offer_); }
  bool connected() const override { return connected_; }
  absl::Status status() const override { return link_.failure(); }

  absl::StatusOr<std::optional<ReceivedFrame>> Poll(Lane lane) override {
    LC_RETURN_IF_ERROR(status());
    absl::StatusOr<std::optional<ReceivedFrame>> received = Take(lane);
    if (!received.ok()) return link_.Fail(received.status());
    return received;
  }

  absl::Status Release(Lane lane, uint32_t slot) override {
    LC_RETURN_IF_ERROR(status());
    LC_RETURN_IF_ERROR(ring_.Release(lane, slot));
    if (memory_.PushCredit(lane, slot)) link_.RingPeer();
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<std::optional<ReceivedFrame>> Take(Lane lane) {
    LC_ASSIGN_OR_RETURN(const std::optional<PinnedHostMemory::Frame> frame, memory_.PopFrame(lane));
    if (!frame) return std::nullopt;
    LC_ASSIGN_OR_RETURN(const FrameHeader header, DecodeFrameHeader(frame->header));
    LC_RETURN_IF_ERROR(ring_.Accept(lane, frame->slot, header));
    kernels::Buffer payload = memory_.Slot(lane, frame->slot);
    payload.bytes = header.payload_bytes;
    LC_RETURN_IF_ERROR(CheckPayload(header, payload));
    return ReceivedFrame{.header = header, .slot = frame->slot, .payload = payload};
  }

  void OnKnock() {
    absl::StatusOr<base::UniqueFd> knock = listener_->Accept();
    if (!knock.ok()) {
      // Another user was turned away; anything else (no descriptors left) ends the offer.
      if (!absl::IsPermissionDenied(knock.status())) FailAndRun(knock.status());
      return;
    }
    if (!knock->valid()) return;
    if (pending_.size() >= kMaxPending) DropPending(pending_.front().get());
    const int fd = knock->get();
    pending_.push_back(*std::move(knock));
    const absl::Status watched = link_.watches().Add(fd, [this, fd] { OnGreeting(fd); });
    if (!watched.ok()) FailAndRun(watched);
  }

  void OnGreeting(int fd) {
    absl::StatusOr<std::optional<SocketMessage>> message = ReceiveMessage(fd);
    if (message.ok() && !message->has_value()) return;
    if (!message.ok() || (*message)->bytes.empty()) return DropPending(fd);
    const absl::StatusOr<PinnedHello> hello = DecodePinnedHello((*message)->bytes);
    if (!hello.ok()) return Refuse(fd, hello.status().message());
    if (!SameSecret(hello->secret, offer_.secret) || hello->ring != offer_.ring) {
      return Refuse(fd, "the secret or the ring is not of this offer");
    }
    const absl::Status welcomed = Welcome(fd);
    if (!welcomed.ok()) return Refuse(fd, welcomed.message());
    const std::shared_ptr<ReadySignal> signal = link_.signal();
    signal->RunNow();
  }

  absl::Status Welcome(int fd) {
    LC_ASSIGN_OR_RETURN(base::UniqueFd own_bell, MakeDoorbell());
    LC_ASSIGN_OR_RETURN(base::UniqueFd peer_bell, MakeDoorbell());
    LC_RETURN_IF_ERROR(SendMessage(fd, EncodePinnedAnswer({.welcome = true, .reason = {}}),
                                   {memory_.fd(), own_bell.get(), peer_bell.get()}));
    const auto pending = std::find_if(pending_.begin(), pending_.end(),
                                      [fd](const base::UniqueFd& p) { return p.get() == fd; });
    base::UniqueFd socket = std::move(*pending);
    link_.watches().Remove(fd);
    pending_.erase(pending);
    connected_ = true;
    StopListening();
    const absl::Status started =
        link_.Start(std::move(socket), std::move(own_bell), std::move(peer_bell));
    if (!started.ok()) link_.Fail(started);
    return absl::OkStatus();
  }

  void Refuse(int fd, absl::string_view reason) {
    // Best effort: one that left does not hear it.
    SendMessage(fd, EncodePinnedAnswer({.welcome = false, .reason = std::string(reason)}), {})
        .IgnoreError();
    DropPending(fd);
  }
  void DropPending(int fd) {
    link_.watches().Remove(fd);
    std::erase_if(pending_, [fd](const base::UniqueFd& pending) { return pending.get() == fd; });
  }
  void StopListening() {
    while (!pending_.empty()) DropPending(pending_.front().get());
    if (!listener_) return;
    link_.watches().Remove(listener_->fd());
    listener_.reset();
  }
  void FailAndRun(absl::Status status) {
    link_.Fail(std::move(status));
    StopListening();
    const std::shared_ptr<ReadySignal> signal = link_.signal();
    signal->RunNow();
  }

  ReceiverRing ring_;
  PinnedHostMemory memory_;
  std::optional<SocketListener> listener_;  // until connected
  const Offer offer_;
  std::deque<base::UniqueFd> pending_;  // connections that have not proved the secret
  bool connected_ = false;
  PinnedLink link_;
};

}  // namespace

std::string DefaultSocketFolder() {
  for (const char* name : {"XDG_RUNTIME_DIR", "TMPDIR"}) {
    const char* const folder = std::getenv(name);
    if (folder != nullptr && folder[0] == '/') return folder;
  }
  return "/tmp";
}

absl::StatusOr<std::unique_ptr<ChannelReceiver>> PinnedHostChannelFactory::CreateReceiver(
    const ChannelOptions& options, ChannelContext context) {
  LC_ASSIGN_OR_RETURN(PinnedHostMemory memory,
                      PinnedHostMemory::Create(options.geometry, options_.register_host_memory));
  LC_ASSIGN_OR_RETURN(SocketListener listener, SocketListener::Create(options_.socket_folder));
  auto receiver = std::make_unique<PinnedReceiver>(options, std::move(context), std::move(memory),
                                                   std::move(listener));
  LC_RETURN_IF_ERROR(receiver->Start());
  return receiver;
}

absl::StatusOr<std::unique_ptr<ChannelSender>> PinnedHostChannelFactory::Connect(
    absl::string_view offer, const ChannelOptions& options, ChannelContext context) {
  LC_ASSIGN_OR_RETURN(const Offer checked, CheckOffer(offer, TransportKind::kPinnedHost, options));
  auto sender =
      std::make_unique<PinnedSender>(options, std::move(context), options_.register_host_memory);
  const absl::Status greeted = sender->Greet(checked);
  if (!greeted.ok()) {
    return absl::Status(greeted.code(), absl::StrCat("connect to ", options.peer,
                                                     " over pinned_host: ", greeted.message()));
  }
  return sender;
}

}  // namespace layercake::transport
