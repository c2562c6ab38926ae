#include "transport/shared_ring_channel.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/posix_error.h"
#include "base/status_macros.h"
#include "transport/device_slots.h"
#include "transport/frame_parts.h"
#include "transport/frame_seal.h"
#include "transport/offer.h"
#include "transport/pinned_host_memory.h"
#include "transport/pinned_host_socket.h"
#include "transport/shared_ring_link.h"
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

// The geometry of the part in host memory.
ChannelGeometry HostGeometry(const SharedRingMeans& means, const ChannelGeometry& geometry) {
  return means.peer_memory == nullptr ? geometry : DeviceSlots::HostGeometry(geometry);
}

// Where a slot's bytes lie: one piece of host memory, or device memory with host memory beside it.
struct SlotMemory {
  kernels::Buffer payload;
  kernels::Buffer section;  // of a device slot
  bool on_device() const { return payload.space == kernels::MemorySpace::kDevice; }
};

SlotMemory SlotMemoryOf(const PinnedHostMemory& host, const std::optional<DeviceSlots>& device,
                        Lane lane, uint32_t slot) {
  if (!device.has_value() || lane == Lane::kPlan) return {host.Slot(lane, slot), {}};
  return {device->Slot(slot), host.Slot(lane, slot)};
}

absl::Status CheckSections(const SlotMemory& memory, uint32_t section_bytes) {
  if (!memory.on_device() || section_bytes <= memory.section.bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("commit sections of ", section_bytes,
                                                 " bytes beside a device slot, which has ",
                                                 memory.section.bytes, " for them"));
}

// What the checksum of a frame covers; its sections fit (CheckSections).
kernels::Buffer CheckedPart(const SlotMemory& memory, const FrameHeader& header) {
  if (memory.on_device()) {
    return {memory.section.address, header.section_bytes, memory.section.space};
  }
  const size_t bytes =
      header.first_part_bytes != 0 ? header.first_part_bytes : header.payload_bytes;
  return {memory.payload.address, bytes, memory.payload.space};
}

class SharedRingSender final : public ChannelSender {
 public:
  SharedRingSender(const SharedRingMeans& means, const ChannelOptions& options,
                   ChannelContext context)
      : means_(means),
        options_(options),
        tap_(context.tap),
        ring_(options.ring, options.geometry),
        link_(means.kind, options.peer, std::move(context)) {}
  ~SharedRingSender() override {
    if (greeting_.valid()) link_.watches().Remove(greeting_.get());
  }

  absl::Status Greet(const Offer& offer) {
    LC_ASSIGN_OR_RETURN(greeting_, ConnectSocket(offer.body));
    const PinnedHello hello{.ring = offer.ring, .secret = offer.secret};
    LC_RETURN_IF_ERROR(SendMessage(greeting_.get(), EncodePinnedHello(hello), {}));
    return link_.watches().Add(greeting_.get(), [this] { OnAnswer(); });
  }

