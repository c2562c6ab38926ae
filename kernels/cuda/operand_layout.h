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
// The halves of kFloat16Form, with the same scales, in tiles for wgmma (TilePieceIndex).
inline constexpr OperandForms kTileForm = 16;
// The high part of kBfloat16Form alone, in the same place: what many rows read.
inline constexpr OperandForms kBfloat16HighForm = 32;

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

// Tiles of halves: of each column block of 256, four pieces jj of 64 columns: groups jj and jj + 4
// of
// 32. A piece holds the rows in groups of eight, 1,024 bytes each: for chunk c in [0, 8), the eight
// rows' 16 bytes. Chunks 4 upper + 2 half and the one behind it have columns [32 (jj + 4 upper) +
// 16 half, +16): of columns 4t + b, t in [0, 4), those of even b at halves 2t + b / 2 of the first
// and those of odd b of the second (wgmma.cuh: places k = 2t.. and 2t + 8..). Columns beyond k are
// zeros. Groups come in sixteens, so that a kernel may copy up to 128 rows from any group on.
inline constexpr int kTileTokens = 8;
inline constexpr int kTileGroupStep = 16;
LAYERCAKE_HOST_DEVICE constexpr int64_t TileGroups(int64_t rows) {
  return (rows + kTileTokens * kTileGroupStep - 1) / (kTileTokens * kTileGroupStep) *
         kTileGroupStep;
}
// Where group `group` of a piece begins, in halves; `groups`: those of the whole operand.
LAYERCAKE_HOST_DEVICE constexpr int64_t TilePieceIndex(int64_t groups, int64_t block, int jj,
                                                       int64_t group) {
  return ((block * 4 + jj) * groups + group) * 512;
}

// Device addresses; null for forms that the operand was not created for.
struct OperandView {
  FixedBlock* fixed = nullptr;
  float* values = nullptr;        // (rows, k)
  uint16_t* half = nullptr;       // (rows, k) f16
  float* half_scale = nullptr;    // (rows): x = half * half_scale
  float* row_norm = nullptr;      // (rows): Euclidean norm of x; of normed rows as tiles alone
  uint16_t* bf16_high = nullptr;  // (rows, k)
  uint16_t* bf16_low = nullptr;   // (rows, k)
  uint16_t* tiles = nullptr;      // half as tiles
  int64_t tile_groups = 0;
};

}  // namespace layercake::kernels::cuda
