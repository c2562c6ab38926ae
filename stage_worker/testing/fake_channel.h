// Both ends of a channel in a test that owns time: frames lie where the test can see, hold back and
// change them.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "transport/channel.h"

namespace layercake::stage_worker::testing {

// What both ends share. Frames that were committed wait in `sent` until Deliver.
struct FakeRing {
  struct LaneState {
    std::vector<std::vector<std::byte>> slots;
    std::vector<std::vector<std::byte>> sections;  // of device slots
    std::deque<uint32_t> free;
    std::deque<transport::ReceivedFrame> sent;
    std::deque<transport::ReceivedFrame> arrived;
    uint64_t committed = 0;
    uint64_t released = 0;
  };
  std::array<LaneState, transport::kLaneCount> lanes;
  absl::Status status;
  // Activation slots look like a device's (to a device whose memory is the host's).
  bool device_slots = false;
  bool hold = false;  // frames stay in `sent` until the test delivers them
  // Not 0: activations go in parts. What was said of the one under way, and what came of it.
  uint32_t part_bytes = 0;
  std::vector<uint32_t> said;  // of all frames in parts
  uint32_t arrived = 0;
  absl::Status harm;  // what the check of the next part says

  FakeRing(uint32_t plan_slots, uint32_t plan_bytes, uint32_t activation_slots,
           uint32_t activation_bytes) {
    Fill(lane(transport::Lane::kPlan), plan_slots, plan_bytes);
    Fill(lane(transport::Lane::kActivation), activation_slots, activation_bytes);
  }
  LaneState& lane(transport::Lane which) { return lanes[static_cast<size_t>(which)]; }
  void Deliver(transport::Lane which) {
    LaneState& state = lane(which);
    if (state.sent.empty()) return;
    state.arrived.push_back(state.sent.front());
    state.sent.pop_front();
  }
  static void Fill(LaneState& state, uint32_t count, uint32_t bytes) {
    for (uint32_t i = 0; i < count; ++i) {
      state.slots.emplace_back(bytes);
      state.sections.emplace_back(bytes);
      state.free.push_back(i);
    }
  }
};

class FakeSender final : public transport::ChannelSender {
 public:
  explicit FakeSender(FakeRing& ring) : ring_(ring) {}
  transport::TransportKind kind() const override { return transport::TransportKind::kLocal; }
  bool connected() const override { return true; }
  absl::Status status() const override { return ring_.status; }
  absl::StatusOr<std::optional<transport::SendSlot>> Acquire(transport::Lane lane) override {
    if (!ring_.status.ok()) return ring_.status;
    FakeRing::LaneState& state = ring_.lane(lane);
    if (state.free.empty()) return std::optional<transport::SendSlot>();
    const uint32_t index = state.free.front();
    state.free.pop_front();
    transport::SendSlot slot{.lane = lane,
                             .index = index,
                             .memory = {state.slots[index].data(), state.slots[index].size()}};
    if (ring_.device_slots && lane == transport::Lane::kActivation) {
      slot.memory.space = kernels::MemorySpace::kDevice;
      slot.section = {state.sections[index].data(), state.sections[index].size()};
    }
    return slot;
  }
  absl::Status Commit(const transport::SendSlot& slot,
                      const transport::OutgoingFrame& frame) override {
    FakeRing::LaneState& state = ring_.lane(slot.lane);
    transport::ReceivedFrame received;
    received.header.kind = frame.kind;
    received.header.lane = slot.lane;
    received.header.step = frame.step;
    received.header.sequence = state.committed++;
    received.header.section_bytes = frame.section_bytes;
    received.header.payload_bytes = frame.payload_bytes;
    received.header.sent_us = frame.sent_us;
    received.slot = slot.index;
    received.payload = {slot.memory.address, frame.payload_bytes, slot.memory.space};
    if (slot.memory.space == kernels::MemorySpace::kDevice) {
      received.payload.bytes -= frame.section_bytes;
      received.section = {slot.section.address, frame.section_bytes};
    }
    state.sent.push_back(received);
    if (!ring_.hold) ring_.Deliver(slot.lane);
    return absl::OkStatus();
  }
  uint32_t part_bytes() const override { return ring_.part_bytes; }
  absl::Status CommitPart(const transport::SendSlot& slot, const transport::OutgoingFrame& frame,
                          uint32_t bytes) override {
    const bool first = ring_.said.empty() || ring_.said.back() == all_;
    all_ = frame.payload_bytes;
    ring_.said.push_back(bytes);
    if (!first) return absl::OkStatus();
    ring_.arrived = bytes;
    absl::Status committed = Commit(slot, frame);
    FakeRing::LaneState& state = ring_.lane(slot.lane);
    (state.sent.empty() ? state.arrived : state.sent).back().header.first_part_bytes = bytes;
    return committed;
  }

 private:
  FakeRing& ring_;
  uint32_t all_ = 0;  // of the last frame in parts
};

class FakeReceiver final : public transport::ChannelReceiver {
 public:
  explicit FakeReceiver(FakeRing& ring) : ring_(ring) {}
  transport::TransportKind kind() const override { return transport::TransportKind::kLocal; }
  std::string offer() const override { return {}; }
  bool connected() const override { return true; }
  absl::Status status() const override { return ring_.status; }
  absl::StatusOr<std::optional<transport::ReceivedFrame>> Poll(transport::Lane lane) override {
    if (!ring_.status.ok()) return ring_.status;
    FakeRing::LaneState& state = ring_.lane(lane);
    if (state.arrived.empty()) return std::optional<transport::ReceivedFrame>();
    const transport::ReceivedFrame frame = state.arrived.front();
    state.arrived.pop_front();
    return std::optional<transport::ReceivedFrame>(frame);
  }
  // As much as the test says (ring.arrived).
  absl::StatusOr<uint32_t> Arrived(const transport::ReceivedFrame& frame) override {
    if (frame.header.first_part_bytes == 0) return frame.header.payload_bytes;
    return std::min(ring_.arrived, frame.header.payload_bytes);
  }
  absl::Status CheckArrived(const transport::ReceivedFrame&) override { return ring_.harm; }
  absl::Status Release(transport::Lane lane, uint32_t slot) override {
    FakeRing::LaneState& state = ring_.lane(lane);
    ++state.released;
    // What is read after Release must show.
    std::fill(state.slots[slot].begin(), state.slots[slot].end(), std::byte{0xff});
    state.free.push_back(slot);
    return absl::OkStatus();
  }

 private:
  FakeRing& ring_;
};

}  // namespace layercake::stage_worker::testing
