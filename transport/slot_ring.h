// The bookkeeping of a channel's slots, the same for every kind: who may write which slot, in which
// order frames go, and which frames are refused.
//
// A slot of the sender goes free -> acquired -> committed -> (credit) -> free. A slot of the
// receiver goes empty -> held -> (released) -> empty. Both sides count the frames of a lane from 0.
//
// Thread rule: pure; one thread at a time. No I/O, no clock, no memory of the slots.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/channel.h"
#include "transport/frame.h"

namespace layercake::transport {

inline uint32_t LaneSlots(const ChannelGeometry& geometry, Lane lane) {
  return lane == Lane::kPlan ? geometry.plan_slots : geometry.activation_slots;
}
inline uint32_t LaneSlotBytes(const ChannelGeometry& geometry, Lane lane) {
  return lane == Lane::kPlan ? geometry.plan_slot_bytes : geometry.activation_slot_bytes;
}

class SenderRing {
 public:
  // `geometry` is valid (ValidateGeometry).
  SenderRing(const RingId& ring, const ChannelGeometry& geometry);

  // The free slot that has been free the longest; nullopt when there is none.
  std::optional<uint32_t> Acquire(Lane lane);

  // The header of the frame in `slot`, all but payload_crc32c. FailedPrecondition: `slot` is not
  // the one acquired first among those not committed. InvalidArgument: the payload does not fit,
  // or the sections do not fit the payload. Nothing changes on an error.
  absl::StatusOr<FrameHeader> Commit(Lane lane, uint32_t slot, const OutgoingFrame& frame);

  // The receiver released `slot`. DataLoss: no such slot, or none was committed there: the peer
  // gives a credit twice or makes one up.
  absl::Status Credit(Lane lane, uint32_t slot);

  // Frames committed whose credit has not come back.
  uint32_t InFlight(Lane lane) const;

 private:
  enum class SlotState : uint8_t { kFree, kAcquired, kCommitted };
  struct LaneState {
    uint32_t slot_bytes = 0;
    std::vector<SlotState> slots;
    std::deque<uint32_t> free;
    std::deque<uint32_t> acquired;  // in the order acquired
    uint64_t next_sequence = 0;
    uint32_t in_flight = 0;
  };
  LaneState& lane_state(Lane lane) { return lanes_[static_cast<size_t>(lane)]; }

  const RingId ring_;
  std::array<LaneState, kLaneCount> lanes_;
};

class ReceiverRing {
 public:
  // `geometry` is valid (ValidateGeometry).
  ReceiverRing(const RingId& ring, const ChannelGeometry& geometry);

  // A frame with a decoded header has come in `slot` of `lane`. FailedPrecondition: it belongs to
  // another ring, or it is not the next of its lane (a gap, or a repeat). DataLoss: it lies on
  // another lane, in no slot or in one still held, or it is longer than a slot. Nothing changes on
  // an error.
  absl::Status Accept(Lane lane, uint32_t slot, const FrameHeader& header);

  // The user has done with `slot`. InvalidArgument: no such slot. FailedPrecondition: it holds no
  // frame (released twice).
  absl::Status Release(Lane lane, uint32_t slot);

  uint32_t Held(Lane lane) const;

 private:
  struct LaneState {
    uint32_t slot_bytes = 0;
    std::vector<bool> held;
    uint64_t next_sequence = 0;
    uint32_t held_count = 0;
  };
  LaneState& lane_state(Lane lane) { return lanes_[static_cast<size_t>(lane)]; }

  const RingId ring_;
  std::array<LaneState, kLaneCount> lanes_;
};

}  // namespace layercake::transport