  TransportKind kind() const override { return means_.kind; }
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
      const absl::Status credited = TakeCredit(lane, **credit);
      if (!credited.ok()) return link_.Fail(credited);
      slot = ring_.Acquire(lane);
    }
    const SlotMemory memory = SlotMemoryOf(*memory_, device_slots_, lane, *slot);
    return SendSlot{
        .lane = lane, .index = *slot, .memory = memory.payload, .section = memory.section};
  }

  absl::Status Commit(const SendSlot& slot, const OutgoingFrame& frame) override {
    return Publish(slot, frame, 0);
  }

  uint32_t part_bytes() const override {
    return means_.peer_memory == nullptr ? kFramePartBytes : 0;
  }

  absl::Status CommitPart(const SendSlot& slot, const OutgoingFrame& frame,
                          uint32_t bytes) override {
    LC_RETURN_IF_ERROR(status());
    if (slot.lane != Lane::kActivation || part_bytes() == 0) {
      return ChannelSender::CommitPart(slot, frame, bytes);
    }
    if (!departing_) {
      if (bytes >= frame.payload_bytes) return Publish(slot, frame, 0);
      if (bytes < std::max(frame.section_bytes, 1u)) {
        return absl::InvalidArgumentError(
            absl::StrCat("commit a first part of ", bytes, " bytes, the sections have ",
                         frame.section_bytes, " and are to be in it"));
      }
      return Publish(slot, frame, bytes);
    }
    if (departing_->slot() != slot.index) return StillDeparting(slot);
    LC_RETURN_IF_ERROR(departing_->Advance(bytes));
    if (memory_->PushProgress(slot.index, departing_->progress())) link_.RingPeer();
    if (departing_->whole()) departing_.reset();
    return absl::OkStatus();
  }

 private:
  // `first_part_bytes`: as the header has it.
  absl::Status Publish(const SendSlot& slot, const OutgoingFrame& frame,
                       uint32_t first_part_bytes) {
    if (slot.lane == Lane::kActivation && departing_) return StillDeparting(slot);
    const SlotMemory memory = SlotMemoryOf(*memory_, device_slots_, slot.lane, slot.index);
    LC_RETURN_IF_ERROR(CheckSections(memory, frame.section_bytes));
    LC_ASSIGN_OR_RETURN(FrameHeader header, ring_.Commit(slot.lane, slot.index, frame));
    header.first_part_bytes = first_part_bytes;
    const SealedFrame sealed = SealFrame(header, CheckedPart(memory, header), tap_);
    if (first_part_bytes != 0) {
      departing_.emplace(slot.index, header, memory.payload.address,
                         PartProgress{.bytes = first_part_bytes, .crc32c = sealed.payload_crc32c});
      // Nobody can wait for it yet.
      static_cast<void>(memory_->PushProgress(slot.index, departing_->progress()));
    }
    const int copies = sealed.verdict == FrameTap::Verdict::kDrop        ? 0
                       : sealed.verdict == FrameTap::Verdict::kSendTwice ? 2
                                                                         : 1;
    for (int i = 0; i < copies; ++i) {
      if (memory_->PushFrame(slot.lane, sealed.header, slot.index)) link_.RingPeer();
    }
    return absl::OkStatus();
  }

  absl::Status StillDeparting(const SendSlot& slot) const {
    return absl::FailedPreconditionError(
        absl::StrCat("commit slot ", slot.index, " of the activation lane while slot ",
                     departing_->slot(), " has been sent in part"));
  }

  absl::Status TakeCredit(Lane lane, uint32_t slot) {
    if (lane == Lane::kActivation && departing_ && departing_->slot() == slot) {
      return absl::DataLossError(absl::StrCat("refuse a credit for slot ", slot,
                                              " of the activation lane: it was sent in part only"));
    }
    return ring_.Credit(lane, slot);
  }

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
      return absl::FailedPreconditionError(absl::StrCat(
          link_.peer(), " refused the ", link_.kind_name(), " channel: ", answer.reason));
    }
    if (message.descriptors.size() != 3) {
      return absl::DataLossError(absl::StrCat("the welcome of ", link_.peer(), " came with ",
                                              message.descriptors.size(), " descriptors of 3"));
    }
    LC_ASSIGN_OR_RETURN(
        PinnedHostMemory memory,
        PinnedHostMemory::Open(std::move(message.descriptors[0]),
                               HostGeometry(means_, options_.geometry), means_.register_host));
    if (means_.peer_memory != nullptr) {
      LC_ASSIGN_OR_RETURN(device_slots_, DeviceSlots::Open(*means_.peer_memory, options_.geometry,
                                                           answer.device_ring));
    }
    LC_RETURN_IF_ERROR(link_.Start(std::move(socket), std::move(message.descriptors[2]),
                                   std::move(message.descriptors[1])));
    memory_.emplace(std::move(memory));
    return absl::OkStatus();
  }

  const SharedRingMeans means_;
  const ChannelOptions options_;
  FrameTap* const tap_;
  SenderRing ring_;
  base::UniqueFd greeting_;  // until the answer
  std::optional<PinnedHostMemory> memory_;
  std::optional<DeviceSlots> device_slots_;
  std::optional<DepartingFrame> departing_;  // sent in part
  SharedRingLink link_;
};

class SharedRingReceiver final : public ChannelReceiver {
 public:
  SharedRingReceiver(TransportKind kind, const ChannelOptions& options, ChannelContext context,
                     PinnedHostMemory memory, std::optional<DeviceSlots> device_slots,
                     SocketListener listener)
      : ring_(options.ring, options.geometry),
        memory_(std::move(memory)),
        device_slots_(std::move(device_slots)),
        listener_(std::move(listener)),
        offer_{.kind = kind,
               .ring = options.ring,
               .geometry = options.geometry,
               .secret = MakeSecret(),
               .body = listener_->path()},
        link_(kind, options.peer, std::move(context)) {}
  ~SharedRingReceiver() override { StopListening(); }

