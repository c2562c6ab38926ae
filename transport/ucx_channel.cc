#include "transport/ucx_channel.h"

#include <array>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "transport/frame_seal.h"
#include "transport/little_endian.h"
#include "transport/offer.h"
#include "transport/slot_ring.h"
#include "transport/ucx_loop.h"

namespace layercake::transport {
namespace {

constexpr size_t kFrameMessageBytes = 4 + kFrameHeaderBytes;
constexpr size_t kCreditMessageBytes = 5;
constexpr size_t kWelcomeBytes = 9;
constexpr size_t kTokenBytes = 8;  // at the start of an offer's body
// Of a UCX worker: a few hundred bytes per network device.
constexpr size_t kMaxAddressBytes = size_t{32} << 10;

std::string PeerClosed(absl::string_view peer) {
  return absl::StrCat(peer, " closed its end of the ucx channel");
}

// The slots of one end.
struct UcxSlots {
  RingLayout layout;
  RingMemory memory;

  kernels::Buffer Slot(Lane lane, uint32_t slot) const {
    return layout.Slot(memory.base(), lane, slot);
  }
};

absl::StatusOr<UcxSlots> MakeSlots(const ChannelGeometry& geometry,
                                   const RegisterHostMemory& register_memory) {
  LC_ASSIGN_OR_RETURN(RingLayout layout, RingLayout::Create(geometry, 0));
  LC_ASSIGN_OR_RETURN(RingMemory memory,
                      RingMemory::Allocate(layout.total_bytes(), register_memory));
  return UcxSlots{.layout = layout, .memory = std::move(memory)};
}

absl::Status WorkerStopped(absl::string_view peer) {
  return absl::UnavailableError(absl::StrCat("the UCX worker that serves the channel to ", peer,
                                             " has stopped or is overloaded"));
}

class SenderLink final : public UcxLink {
 public:
  SenderLink(const ChannelOptions& options, UcxSlots slots, std::shared_ptr<ReadySignal> signal)
      : UcxLink(options.peer, absl::MakeSpan(slots.memory.base(), slots.memory.bytes()),
                std::move(signal)),
        slots_(std::move(slots)),
        ring_(options.ring, options.geometry) {
    for (const Lane lane : {Lane::kPlan, Lane::kActivation}) {
      progress_[static_cast<size_t>(lane)].resize(LaneSlots(options.geometry, lane));
    }
    AcceptMessagesFor(token());
  }

  // Executor's thread.

  std::optional<uint32_t> Acquire(Lane lane) {
    absl::MutexLock lock(&mutex_);
    return ring_.Acquire(lane);
  }
  absl::StatusOr<FrameHeader> Commit(const SendSlot& slot, const OutgoingFrame& frame) {
    absl::MutexLock lock(&mutex_);
    return ring_.Commit(slot.lane, slot.index, frame);
  }
  void ExpectSend(Lane lane, uint32_t slot) {
    absl::MutexLock lock(&mutex_);
    ++progress_[static_cast<size_t>(lane)][slot].sends;
  }
  kernels::Buffer Slot(Lane lane, uint32_t slot) const { return slots_.Slot(lane, slot); }

  // Loop's thread.

  void Greet(UcxLoop& loop, const Offer& offer, uint64_t receiver_token) {
    const absl::string_view address = absl::string_view(offer.body).substr(kTokenBytes);
    const absl::Status connected = loop.Connect(*this, address, receiver_token);
    if (!connected.ok()) return Fail(connected);
    const UcxHello hello{.sender_token = token(), .ring = offer.ring, .secret = offer.secret};
    loop.Send(*this, UcxMessageKind::kHello, EncodeUcxHello(hello), AsBytes(loop.address()),
              [this](ucs_status_t status) { CheckSent(status); });
  }

  void SendFrame(UcxLoop& loop, Lane lane, uint32_t slot, const SealedFrame& frame) {
    std::array<std::byte, kFrameMessageBytes> message;
    StoreLittleEndian(message.data(), slot);
    std::memcpy(message.data() + 4, frame.header.data(), frame.header.size());
    loop.Send(*this, UcxMessageKind::kFrame, message,
              absl::MakeConstSpan(frame.payload.address, frame.payload.bytes),
              [this, lane, slot](ucs_status_t status) {
                CheckSent(status);
                if (status == UCS_OK) OnSent(lane, slot);
              });
  }

