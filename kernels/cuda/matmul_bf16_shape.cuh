// Sizes and arguments of the kernel of matmul_bf16.h (matmul_bf16.cu).
#pragma once

#include "kernels/cuda/matmul_bf16.h"
#include "kernels/cuda/unit_work.h"

namespace layercake::kernels::cuda {

constexpr int kBf16Columns = 64;  // of a stage: the swizzle's 128 bytes
constexpr int kBf16RowBytes = 2 * kBf16Columns;
constexpr int kBf16GroupBytes = 8 * kBf16RowBytes;  // within which the swizzle moves
constexpr int kBf16TileRows = 128;                  // of weights in a stage
constexpr int kBf16Warps = 8;  // consumers: two warpgroups of 64 rows of a tile
constexpr int kBf16Threads = 32 * (kBf16Warps + 1);
constexpr uint32_t kBf16TileBytes = kBf16TileRows * kBf16RowBytes;
// Barriers and what the hardware keeps leave this much of 227 KB.
constexpr int kBf16SharedBudget = 226 * 1024;

struct Bf16Arguments {
  CUtensorMap weights[kBf16MaxProducts];
  CUtensorMap x[2];  // high, and low of pairs
  Bf16Product product[kBf16MaxProducts];
  int count;
  int rows;
  uint16_t* gated;
  uint16_t* gated_low;
  UnitWork work;
  // A place for each block of the grid, and in it for each of its warps.
  float4* partials;
  uint32_t* flags;
};

// An item is kBf16TileRows rows of a matrix; or half as many of gate, which the first warpgroup
// multiplies, and as many of up, which the second does. (Twice the rows would read the activations
// half as often, but leave and gather twice as much.)
//
// A pair of activations takes two columns of B, which stand in two halves of a stage's activations.
// Tensor cores may round sums towards zero, an error that grows with their number. Beside pairs it
// would show, so there each 16 columns of a stage have sums of their own.
template <int kTokenCount, bool kIsGated, bool kIsPairs>
struct Bf16Shape {
  static constexpr int kTokens = kTokenCount;
  static constexpr bool kGated = kIsGated;
  static constexpr int kParts = kIsPairs ? 2 : 1;
  static constexpr int kChains = kIsPairs ? kBf16Columns / 16 : 1;
  static constexpr int kSums = kTokens / 2;  // of 64 rows in each lane of a warpgroup
  static constexpr int kItemRows = kGated ? kBf16TileRows / 2 : kBf16TileRows;
  static constexpr uint32_t kPartBytes = kTokens * kBf16RowBytes;  // of a stage's activations
  static constexpr uint32_t kStageBytes = kBf16TileBytes + kParts * kPartBytes;
  // Where the second warpgroup hands its sums to the first.
  static constexpr int kExchangeBytes = kGated ? 64 * kTokens * 4 : 0;
  // 96 or 128 KB of weights under way: with more a layer is up to 4 % slower.
  static constexpr int kStages = kIsPairs ? 8 : 6;
  // One group is lost to alignment.
  static constexpr size_t kSharedBytes =
      size_t{kStages} * kStageBytes + kExchangeBytes + kBf16GroupBytes;
  static_assert(kSharedBytes <= kBf16SharedBudget);
  // Two blocks of the next launch on one multiprocessor, which early launches would bring about,
  // leave another without work.
  static_assert(2 * kSharedBytes > kBf16SharedBudget);
};

struct Bf16Item {
  int product;  // gate and up together: 0
  int64_t first_row;
};
template <typename Shape>
__device__ __forceinline__ Bf16Item Bf16ItemAt(const Bf16Arguments& a, uint32_t index) {
  Bf16Item item = {0, int64_t{index} * Shape::kItemRows};
  while (!Shape::kGated && item.product + 1 < a.count) {
    const int64_t tiles = (a.product[item.product].n + kBf16TileRows - 1) / kBf16TileRows;
    if (item.first_row < tiles * kBf16TileRows) break;
    item.first_row -= tiles * kBf16TileRows;
    ++item.product;
  }
  return item;
}

}  // namespace layercake::kernels::cuda