  absl::Status Start() {
    return link_.watches().Add(listener_->fd(), [this] { OnKnock(); });
  }

  TransportKind kind() const override { return link_.kind(); }
  std::string offer() const override { return EncodeOffer(offer_); }
  bool connected() const override { return connected_; }
  absl::Status status() const override { return link_.failure(); }

  absl::StatusOr<std::optional<ReceivedFrame>> Poll(Lane lane) override {
    LC_RETURN_IF_ERROR(status());
    absl::StatusOr<std::optional<ReceivedFrame>> received = TakeWhole(lane);
    if (!received.ok()) return link_.Fail(received.status());
    return received;
  }

  absl::StatusOr<std::optional<ReceivedFrame>> PollBegun(Lane lane) override {
    LC_RETURN_IF_ERROR(status());
    absl::StatusOr<std::optional<ReceivedFrame>> received = TakeBegun(lane);
    if (!received.ok()) return link_.Fail(received.status());
    return received;
  }

  absl::StatusOr<uint32_t> Arrived(const ReceivedFrame& frame) override {
    LC_RETURN_IF_ERROR(status());
    if (!IsArriving(frame.header.lane, frame.slot)) return frame.header.payload_bytes;
    if (const absl::Status looked = LookAtArriving(); !looked.ok()) return link_.Fail(looked);
    return arriving_->parts.arrived();
  }

  absl::Status CheckArrived(const ReceivedFrame& frame) override {
    LC_RETURN_IF_ERROR(status());
    if (!IsArriving(frame.header.lane, frame.slot)) return absl::OkStatus();
    if (const absl::Status checked = arriving_->parts.Check(); !checked.ok()) {
      return link_.Fail(checked);
    }
    if (arriving_->parts.whole()) arriving_.reset();
    return absl::OkStatus();
  }

  absl::Status Release(Lane lane, uint32_t slot) override {
    LC_RETURN_IF_ERROR(status());
    if (IsArriving(lane, slot)) {
      return absl::FailedPreconditionError(
          absl::StrCat("release slot ", slot, " of the activation lane, whose frame is arriving"));
    }
    LC_RETURN_IF_ERROR(ring_.Release(lane, slot));
    if (memory_.PushCredit(lane, slot)) link_.RingPeer();
    return absl::OkStatus();
  }

 private:
  // The frame in parts that was taken last, until all of it is there and checked.
  struct Arriving {
    ReceivedFrame frame;
    ArrivingFrame parts;
    bool given = false;  // by PollBegun
  };

  bool IsArriving(Lane lane, uint32_t slot) const {
    return lane == Lane::kActivation && arriving_.has_value() && arriving_->frame.slot == slot;
  }
  absl::Status LookAtArriving() {
    return arriving_->parts.Advance(
        memory_.ReadProgress(arriving_->frame.slot, arriving_->parts.arrived()));
  }

  absl::StatusOr<std::optional<ReceivedFrame>> TakeBegun(Lane lane) {
    if (lane != Lane::kActivation || !arriving_.has_value()) {
      LC_ASSIGN_OR_RETURN(const std::optional<ReceivedFrame> frame, Take(lane));
      if (!frame.has_value() || frame->header.first_part_bytes == 0) return frame;
      arriving_.emplace(
          Arriving{.frame = *frame, .parts = ArrivingFrame(frame->header, frame->payload.address)});
    }
    if (std::exchange(arriving_->given, true)) return std::nullopt;
    return arriving_->frame;
  }

  absl::StatusOr<std::optional<ReceivedFrame>> TakeWhole(Lane lane) {
    if (lane != Lane::kActivation) return Take(lane);  // never in parts, whatever is arriving
    if (!arriving_.has_value()) {
      LC_ASSIGN_OR_RETURN(std::optional<ReceivedFrame> frame, TakeBegun(lane));
      if (!frame.has_value() || !arriving_.has_value()) return frame;
      arriving_->given = false;
    }
    if (arriving_->given) return std::nullopt;
    // Until a look finds nothing new: that one asks for the doorbell.
    for (uint32_t before = 0; arriving_->parts.arrived() > before;) {
      before = arriving_->parts.arrived();
      LC_RETURN_IF_ERROR(LookAtArriving());
      LC_RETURN_IF_ERROR(arriving_->parts.Check());
      if (!arriving_->parts.whole()) continue;
      const ReceivedFrame frame = arriving_->frame;
      arriving_.reset();
      return frame;
    }
    return std::nullopt;
  }