  bool OnMessage(UcxLoop&, const UcxMessage& message) override {
    const absl::Status taken = Take(message);
    if (!taken.ok()) Fail(taken);
    return false;
  }

 private:
  // A slot is free again when its credit is back and UCX has let go of it.
  struct SlotProgress {
    uint32_t sends = 0;  // under way
    bool credited = false;
  };

  static absl::Span<const std::byte> AsBytes(const std::string& text) {
    return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
  }

  absl::Status Take(const UcxMessage& message) {
    switch (message.kind) {
      case UcxMessageKind::kAnswer:
        return TakeAnswer(message.header);
      case UcxMessageKind::kCredit:
        return TakeCredit(message.header);
      case UcxMessageKind::kBye:
        return absl::UnavailableError(PeerClosed(peer()));
      default:
        return absl::DataLossError(
            absl::StrCat("refuse a message of ", peer(), " that only a sender may send"));
    }
  }

  absl::Status TakeAnswer(absl::Span<const std::byte> header) {
    const auto code = header.empty() ? std::byte{} : header[0];
    if (header.size() == kWelcomeBytes && code == static_cast<std::byte>(UcxAnswer::kWelcome)) {
      SendTo(LoadLittleEndian<uint64_t>(header.data() + 1));
      SetConnected();
      return absl::OkStatus();
    }
    if (code == static_cast<std::byte>(UcxAnswer::kNoSuchReceiver)) {
      return absl::UnavailableError(
          absl::StrCat("connect to ", peer(), " over ucx: the receiver of this offer is gone"));
    }
    return absl::FailedPreconditionError(absl::StrCat(
        peer(), " refused the ucx channel: the secret or the ring is not of its offer"));
  }

  absl::Status TakeCredit(absl::Span<const std::byte> header) {
    const Lane lane = header.empty() || header[0] == std::byte{0} ? Lane::kPlan : Lane::kActivation;
    absl::MutexLock lock(&mutex_);
    std::vector<SlotProgress>& slots = progress_[static_cast<size_t>(lane)];
    if (header.size() != kCreditMessageBytes || static_cast<uint8_t>(header[0]) >= kLaneCount) {
      return absl::DataLossError(absl::StrCat("refuse a credit of ", header.size(), " bytes"));
    }
    const auto slot = LoadLittleEndian<uint32_t>(header.data() + 1);
    if (slot >= slots.size() || slots[slot].credited) {
      return absl::DataLossError(absl::StrCat("refuse a credit for slot ", slot, " of the ",
                                              LaneName(lane), " lane: no frame waits for it"));
    }
    slots[slot].credited = true;
    return FreeIfDone(lane, slot);
  }

  void OnSent(Lane lane, uint32_t slot) {
    absl::Status freed;
    {
      absl::MutexLock lock(&mutex_);
      --progress_[static_cast<size_t>(lane)][slot].sends;
      freed = FreeIfDone(lane, slot);
    }
    if (!freed.ok()) Fail(freed);
  }

  absl::Status FreeIfDone(Lane lane, uint32_t slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SlotProgress& progress = progress_[static_cast<size_t>(lane)][slot];
    if (progress.sends > 0 || !progress.credited) return absl::OkStatus();
    progress.credited = false;
    LC_RETURN_IF_ERROR(ring_.Credit(lane, slot));
    Wake();
    return absl::OkStatus();
  }

  void CheckSent(ucs_status_t status) {
    if (status == UCS_OK) return;
    Fail(UcxError(absl::StrCat("send to ", peer(), " over ucx"), status));
  }

  const UcxSlots slots_;

  absl::Mutex mutex_;
  SenderRing ring_ ABSL_GUARDED_BY(mutex_);
  std::array<std::vector<SlotProgress>, kLaneCount> progress_ ABSL_GUARDED_BY(mutex_);
};

class ReceiverLink final : public UcxLink {
 public:
  ReceiverLink(const ChannelOptions& options, const Secret& secret, UcxSlots slots,
               std::shared_ptr<ReadySignal> signal)
      : UcxLink(options.peer, absl::MakeSpan(slots.memory.base(), slots.memory.bytes()),
                std::move(signal)),
        options_(options),
        secret_(secret),
        slots_(std::move(slots)),
        ring_(options.ring, options.geometry) {}

  // Executor's thread.

