// How a long activation is cut when its channel takes frames in parts (transport/frame_parts.h).
//
// Thread rule: pure.
#pragma once

#include <cstdint>

#include "transport/channel.h"

namespace layercake::stage_worker {

// The first part holds the section and the first rows, the last one what is left.
class ActivationParts {
 public:
  // One part: the whole frame.
  ActivationParts() = default;
  // Of an activation of (rows, hidden) float32 in `slot`; `part_bytes` is the channel's. Frames of
  // less than two parts, and those in device slots, stay whole.
  ActivationParts(const transport::SendSlot& slot, uint32_t part_bytes, int rows, uint32_t hidden);

  int count() const { return count_; }
  // As StepOutput has it.
  uint32_t first_part_bytes() const { return count_ > 1 ? part_bytes_ : 0; }
  // Where part `index` ends in a payload of `payload_bytes`, which is known when the step was
  // computed: the section's length depends on what was found in the rows.
  uint32_t End(int index, uint32_t payload_bytes) const;

 private:
  uint32_t part_bytes_ = 0;
  int count_ = 1;
};

}  // namespace layercake::stage_worker
