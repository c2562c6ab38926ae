// The rows of activations (rows, k) in the forms that product kernels read. Plain data, for host
// and device code.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/unit_layout.h"

namespace layercake::kernels::cuda {

// A set of forms, by bits.
using OperandForms = uint32_t;
// Blocks of 16-bit fixed-point numbers (FixedBlock), for quantised weights at few rows.
inline constexpr OperandForms kFixedForm = 1;
// float32 as it is: (rows, k).
inline constexpr OperandForms kFloat32Form = 2;
// f16 (rows, k) times one power of two per row, `half_scale`: 1 where the row's largest magnitude
// lies in [2^-4, 2^15), else such that it lies in [512, 1024). No overflow, and what f16's
// subnormals cost stays far below its rounding.
inline constexpr OperandForms kFloat16Form = 4;
// bf16 (rows, k) twice: high = round(x), low = round(x - high).
inline constexpr OperandForms kBfloat16Form = 8;

// One row of 256 columns as fixed-point numbers: x = scale * X, X = 256 high + low, |X| <= 32512,
// both int8. scale = max |x| / 32512; 0 for a block of zeros, NaN (and X = 0) for one that holds a
// NaN or an infinity, so that it shows in every product. Columns beyond k are zeros.
//
// quants: for jj in [0, 4), part in {high, low}, t in [0, 4): 16 bytes = columns
//   {32 j + 4t .. +3, 32 j + 16 + 4t .. +3} of j = jj, then of j = jj + 4: the B fragments of
//   m16n8k32, two groups per 16-byte read.
// sums32: sum of X over 32 columns / 64 as f16 high + low: for t in [0, 4): high of groups 2t and
//   2t + 1, low of the same: the B fragment of m16n8k16.
// sums16: the same over 16 columns: for t in [0, 4): high of groups 2t, 2t + 1, 2t + 8, 2t + 9,
// then
//   low of the same.
struct FixedBlock {
  int8_t quants[512];
  uint16_t sums32[16];
  uint16_t sums16[32];
  float scale;
  uint32_t unused[3];
};
static_assert(sizeof(FixedBlock) == 624);

// Rows come in groups of 16 so that a kernel copies the rows of one column block in one piece:
// block (row, column block) stands at ((row / 16) * blocks + block) * 16 + row % 16.
inline constexpr int kFixedGroupRows = 16;
LAYERCAKE_HOST_DEVICE constexpr int64_t FixedBlockIndex(int64_t k, int64_t row, int64_t block) {
  return (row / kFixedGroupRows * ColumnBlocks(k) + block) * kFixedGroupRows +
         row % kFixedGroupRows;
}

// Device addresses; null for forms that the operand was not created for.
struct OperandView {
  FixedBlock* fixed = nullptr;
  float* values = nullptr;        // (rows, k)
  uint16_t* half = nullptr;       // (rows, k) f16
  float* half_scale = nullptr;    // (rows): x = half * half_scale
  uint16_t* bf16_high = nullptr;  // (rows, k)
  uint16_t* bf16_low = nullptr;   // (rows, k)
};

}  // namespace layercake::kernels::cuda
