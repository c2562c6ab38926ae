#include "transport/local_channel.h"

#include <array>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/frame_seal.h"
#include "transport/ready_signal.h"
#include "transport/ring_memory.h"
#include "transport/slot_ring.h"

namespace layercake::transport {

// Thread-safe; the slots' bytes change hands with the frames and credits.
class LocalRing {
 public:
  struct Frame {
    std::array<std::byte, kFrameHeaderBytes> header;
    uint32_t slot = 0;
  };

  LocalRing(RingLayout layout, RingMemory memory, std::shared_ptr<ReadySignal> receiver)
      : layout_(layout), memory_(std::move(memory)), receiver_(std::move(receiver)) {}

  kernels::Buffer Slot(Lane lane, uint32_t slot) const {
    return layout_.Slot(memory_.base(), lane, slot);
  }

  bool Connect(std::shared_ptr<ReadySignal> sender) {
    std::shared_ptr<ReadySignal> receiver;
    {
      absl::MutexLock lock(&mutex_);
      if (receiver_ == nullptr || connected_) return false;
      connected_ = true;
      sender_ = std::move(sender);
      receiver = receiver_;
    }
    receiver->Raise();
    return true;
  }

  bool connected() const {
    absl::MutexLock lock(&mutex_);
    return connected_;
  }
  bool sender_gone() const {
    absl::MutexLock lock(&mutex_);
    return connected_ && sender_ == nullptr;
  }
  bool receiver_gone() const {
    absl::MutexLock lock(&mutex_);
    return receiver_ == nullptr;
  }

  void PushFrame(Lane lane, const Frame& frame) { Push(lane, frame, frames_, receiver_); }
  void PushCredit(Lane lane, uint32_t slot) { Push(lane, slot, credits_, sender_); }
  std::optional<Frame> PopFrame(Lane lane) { return Pop(lane, frames_); }
  std::optional<uint32_t> PopCredit(Lane lane) { return Pop(lane, credits_); }

  void CloseSender() { Close(sender_, receiver_); }
  void CloseReceiver() { Close(receiver_, sender_); }

 private:
  template <typename T>
  using Queues = std::array<std::deque<T>, kLaneCount>;

  template <typename T>
  void Push(Lane lane, const T& item, Queues<T>& queues, std::shared_ptr<ReadySignal>& to) {
    std::shared_ptr<ReadySignal> signal;
    {
      absl::MutexLock lock(&mutex_);
      queues[static_cast<size_t>(lane)].push_back(item);
      signal = to;
    }
    if (signal != nullptr) signal->Raise();
  }

  template <typename T>
  std::optional<T> Pop(Lane lane, Queues<T>& queues) {
    absl::MutexLock lock(&mutex_);
    std::deque<T>& queue = queues[static_cast<size_t>(lane)];
    if (queue.empty()) return std::nullopt;
    T item = queue.front();
    queue.pop_front();
    return item;
  }

  void Close(std::shared_ptr<ReadySignal>& mine, std::shared_ptr<ReadySignal>& peer) {
    std::shared_ptr<ReadySignal> signal;
    {
      absl::MutexLock lock(&mutex_);
      mine = nullptr;
      signal = peer;
    }
    if (signal != nullptr) signal->Raise();
  }

  const RingLayout layout_;
  const RingMemory memory_;

  mutable absl::Mutex mutex_;
  bool connected_ = false;                 // all of these under mutex_
  std::shared_ptr<ReadySignal> receiver_;  // null once that end is gone
  std::shared_ptr<ReadySignal> sender_;
  Queues<Frame> frames_;
  Queues<uint32_t> credits_;
};

namespace {

class LocalSender final : public ChannelSender {
 public:
  LocalSender(const ChannelOptions& options, std::shared_ptr<LocalRing> shared,
              std::shared_ptr<ReadySignal> signal, FrameTap* tap)
      : peer_(options.peer),
        ring_(options.ring, options.geometry),
        shared_(std::move(shared)),
        signal_(std::move(signal)),
        tap_(tap) {}
  ~LocalSender() override {
    signal_->Cancel();
    shared_->CloseSender();
  }

  TransportKind kind() const override { return TransportKind::kLocal; }
  bool connected() const override { return true; }
  absl::Status status() const override {
    if (!failure_.ok()) return failure_;
    if (!shared_->receiver_gone()) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(peer_, " closed its end of the local channel"));
  }

  absl::StatusOr<std::optional<SendSlot>> Acquire(Lane lane) override {
    LC_RETURN_IF_ERROR(status());
    while (const std::optional<uint32_t> credit = shared_->PopCredit(lane)) {
      failure_ = ring_.Credit(lane, *credit);
      LC_RETURN_IF_ERROR(failure_);
    }
    const std::optional<uint32_t> slot = ring_.Acquire(lane);
    if (!slot) return std::nullopt;
    return SendSlot{.lane = lane, .index = *slot, .memory = shared_->Slot(lane, *slot)};
  }

  absl::Status Commit(const SendSlot& slot, const OutgoingFrame& frame) override {
    LC_RETURN_IF_ERROR(status());
    LC_ASSIGN_OR_RETURN(const FrameHeader header, ring_.Commit(slot.lane, slot.index, frame));
    kernels::Buffer payload = shared_->Slot(slot.lane, slot.index);
    payload.bytes = header.payload_bytes;
    const SealedFrame sealed = SealFrame(header, payload, tap_);
    if (sealed.verdict == FrameTap::Verdict::kDrop) return absl::OkStatus();
    const LocalRing::Frame out{.header = sealed.header, .slot = slot.index};
    shared_->PushFrame(slot.lane, out);
    if (sealed.verdict == FrameTap::Verdict::kSendTwice) shared_->PushFrame(slot.lane, out);
    return absl::OkStatus();
  }