  // The next frame of the lane if all of it has landed; its payload is not checked yet.
  std::optional<ReceivedFrame> Pop(Lane lane) {
    absl::MutexLock lock(&mutex_);
    std::deque<Arrival>& arrivals = arrivals_[static_cast<size_t>(lane)];
    if (arrivals.empty() || !arrivals.front().landed) return std::nullopt;
    const Arrival arrival = arrivals.front();
    arrivals.pop_front();
    ReceivedFrame frame{
        .header = arrival.header, .slot = arrival.slot, .payload = slots_.Slot(lane, arrival.slot)};
    frame.payload.bytes = arrival.header.payload_bytes;
    return frame;
  }
  absl::Status Release(Lane lane, uint32_t slot) {
    absl::MutexLock lock(&mutex_);
    return ring_.Release(lane, slot);
  }

  // Loop's thread.

  void SendCredit(UcxLoop& loop, Lane lane, uint32_t slot) {
    std::array<std::byte, kCreditMessageBytes> message;
    message[0] = static_cast<std::byte>(lane);
    StoreLittleEndian(message.data() + 1, slot);
    Tell(loop, UcxMessageKind::kCredit, message);
  }

  bool OnMessage(UcxLoop& loop, const UcxMessage& message) override {
    const absl::StatusOr<bool> taken = Take(loop, message);
    if (taken.ok()) return *taken;
    Fail(taken.status());
    return false;
  }

 private:
  struct Arrival {
    FrameHeader header;
    uint32_t slot = 0;
    bool landed = false;
  };

  absl::StatusOr<bool> Take(UcxLoop& loop, const UcxMessage& message) {
    switch (message.kind) {
      case UcxMessageKind::kHello:
        // A stranger's greeting does not disturb the channel.
        Welcome(loop, message);
        return false;
      case UcxMessageKind::kFrame:
        return TakeFrame(loop, message);
      case UcxMessageKind::kBye:
        return absl::UnavailableError(PeerClosed(peer()));
      default:
        return absl::DataLossError(
            absl::StrCat("refuse a message of ", peer(), " that only a receiver may send"));
    }
  }

  void Welcome(UcxLoop& loop, const UcxMessage& message) {
    const absl::StatusOr<UcxHello> hello = DecodeUcxHello(message.header);
    if (greeted_ || message.rendezvous || message.payload_bytes > kMaxAddressBytes || !hello.ok() ||
        !SameSecret(hello->secret, secret_) || hello->ring != options_.ring) {
      return loop.RefuseHello(message, UcxAnswer::kNotThisOffer);
    }
    greeted_ = true;
    std::string address(static_cast<const char*>(message.payload), message.payload_bytes);
    // Endpoints are not to be made inside a callback of UCX.
    loop.AfterProgress([this, held = shared_from_this(), &loop, address = std::move(address),
                        token = hello->sender_token] {
      const absl::Status connected = loop.Connect(*this, address, token);
      if (!connected.ok()) return Fail(connected);
      const uint64_t session = base::EntropySeed();
      loop.AddToken(held, session);
      AcceptMessagesFor(session);
      std::array<std::byte, kWelcomeBytes> welcome;
      welcome[0] = static_cast<std::byte>(UcxAnswer::kWelcome);
      StoreLittleEndian(welcome.data() + 1, session);
      Tell(loop, UcxMessageKind::kAnswer, welcome);
      SetConnected();
    });
  }

  absl::StatusOr<bool> TakeFrame(UcxLoop& loop, const UcxMessage& message) {
    if (!failure().ok() || !greeted_) return false;
    if (message.header.size() != kFrameMessageBytes) {
      return absl::DataLossError(absl::StrCat("refuse a frame message with a header of ",
                                              message.header.size(), " bytes"));
    }
    const auto slot = LoadLittleEndian<uint32_t>(message.header.data());
    LC_ASSIGN_OR_RETURN(const FrameHeader header, DecodeFrameHeader(message.header.subspan(4)));
    if (message.payload_bytes != header.payload_bytes) {
      return absl::DataLossError(absl::StrCat("refuse frame ", header.sequence, " of the ",
                                              LaneName(header.lane), " lane: it came with ",
                                              message.payload_bytes, " bytes, its header says ",
                                              header.payload_bytes));
    }
    const Lane lane = header.lane;
    {
      absl::MutexLock lock(&mutex_);
      LC_RETURN_IF_ERROR(ring_.Accept(lane, slot, header));
      arrivals_[static_cast<size_t>(lane)].push_back({.header = header, .slot = slot});
    }
    const kernels::Buffer to = slots_.Slot(lane, slot);
    if (message.rendezvous) {
      loop.Receive(*this, message.payload, absl::MakeSpan(to.address, header.payload_bytes),
                   [this, lane, slot](ucs_status_t status) {
                     if (status == UCS_OK) return OnLanded(lane, slot);
                     Fail(UcxError(absl::StrCat("receive from ", peer(), " over ucx"), status));
                   });
      return true;
    }
    if (header.payload_bytes > 0) std::memcpy(to.address, message.payload, header.payload_bytes);
    OnLanded(lane, slot);
    return false;
  }

