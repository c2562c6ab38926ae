// How the numbers of a weight matrix are stored. The values are GGUF's tensor type ids.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace layercake::kernels {

enum class WeightType : uint8_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
  kMXFP4 = 39,
};

// A row is a sequence of blocks: `elements` values in `bytes` bytes.
struct BlockShape {
  int elements = 0;
  int bytes = 0;
};
BlockShape BlockShapeOf(WeightType type);
absl::string_view WeightTypeName(WeightType type);

// Bytes of one row of `k` values; `k` is a multiple of the block's elements (callers check).
inline size_t RowBytes(WeightType type, int64_t k) {
  const BlockShape block = BlockShapeOf(type);
  return static_cast<size_t>(k / block.elements) * static_cast<size_t>(block.bytes);
}

}  // namespace layercake::kernels