 private:
  const std::string peer_;
  SenderRing ring_;
  const std::shared_ptr<LocalRing> shared_;
  const std::shared_ptr<ReadySignal> signal_;
  FrameTap* const tap_;
  absl::Status failure_;
};

class LocalReceiver final : public ChannelReceiver {
 public:
  LocalReceiver(const ChannelOptions& options, LocalHub& hub, Offer offer,
                std::shared_ptr<LocalRing> shared, std::shared_ptr<ReadySignal> signal)
      : peer_(options.peer),
        hub_(hub),
        offer_(std::move(offer)),
        ring_(options.ring, options.geometry),
        shared_(std::move(shared)),
        signal_(std::move(signal)) {}
  ~LocalReceiver() override {
    signal_->Cancel();
    hub_.Remove(offer_.secret);
    shared_->CloseReceiver();
  }

  TransportKind kind() const override { return TransportKind::kLocal; }
  std::string offer() const override { return EncodeOffer(offer_); }
  bool connected() const override { return shared_->connected(); }
  absl::Status status() const override {
    if (!failure_.ok()) return failure_;
    if (!shared_->sender_gone()) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(peer_, " closed its end of the local channel"));
  }

  absl::StatusOr<std::optional<ReceivedFrame>> Poll(Lane lane) override {
    LC_RETURN_IF_ERROR(status());
    const std::optional<LocalRing::Frame> frame = shared_->PopFrame(lane);
    if (!frame) return std::nullopt;
    absl::StatusOr<ReceivedFrame> received = Check(lane, *frame);
    if (!received.ok()) failure_ = received.status();
    LC_RETURN_IF_ERROR(failure_);
    return *std::move(received);
  }

  absl::Status Release(Lane lane, uint32_t slot) override {
    LC_RETURN_IF_ERROR(status());
    LC_RETURN_IF_ERROR(ring_.Release(lane, slot));
    shared_->PushCredit(lane, slot);
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<ReceivedFrame> Check(Lane lane, const LocalRing::Frame& frame) {
    LC_ASSIGN_OR_RETURN(const FrameHeader header, DecodeFrameHeader(frame.header));
    LC_RETURN_IF_ERROR(ring_.Accept(lane, frame.slot, header));
    kernels::Buffer payload = shared_->Slot(lane, frame.slot);
    payload.bytes = header.payload_bytes;
    LC_RETURN_IF_ERROR(CheckPayload(header, payload));
    return ReceivedFrame{.header = header, .slot = frame.slot, .payload = payload};
  }

  const std::string peer_;
  LocalHub& hub_;
  const Offer offer_;
  ReceiverRing ring_;
  const std::shared_ptr<LocalRing> shared_;
  const std::shared_ptr<ReadySignal> signal_;
  absl::Status failure_;
};

}  // namespace

void LocalHub::Add(const Secret& secret, std::shared_ptr<LocalRing> ring) {
  absl::MutexLock lock(&mutex_);
  waiting_.emplace(secret, std::move(ring));
}

void LocalHub::Remove(const Secret& secret) {
  absl::MutexLock lock(&mutex_);
  waiting_.erase(secret);
}

std::shared_ptr<LocalRing> LocalHub::Take(const Secret& secret) {
  absl::MutexLock lock(&mutex_);
  const auto found = waiting_.find(secret);
  if (found == waiting_.end()) return nullptr;
  std::shared_ptr<LocalRing> ring = std::move(found->second);
  waiting_.erase(found);
  return ring;
}

absl::StatusOr<std::unique_ptr<ChannelReceiver>> LocalChannelFactory::CreateReceiver(
    const ChannelOptions& options, ChannelContext context) {
  LC_ASSIGN_OR_RETURN(const RingLayout layout, RingLayout::Create(options.geometry, 0));
  LC_ASSIGN_OR_RETURN(RingMemory memory, RingMemory::Allocate(layout.total_bytes(), {}));
  auto signal = std::make_shared<ReadySignal>(*context.executor, std::move(context.on_ready));
  auto ring = std::make_shared<LocalRing>(layout, std::move(memory), signal);
  Offer offer{.kind = TransportKind::kLocal,
              .ring = options.ring,
              .geometry = options.geometry,
              .secret = MakeSecret(),
              .body = {}};
  hub_.Add(offer.secret, ring);
  return std::make_unique<LocalReceiver>(options, hub_, std::move(offer), std::move(ring),
                                         std::move(signal));
}

absl::StatusOr<std::unique_ptr<ChannelSender>> LocalChannelFactory::Connect(
    absl::string_view offer, const ChannelOptions& options, ChannelContext context) {
  LC_ASSIGN_OR_RETURN(const Offer checked, CheckOffer(offer, TransportKind::kLocal, options));
  auto signal = std::make_shared<ReadySignal>(*context.executor, std::move(context.on_ready));
  std::shared_ptr<LocalRing> ring = hub_.Take(checked.secret);
  if (ring == nullptr || !ring->Connect(signal)) {
    return absl::UnavailableError(
        absl::StrCat("connect to ", options.peer,
                     " over local: no receiver of this process waits with this offer"));
  }
  return std::make_unique<LocalSender>(options, std::move(ring), std::move(signal), context.tap);
}

}  // namespace layercake::transport