  // The next entry of the lane; of a frame in parts, its first part is checked.
  absl::StatusOr<std::optional<ReceivedFrame>> Take(Lane lane) {
    LC_ASSIGN_OR_RETURN(const std::optional<PinnedHostMemory::Frame> frame, memory_.PopFrame(lane));
    if (!frame) return std::nullopt;
    LC_ASSIGN_OR_RETURN(const FrameHeader header, DecodeFrameHeader(frame->header));
    LC_RETURN_IF_ERROR(ring_.Accept(lane, frame->slot, header));
    SlotMemory memory = SlotMemoryOf(memory_, device_slots_, lane, frame->slot);
    if (!CheckSections(memory, header.section_bytes).ok()) {
      return absl::DataLossError(absl::StrCat("refuse a frame with sections of ",
                                              header.section_bytes, " bytes, a slot has room for ",
                                              memory.section.bytes));
    }
    if (header.first_part_bytes != 0 && (lane != Lane::kActivation || memory.on_device())) {
      return absl::DataLossError(absl::StrCat("refuse a frame in parts on the ", LaneName(lane),
                                              " lane of a ", link_.kind_name(), " channel"));
    }
    LC_RETURN_IF_ERROR(CheckPayload(header, CheckedPart(memory, header)));
    memory.payload.bytes = header.payload_bytes;
    if (memory.on_device()) {
      memory.payload.bytes -= header.section_bytes;
      memory.section.bytes = header.section_bytes;
    }
    return ReceivedFrame{.header = header,
                         .slot = frame->slot,
                         .payload = memory.payload,
                         .section = memory.section};
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
    const PinnedAnswer welcome{
        .welcome = true,
        .reason = {},
        .device_ring = device_slots_ ? device_slots_->description() : std::string()};
    LC_RETURN_IF_ERROR(SendMessage(fd, EncodePinnedAnswer(welcome),
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
    const PinnedAnswer refusal{.welcome = false, .reason = std::string(reason), .device_ring = {}};
    SendMessage(fd, EncodePinnedAnswer(refusal), {}).IgnoreError();
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
  std::optional<DeviceSlots> device_slots_;
  std::optional<SocketListener> listener_;  // until connected
  const Offer offer_;
  std::deque<base::UniqueFd> pending_;  // connections that have not proved the secret
  bool connected_ = false;
  std::optional<Arriving> arriving_;
  SharedRingLink link_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChannelReceiver>> CreateSharedRingReceiver(
    const SharedRingMeans& means, const std::string& socket_folder, const ChannelOptions& options,
    ChannelContext context) {
  LC_RETURN_IF_ERROR(ValidateGeometry(options.geometry));
  LC_ASSIGN_OR_RETURN(
      PinnedHostMemory memory,
      PinnedHostMemory::Create(HostGeometry(means, options.geometry), means.register_host));
  std::optional<DeviceSlots> device_slots;
  if (means.peer_memory != nullptr) {
    LC_ASSIGN_OR_RETURN(device_slots, DeviceSlots::Create(*means.peer_memory, options.geometry));
  }
  LC_ASSIGN_OR_RETURN(SocketListener listener, SocketListener::Create(socket_folder));
  auto receiver = std::make_unique<SharedRingReceiver>(means.kind, options, std::move(context),
                                                       std::move(memory), std::move(device_slots),
                                                       std::move(listener));
  LC_RETURN_IF_ERROR(receiver->Start());
  return receiver;
}

absl::StatusOr<std::unique_ptr<ChannelSender>> ConnectSharedRing(const SharedRingMeans& means,
                                                                 absl::string_view offer,
                                                                 const ChannelOptions& options,
                                                                 ChannelContext context) {
  LC_ASSIGN_OR_RETURN(const Offer checked, CheckOffer(offer, means.kind, options));
  auto sender = std::make_unique<SharedRingSender>(means, options, std::move(context));
  const absl::Status greeted = sender->Greet(checked);
  if (!greeted.ok()) {
    return absl::Status(greeted.code(),
                        absl::StrCat("connect to ", options.peer, " over ",
                                     TransportKindName(means.kind), ": ", greeted.message()));
  }
  return sender;
}

}  // namespace layercake::transport
