#include "stage_worker/activation_parts.h"

#include <algorithm>

#include "stage_worker/activation_frame.h"

namespace layercake::stage_worker {

ActivationParts::ActivationParts(const transport::SendSlot& slot, uint32_t part_bytes, int rows,
                                 uint32_t hidden) {
  const uint64_t row_bytes = uint64_t{hidden} * sizeof(float) * static_cast<uint64_t>(rows);
  if (part_bytes == 0 || slot.memory.space == kernels::MemorySpace::kDevice ||
      row_bytes < 2 * uint64_t{part_bytes}) {
    return;
  }
  part_bytes_ = part_bytes;
  // As if every row were marked. A last part that turns out to be empty costs one piece of work.
  const uint64_t most = row_bytes + MaxActivationSectionBytes(rows);
  count_ = static_cast<int>((most + part_bytes - 1) / part_bytes);
}

uint32_t ActivationParts::End(int index, uint32_t payload_bytes) const {
  if (index + 1 == count_) return payload_bytes;
  const uint64_t end = (static_cast<uint64_t>(index) + 1) * part_bytes_;
  return static_cast<uint32_t>(std::min<uint64_t>(end, payload_bytes));
}

}  // namespace layercake::stage_worker
