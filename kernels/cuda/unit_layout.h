// How quantised weights lie in device memory. Plain constants, for host and device code.
//
// A unit holds 16 rows x 256 columns of one matrix in the order in which the tensor cores' integer
// fragments (mma m16n8k32) want it, so that a warp reads nothing but whole 512-byte lines. It is a
// permutation of the file's bits (some of them inverted) and takes as many bytes. Columns beyond k
// (types with blocks of 32) and rows beyond n are blocks of zero bytes in the file's sense.
//
// The matrix is a sequence of tiles of 128 rows (8 units; the last tile may have fewer); a tile is
// a sequence of column blocks of 256; a column block is its units. See UnitIndex.
//
// Words. Register (j, lane, i), j in [0, 8), lane = 4 g + t, i in [0, 4), stands for the four
// weights b in [0, 4) of row g + 8 (i & 1) and column 32 j + 16 (i >> 1) + 4 t + b. All words
// little-endian.
//   nibble plane, 2,048 bytes: word (jj * 32 + lane) * 4 + i, jj in [0, 4): low nibble of byte b is
//     the code of register (jj, lane, i), high nibble that of register (jj + 4, lane, i).
//   table plane, 2,048 bytes: the same words; nibble b is the code of register (jj, lane, i),
//     nibble 4 + b that of register (jj + 4, lane, i).
//   bit plane, 512 bytes: word lane * 4 + i; bit j of byte b is the code of register (j, lane, i).
//   pair plane, 1,024 bytes: word (p * 32 + lane) * 4 + i, p in [0, 2): bits 2f and 2f + 1 of byte
//   b
//     are the code of register (2p + (f & 1) + 4 (f >> 1), lane, i), f in [0, 4).
//   byte plane, 4,096 bytes: word (j * 32 + lane) * 4 + i; byte b of register (j, lane, i).
//
// Planes of a unit, in this order; q is the format's integer, d and m its f16 scale and minimum.
// Header planes hold row 0 to 15, each with the bytes named.
//   Q4_K   nibble q            | 16 header bytes of the file: d, dmin, 12 of scales
//   Q5_K   nibble q >> 1       | bit q & 1   | 16 header bytes as above
//   Q6_K   nibble (q ^ 32) >> 2 | pair q & 3 | 16 int8 scales per row | then 2 bytes d per row
//   Q2_K   pair q              | 16 bytes scales and minima per row | then d, dmin per row
//   Q3_K   pair (q ^ 4) >> 1   | bit q & 1 (q: 0 to 7)  | 12 bytes scales per row | then d per row
//   Q8_0   byte q              | 8 d per row
//   Q4_0   nibble q ^ 8        | 8 d per row
//   Q4_1   nibble q            | 8 d per row | then 8 m per row
//   Q5_0   nibble (q ^ 16) >> 1 | bit q & 1  | 8 d per row
//   Q5_1   nibble q >> 1       | bit q & 1   | 8 d per row | then 8 m per row
//   IQ4_NL table q             | 8 d per row
//   IQ4_XS table q             | 8 header bytes of the file per row: d, scales_h, scales_l
//   MXFP4  table q             | 8 exponent bytes per row
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/weight_type.h"

#ifdef __CUDACC__
#define LAYERCAKE_HOST_DEVICE __host__ __device__
#else
#define LAYERCAKE_HOST_DEVICE
#endif

namespace layercake::kernels::cuda {

inline constexpr int kUnitRows = 16;
inline constexpr int kUnitColumns = 256;
inline constexpr int kTileUnits = 8;
inline constexpr int kTileRows = kTileUnits * kUnitRows;

inline constexpr int kNibblePlaneBytes = 2048;
inline constexpr int kBitPlaneBytes = 512;
inline constexpr int kPairPlaneBytes = 1024;
inline constexpr int kBytePlaneBytes = 4096;

// Bytes of a unit: 16 rows of 256 columns in the file. 0 for float types, which have no units.
LAYERCAKE_HOST_DEVICE constexpr int UnitBytes(WeightType type) {
  switch (type) {
    case WeightType::kQ4_K:
    case WeightType::kQ4_0:
    case WeightType::kIQ4_NL:
      return 16 * 144;
    case WeightType::kQ5_K:
    case WeightType::kQ5_0:
      return 16 * 176;
    case WeightType::kQ6_K:
      return 16 * 210;
    case WeightType::kQ8_0:
      return 16 * 272;
    case WeightType::kQ4_1:
      return 16 * 160;
    case WeightType::kQ5_1:
      return 16 * 192;
    case WeightType::kQ2_K:
      return 16 * 84;
    case WeightType::kQ3_K:
      return 16 * 110;
    case WeightType::kIQ4_XS:
    case WeightType::kMXFP4:
      return 16 * 136;
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      break;
  }
  return 0;
}

LAYERCAKE_HOST_DEVICE constexpr int64_t UnitRowCount(int64_t n) {
  return (n + kUnitRows - 1) / kUnitRows;
}
LAYERCAKE_HOST_DEVICE constexpr int64_t ColumnBlocks(int64_t k) {
  return (k + kUnitColumns - 1) / kUnitColumns;
}

// Where the unit of rows [16 unit_row, +16) and columns [256 block, +256) stands among the units.
LAYERCAKE_HOST_DEVICE constexpr int64_t UnitIndex(int64_t n, int64_t k, int64_t unit_row,
                                                  int64_t block) {
  const int64_t tile = unit_row / kTileUnits;
  const int64_t left = UnitRowCount(n) - tile * kTileUnits;
  const int64_t units = left < kTileUnits ? left : kTileUnits;
  return (tile * ColumnBlocks(k)) * kTileUnits + block * units + unit_row % kTileUnits;
}

}  // namespace layercake::kernels::cuda