  void OnLanded(Lane lane, uint32_t slot) {
    {
      absl::MutexLock lock(&mutex_);
      for (Arrival& arrival : arrivals_[static_cast<size_t>(lane)]) {
        if (arrival.slot == slot) arrival.landed = true;
      }
    }
    Wake();
  }

  void Tell(UcxLoop& loop, UcxMessageKind kind, absl::Span<const std::byte> message) {
    loop.Send(*this, kind, message, {}, [this](ucs_status_t status) {
      if (status == UCS_OK) return;
      Fail(UcxError(absl::StrCat("answer ", peer(), " over ucx"), status));
    });
  }

  const ChannelOptions options_;
  const Secret secret_;
  const UcxSlots slots_;

  bool greeted_ = false;  // loop's thread

  absl::Mutex mutex_;
  ReceiverRing ring_ ABSL_GUARDED_BY(mutex_);
  // Frames accepted and not polled, in order, per lane.
  std::array<std::deque<Arrival>, kLaneCount> arrivals_ ABSL_GUARDED_BY(mutex_);
};

class UcxSender final : public ChannelSender {
 public:
  UcxSender(UcxLoop& loop, std::shared_ptr<SenderLink> link, std::shared_ptr<ReadySignal> signal,
            FrameTap* tap)
      : loop_(loop), link_(std::move(link)), signal_(std::move(signal)), tap_(tap) {}
  ~UcxSender() override {
    signal_->Cancel();
    // A loop that refuses has ended, and the link with it.
    static_cast<void>(loop_.Post([&loop = loop_, link = link_] { loop.Close(link); }));
  }

  TransportKind kind() const override { return TransportKind::kUcx; }
  bool connected() const override { return link_->connected(); }
  absl::Status status() const override { return link_->failure(); }

  absl::StatusOr<std::optional<SendSlot>> Acquire(Lane lane) override {
    LC_RETURN_IF_ERROR(status());
    if (!connected()) return std::nullopt;
    const std::optional<uint32_t> slot = link_->Acquire(lane);
    if (!slot) return std::nullopt;
    return SendSlot{.lane = lane, .index = *slot, .memory = link_->Slot(lane, *slot)};
  }

  absl::Status Commit(const SendSlot& slot, const OutgoingFrame& frame) override {
    LC_RETURN_IF_ERROR(status());
    LC_ASSIGN_OR_RETURN(const FrameHeader header, link_->Commit(slot, frame));
    kernels::Buffer payload = link_->Slot(slot.lane, slot.index);
    payload.bytes = header.payload_bytes;
    const SealedFrame sealed = SealFrame(header, payload, tap_);
    const int copies = sealed.verdict == FrameTap::Verdict::kDrop        ? 0
                       : sealed.verdict == FrameTap::Verdict::kSendTwice ? 2
                                                                         : 1;
    for (int i = 0; i < copies; ++i) {
      link_->ExpectSend(slot.lane, slot.index);
      const bool posted =
          loop_.Post([&loop = loop_, link = link_, lane = slot.lane, index = slot.index, sealed] {
            link->SendFrame(loop, lane, index, sealed);
          });
      if (!posted) link_->Fail(WorkerStopped(link_->peer()));
    }
    return status();
  }

 private:
  UcxLoop& loop_;
  const std::shared_ptr<SenderLink> link_;
  const std::shared_ptr<ReadySignal> signal_;
  FrameTap* const tap_;
};

class UcxReceiver final : public ChannelReceiver {
 public:
  UcxReceiver(UcxLoop& loop, std::string offer, std::shared_ptr<ReceiverLink> link,
              std::shared_ptr<ReadySignal> signal)
      : loop_(loop), offer_(std::move(offer)), link_(std::move(link)), signal_(std::move(signal)) {}
  ~UcxReceiver() override {
    signal_->Cancel();
    static_cast<void>(loop_.Post([&loop = loop_, link = link_] { loop.Close(link); }));
  }

