// The launch of a product of few rows: how many blocks, how much shared memory. Pure.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"

namespace layercake::kernels::cuda {

inline constexpr int kMaxDecodeStages = 8;

struct DecodeShape {
  int grid =
      0;  // blocks; depends on the work and the device only, and the order of additions on it
  int stages = 0;            // 0: the device has too little shared memory
  uint32_t operand_at = 0;   // of a stage
  uint32_t stage_bytes = 0;  // multiple of 128
  uint32_t shared_bytes = 0;
};

// `items`: row tiles times column blocks. `unit_bytes`: of the largest type.
DecodeShape ChooseDecodeShape(const Context& context, int64_t items, int unit_bytes, int rows);

// Dynamic shared memory that any shape stays within.
uint32_t MostDecodeSharedBytes(const Context& context);

}  // namespace layercake::kernels::cuda
