#include "transport/slot_ring.h"

#include "absl/strings/str_cat.h"

namespace layercake::transport {
namespace {

std::string RingName(const RingId& ring) {
  return absl::StrCat("term ", ring.term, " epoch ", ring.epoch);
}

std::string SlotName(Lane lane, uint32_t slot) {
  return absl::StrCat("slot ", slot, " of the ", LaneName(lane), " lane");
}

}  // namespace

SenderRing::SenderRing(const RingId& ring, const ChannelGeometry& geometry) : ring_(ring) {
  for (const Lane lane : {Lane::kPlan, Lane::kActivation}) {
    LaneState& state = lane_state(lane);
    state.slot_bytes = LaneSlotBytes(geometry, lane);
    state.slots.assign(LaneSlots(geometry, lane), SlotState::kFree);
    for (uint32_t slot = 0; slot < LaneSlots(geometry, lane); ++slot) state.free.push_back(slot);
  }
}

std::optional<uint32_t> SenderRing::Acquire(Lane lane) {
  LaneState& state = lane_state(lane);
  if (state.free.empty()) return std::nullopt;
  const uint32_t slot = state.free.front();
  state.free.pop_front();
  state.acquired.push_back(slot);
  state.slots[slot] = SlotState::kAcquired;
  return slot;
}

absl::StatusOr<FrameHeader> SenderRing::Commit(Lane lane, uint32_t slot,
                                               const OutgoingFrame& frame) {
  LaneState& state = lane_state(lane);
  if (state.acquired.empty() || state.acquired.front() != slot) {
    return absl::FailedPreconditionError(absl::StrCat(
        "commit ", SlotName(lane, slot), ": ",
        state.acquired.empty()
            ? std::string("no slot is acquired")
            : absl::StrCat("slot ", state.acquired.front(), " was acquired before it")));
  }
  if (frame.payload_bytes > state.slot_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("commit ", frame.payload_bytes, " bytes in ",
                                                   SlotName(lane, slot), ", which has ",
                                                   state.slot_bytes));
  }
  if (frame.section_bytes > frame.payload_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("commit sections of ", frame.section_bytes,
                                                   " bytes in a payload of ", frame.payload_bytes));
  }
  state.acquired.pop_front();
  state.slots[slot] = SlotState::kCommitted;
  ++state.in_flight;
  FrameHeader header;
  header.kind = frame.kind;
  header.lane = lane;
  header.ring = ring_;
  header.sequence = state.next_sequence++;
  header.step = frame.step;
  header.section_bytes = frame.section_bytes;
  header.payload_bytes = frame.payload_bytes;
  header.sent_us = frame.sent_us;
  return header;
}

absl::Status SenderRing::Credit(Lane lane, uint32_t slot) {
  LaneState& state = lane_state(lane);
  if (slot >= state.slots.size() || state.slots[slot] != SlotState::kCommitted) {
    return absl::DataLossError(absl::StrCat("refuse a credit for ", SlotName(lane, slot),
                                            ": no frame is under way in it"));
  }
  state.slots[slot] = SlotState::kFree;
  state.free.push_back(slot);
  --state.in_flight;
  return absl::OkStatus();
}

uint32_t SenderRing::InFlight(Lane lane) const {
  return lanes_[static_cast<size_t>(lane)].in_flight;
}

ReceiverRing::ReceiverRing(const RingId& ring, const ChannelGeometry& geometry) : ring_(ring) {
  for (const Lane lane : {Lane::kPlan, Lane::kActivation}) {
    lane_state(lane).slot_bytes = LaneSlotBytes(geometry, lane);
    lane_state(lane).held.assign(LaneSlots(geometry, lane), false);
  }
}

absl::Status ReceiverRing::Accept(Lane lane, uint32_t slot, const FrameHeader& header) {
  LaneState& state = lane_state(lane);
  if (header.ring != ring_) {
    return absl::FailedPreconditionError(absl::StrCat("refuse a frame of ", RingName(header.ring),
                                                      " on a channel of ", RingName(ring_)));
  }
  if (header.lane != lane) {
    return absl::DataLossError(absl::StrCat("refuse a frame of the ", LaneName(header.lane),
                                            " lane that came on the ", LaneName(lane), " lane"));
  }
  if (header.sequence != state.next_sequence) {
    return absl::FailedPreconditionError(absl::StrCat(
        "refuse frame ", header.sequence, " of the ", LaneName(lane), " lane: ",
        header.sequence < state.next_sequence ? "it came before" : "frames before it are missing",
        ", the next is ", state.next_sequence));
  }
  if (slot >= state.held.size()) {
    return absl::DataLossError(absl::StrCat("refuse a frame in ", SlotName(lane, slot),
                                            ", which has ", state.held.size(), " slots"));
  }
  if (state.held[slot]) {
    return absl::DataLossError(absl::StrCat("refuse frame ", header.sequence, " in ",
                                            SlotName(lane, slot), ", which is still in use"));
  }
  if (header.payload_bytes > state.slot_bytes) {
    return absl::DataLossError(absl::StrCat("refuse a frame of ", header.payload_bytes,
                                            " bytes in ", SlotName(lane, slot), ", which has ",
                                            state.slot_bytes));
  }
  state.held[slot] = true;
  ++state.held_count;
  ++state.next_sequence;
  return absl::OkStatus();
}

absl::Status ReceiverRing::Release(Lane lane, uint32_t slot) {
  LaneState& state = lane_state(lane);
  if (slot >= state.held.size()) {
    return absl::InvalidArgumentError(absl::StrCat("release ", SlotName(lane, slot), ", which has ",
                                                   state.held.size(), " slots"));
  }
  if (!state.held[slot]) {
    return absl::FailedPreconditionError(
        absl::StrCat("release ", SlotName(lane, slot), ", which holds no frame"));
  }
  state.held[slot] = false;
  --state.held_count;
  return absl::OkStatus();
}

uint32_t ReceiverRing::Held(Lane lane) const {
  return lanes_[static_cast<size_t>(lane)].held_count;
}

}  // namespace layercake::transport
