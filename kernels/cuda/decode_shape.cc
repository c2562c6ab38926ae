#include "kernels/cuda/decode_shape.h"

#include <algorithm>

#include "kernels/cuda/operand_layout.h"
#include "kernels/cuda/unit_layout.h"

namespace layercake::kernels::cuda {
namespace {

constexpr uint32_t kKilobyte = 1024;

// Bytes of weights under way per multiprocessor: what the memory's latency asks for. Long streams
// gain from more; short ones lose, and so do more than 4 rows, where what is in shared memory when
// the last byte comes takes long to multiply.
constexpr uint32_t kBytesAhead = 72 * kKilobyte;
constexpr uint32_t kBytesAheadLong = 144 * kKilobyte;
constexpr int64_t kLongItems = 40;  // per multiprocessor
constexpr int kFewRows = 4;
constexpr int kMinStages = 2;
constexpr int kWantedStages = 3;

// The kernel's barriers, generously.
constexpr uint32_t kStaticBytes = kKilobyte;

// What the runtime takes of a multiprocessor's shared memory for each block.
constexpr uint32_t kReservedBytes = kKilobyte;

// From Hopper on, where the next kernel begins early. The kernels between two launches may take
// room on some multiprocessors; were there room for two of our blocks on one, the next launch would
// be spread unevenly and the fullest multiprocessor would set its time (measured on an H200: a
// layer's products 92 us instead of 82). So a block takes more than half of the shared memory.
uint32_t MoreThanHalf(const Context& context) {
  return (static_cast<uint32_t>(context.max_shared_bytes) + kReservedBytes) / 2 + kKilobyte;
}

uint32_t RoundUp(uint32_t value, uint32_t to) { return (value + to - 1) / to * to; }

}  // namespace

uint32_t MostDecodeSharedBytes(const Context& context) {
  return static_cast<uint32_t>(context.max_shared_bytes) - kStaticBytes;
}

DecodeShape ChooseDecodeShape(const Context& context, int64_t items, int unit_bytes, int rows) {
  const bool is_long = items / context.sm_count >= kLongItems;
  DecodeShape shape;
  shape.grid = static_cast<int>(std::min<int64_t>(items, context.sm_count));
  const uint32_t weight_bytes = static_cast<uint32_t>(unit_bytes) * kTileUnits;
  shape.operand_at = RoundUp(weight_bytes, 128);
  shape.stage_bytes =
      shape.operand_at + RoundUp(static_cast<uint32_t>(rows * sizeof(FixedBlock)), 128);
  const uint32_t ahead = is_long && rows <= kFewRows ? kBytesAheadLong : kBytesAhead;
  const int wanted = std::clamp(static_cast<int>((ahead + weight_bytes / 2) / weight_bytes),
                                kWantedStages, kMaxDecodeStages);
  shape.stages =
      std::min(wanted, static_cast<int>(MostDecodeSharedBytes(context) / shape.stage_bytes));
  if (shape.stages < kMinStages) return {};
  shape.shared_bytes = shape.stage_bytes * static_cast<uint32_t>(shape.stages);
  if (context.code_major >= 9) {
    shape.shared_bytes = std::max(shape.shared_bytes, MoreThanHalf(context));
  }
  return shape;
}

}  // namespace layercake::kernels::cuda
