#include "simulation/sim_channel.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/slot_ring.h"

namespace layercake::simulation {

using transport::ChannelContext;
using transport::ChannelGeometry;
using transport::ChannelOptions;
using transport::FrameHeader;
using transport::kLaneCount;
using transport::Lane;

namespace {

// An end's on_ready, gone when the end is.
struct Signal {
  absl::AnyInvocable<void()> on_ready;
};

void Raise(const std::weak_ptr<Signal>& weak) {
  if (const std::shared_ptr<Signal> signal = weak.lock()) signal->on_ready();
}

class SlotMemory {
 public:
  explicit SlotMemory(const ChannelGeometry& geometry) {
    for (int lane = 0; lane < kLaneCount; ++lane) {
      const auto which = static_cast<Lane>(lane);
      slots_[static_cast<size_t>(lane)].assign(
          LaneSlots(geometry, which), std::vector<std::byte>(LaneSlotBytes(geometry, which)));
    }
  }
  kernels::Buffer At(Lane lane, uint32_t slot) {
    std::vector<std::byte>& bytes = slots_[static_cast<size_t>(lane)][slot];
    return {.address = bytes.data(), .bytes = bytes.size()};
  }

 private:
  std::array<std::vector<std::vector<std::byte>>, kLaneCount> slots_;
};

struct ArrivedFrame {
  FrameHeader header;
  uint32_t slot = 0;
};

}  // namespace

struct SimRing {
  explicit SimRing(const ChannelGeometry& geometry) : sent(geometry), received(geometry) {}

  SlotMemory sent;
  SlotMemory received;
  std::array<std::deque<ArrivedFrame>, kLaneCount> frames;
  std::array<std::deque<uint32_t>, kLaneCount> credits;
  bool connected = false;
  std::weak_ptr<Signal> receiver;
  std::weak_ptr<Signal> sender;
};

namespace {

class Sender final : public transport::ChannelSender {
 public:
  Sender(SimFabric& fabric, const ChannelOptions& options, std::shared_ptr<SimRing> shared,
         std::shared_ptr<Signal> signal)
      : fabric_(fabric),
        peer_(options.peer),
        ring_(options.ring, options.geometry),
        shared_(std::move(shared)),
        signal_(std::move(signal)) {}

  transport::TransportKind kind() const override { return transport::TransportKind::kLocal; }
  bool connected() const override { return true; }
  absl::Status status() const override {
    if (!shared_->receiver.expired()) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(peer_, " is gone"));
  }
  absl::StatusOr<std::optional<transport::SendSlot>> Acquire(Lane lane) override {
    LC_RETURN_IF_ERROR(status());
    std::deque<uint32_t>& credits = shared_->credits[static_cast<size_t>(lane)];
    for (; !credits.empty(); credits.pop_front()) {
      LC_RETURN_IF_ERROR(ring_.Credit(lane, credits.front()));
    }
    const std::optional<uint32_t> slot = ring_.Acquire(lane);
    if (!slot) return std::nullopt;
    return transport::SendSlot{
        .lane = lane, .index = *slot, .memory = shared_->sent.At(lane, *slot)};
  }
  absl::Status Commit(const transport::SendSlot& slot,
                      const transport::OutgoingFrame& frame) override {
    LC_RETURN_IF_ERROR(status());
    LC_ASSIGN_OR_RETURN(const FrameHeader header, ring_.Commit(slot.lane, slot.index, frame));
    const uint32_t row_bytes =
        slot.lane == Lane::kActivation ? frame.payload_bytes - frame.section_bytes : 0;
    wire_free_ = std::max(wire_free_, fabric_.clock->Now()) + fabric_.per_row_byte * row_bytes;
    fabric_.timers->At(wire_free_ + fabric_.hop,
                       [ring = shared_, lane = slot.lane, index = slot.index, header] {
                         std::memcpy(ring->received.At(lane, index).address,
                                     ring->sent.At(lane, index).address, header.payload_bytes);
                         ring->frames[static_cast<size_t>(lane)].push_back({header, index});
                         Raise(ring->receiver);
                       });
    return absl::OkStatus();
  }

