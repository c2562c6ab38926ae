// Sizes and arguments of the kernel of matmul_units.h (unit_kernel.cuh).
#pragma once

#include "kernels/cuda/matmul_units.h"
#include "kernels/cuda/unit_work.h"

namespace layercake::kernels::cuda {

struct UnitArguments {
  UnitProducts products;
  OperandView x;
  int rows;
  uint32_t token_tiles;  // of the launch
  UnitWork work;
  // A place for each block of the grid, and in it for each of its warps.
  float4* partials;
  uint32_t* flags;
};

constexpr int kMostWeightStages = 4;
constexpr int kMostPieces = 16;
constexpr int kPieceColumns = 64;
// Barriers and what the hardware keeps leave this much of 227 KB.
constexpr int kUnitSharedBudget = 226 * 1024;

template <WeightType kType, int kTokens>
struct UnitShape {
  // Units of a consumer warp: two share what a step costs beside its fragments.
  static constexpr int kWarpUnits = 2;
  // For many rows of activations eight warps have registers that a whole warpgroup of producers
  // gives up.
  static constexpr bool kGives = kTokens > 64;
  static constexpr int kWarps = kItemUnits / kWarpUnits;
  static constexpr int kThreads = 32 * (kWarps + (kGives ? 4 : 1));
  static constexpr int kSums = kTokens / 2;  // of a unit in each lane
  static constexpr int kWeightBytes = kItemUnits * UnitBytes(kType);
  static constexpr int kPieceBytes = 2 * kPieceColumns * kTokens;

  // As many stages of weights as leave room for almost two of activations; the rest is theirs.
  static constexpr int WeightStages() {
    int stages = kMostWeightStages;
    while (stages > 2 && stages * kWeightBytes + 7 * kPieceBytes > kUnitSharedBudget) --stages;
    return stages;
  }
  static constexpr int kStages = WeightStages();
  static constexpr int kRoom = (kUnitSharedBudget - kStages * kWeightBytes) / kPieceBytes;
  static constexpr int kPieces = kRoom < kMostPieces ? kRoom : kMostPieces;
  static constexpr size_t kSharedBytes = size_t{kStages} * kWeightBytes + kPieces * kPieceBytes;
  static_assert(kPieces >= 5);
};

struct UnitItem {
  int product;
  int64_t row_tile;  // of kItemRows
  int token_first;
};
// Items that share weights stand side by side, to find them in the L2 cache.
__device__ __forceinline__ UnitItem UnitItemAt(const UnitArguments& a, uint32_t index, int tokens) {
  const uint32_t tile = index / a.token_tiles;
  UnitItem item = {0, tile, static_cast<int>(index - tile * a.token_tiles) * tokens};
  while (item.product + 1 < a.products.count) {
    const int64_t tiles = (a.products.product[item.product].n + kItemRows - 1) / kItemRows;
    if (item.row_tile < tiles) break;
    item.row_tile -= tiles;
    ++item.product;
  }
  return item;
}

}  // namespace layercake::kernels::cuda