  TransportKind kind() const override { return TransportKind::kUcx; }
  std::string offer() const override { return offer_; }
  bool connected() const override { return link_->connected(); }
  absl::Status status() const override { return link_->failure(); }

  absl::StatusOr<std::optional<ReceivedFrame>> Poll(Lane lane) override {
    LC_RETURN_IF_ERROR(status());
    std::optional<ReceivedFrame> frame = link_->Pop(lane);
    if (!frame) return std::nullopt;
    // Here and not where it landed: a long payload would hold up every other channel.
    const absl::Status checked = CheckPayload(frame->header, frame->payload);
    if (!checked.ok()) {
      link_->Fail(checked);
      return status();
    }
    return frame;
  }

  absl::Status Release(Lane lane, uint32_t slot) override {
    LC_RETURN_IF_ERROR(status());
    LC_RETURN_IF_ERROR(link_->Release(lane, slot));
    const bool posted = loop_.Post(
        [&loop = loop_, link = link_, lane, slot] { link->SendCredit(loop, lane, slot); });
    if (!posted) link_->Fail(WorkerStopped(link_->peer()));
    return status();
  }

 private:
  UcxLoop& loop_;
  const std::string offer_;
  const std::shared_ptr<ReceiverLink> link_;
  const std::shared_ptr<ReadySignal> signal_;
};

void OpenOrFail(UcxLoop& loop, const std::shared_ptr<UcxLink>& link) {
  const absl::Status opened = loop.Open(link);
  if (!opened.ok()) link->Fail(opened);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChannelReceiver>> UcxChannelFactory::CreateReceiver(
    const ChannelOptions& options, ChannelContext context) {
  LC_ASSIGN_OR_RETURN(UcxSlots slots, MakeSlots(options.geometry, register_host_memory_));
  UcxLoop& loop = worker_.loop();
  auto signal = std::make_shared<ReadySignal>(*context.executor, std::move(context.on_ready));
  const Secret secret = MakeSecret();
  auto link = std::make_shared<ReceiverLink>(options, secret, std::move(slots), signal);
  std::string body(kTokenBytes, '\0');
  StoreLittleEndian(reinterpret_cast<std::byte*>(body.data()), link->token());
  body += loop.address();
  std::string offer = EncodeOffer({.kind = TransportKind::kUcx,
                                   .ring = options.ring,
                                   .geometry = options.geometry,
                                   .secret = secret,
                                   .body = std::move(body)});
  loop.Announce(link);
  if (!loop.Post([&loop, link] { OpenOrFail(loop, link); })) return WorkerStopped(options.peer);
  return std::make_unique<UcxReceiver>(loop, std::move(offer), std::move(link), std::move(signal));
}

absl::StatusOr<std::unique_ptr<ChannelSender>> UcxChannelFactory::Connect(
    absl::string_view offer, const ChannelOptions& options, ChannelContext context) {
  LC_ASSIGN_OR_RETURN(Offer checked, CheckOffer(offer, TransportKind::kUcx, options));
  if (checked.body.size() <= kTokenBytes || checked.body.size() > kMaxAddressBytes) {
    return absl::DataLossError(absl::StrCat(
        "connect to ", options.peer, " over ucx: its address has ", checked.body.size(), " bytes"));
  }
  LC_ASSIGN_OR_RETURN(UcxSlots slots, MakeSlots(options.geometry, register_host_memory_));
  UcxLoop& loop = worker_.loop();
  auto signal = std::make_shared<ReadySignal>(*context.executor, std::move(context.on_ready));
  auto link = std::make_shared<SenderLink>(options, std::move(slots), signal);
  const auto token =
      LoadLittleEndian<uint64_t>(reinterpret_cast<const std::byte*>(checked.body.data()));
  loop.Announce(link);
  const bool posted = loop.Post([&loop, link, checked = std::move(checked), token] {
    OpenOrFail(loop, link);
    if (link->failure().ok()) link->Greet(loop, checked, token);
  });
  if (!posted) return WorkerStopped(options.peer);
  return std::make_unique<UcxSender>(loop, std::move(link), std::move(signal), context.tap);
}

}  // namespace layercake::transport