 private:
  SimFabric& fabric_;
  const std::string peer_;
  transport::SenderRing ring_;
  base::Instant wire_free_;
  const std::shared_ptr<SimRing> shared_;
  const std::shared_ptr<Signal> signal_;
};

class Receiver final : public transport::ChannelReceiver {
 public:
  Receiver(SimFabric& fabric, const ChannelOptions& options, std::string offer,
           std::shared_ptr<SimRing> shared, std::shared_ptr<Signal> signal)
      : fabric_(fabric),
        peer_(options.peer),
        offer_(std::move(offer)),
        ring_(options.ring, options.geometry),
        shared_(std::move(shared)),
        signal_(std::move(signal)) {}
  ~Receiver() override { fabric_.waiting.erase(offer_); }

  transport::TransportKind kind() const override { return transport::TransportKind::kLocal; }
  std::string offer() const override { return offer_; }
  bool connected() const override { return shared_->connected; }
  absl::Status status() const override {
    if (!shared_->connected || !shared_->sender.expired()) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(peer_, " is gone"));
  }
  absl::StatusOr<std::optional<transport::ReceivedFrame>> Poll(Lane lane) override {
    LC_RETURN_IF_ERROR(status());
    std::deque<ArrivedFrame>& frames = shared_->frames[static_cast<size_t>(lane)];
    if (frames.empty()) return std::nullopt;
    const ArrivedFrame frame = frames.front();
    frames.pop_front();
    LC_RETURN_IF_ERROR(ring_.Accept(lane, frame.slot, frame.header));
    kernels::Buffer payload = shared_->received.At(lane, frame.slot);
    payload.bytes = frame.header.payload_bytes;
    return transport::ReceivedFrame{.header = frame.header, .slot = frame.slot, .payload = payload};
  }
  absl::Status Release(Lane lane, uint32_t slot) override {
    LC_RETURN_IF_ERROR(ring_.Release(lane, slot));
    fabric_.timers->At(fabric_.clock->Now() + fabric_.hop, [ring = shared_, lane, slot] {
      ring->credits[static_cast<size_t>(lane)].push_back(slot);
      Raise(ring->sender);
    });
    return absl::OkStatus();
  }

 private:
  SimFabric& fabric_;
  const std::string peer_;
  const std::string offer_;
  transport::ReceiverRing ring_;
  const std::shared_ptr<SimRing> shared_;
  const std::shared_ptr<Signal> signal_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<transport::ChannelReceiver>> SimChannelFactory::CreateReceiver(
    const ChannelOptions& options, ChannelContext context) {
  auto ring = std::make_shared<SimRing>(options.geometry);
  auto signal = std::make_shared<Signal>(Signal{std::move(context.on_ready)});
  ring->receiver = signal;
  std::string offer = absl::StrCat("sim-", ++fabric_.offers);
  fabric_.waiting.emplace(offer, ring);
  return std::make_unique<Receiver>(fabric_, options, std::move(offer), std::move(ring),
                                    std::move(signal));
}

absl::StatusOr<std::unique_ptr<transport::ChannelSender>> SimChannelFactory::Connect(
    absl::string_view offer, const ChannelOptions& options, ChannelContext context) {
  const auto waiting = fabric_.waiting.find(std::string(offer));
  if (waiting == fabric_.waiting.end()) {
    return absl::UnavailableError(absl::StrCat("nobody waits with the offer \"", offer, "\""));
  }
  std::shared_ptr<SimRing> ring = std::move(waiting->second);
  fabric_.waiting.erase(waiting);
  auto signal = std::make_shared<Signal>(Signal{std::move(context.on_ready)});
  ring->sender = signal;
  ring->connected = true;
  fabric_.timers->At(fabric_.clock->Now() + fabric_.hop, [ring] {
    Raise(ring->receiver);
    Raise(ring->sender);
  });
  return std::make_unique<Sender>(fabric_, options, std::move(ring), std::move(signal));
}

}  // namespace layercake::simulation
