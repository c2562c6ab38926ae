// Sizes and arguments of the kernels of matmul_units.h.
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

  // An item's first tile of units belongs to product 0, its second to product 1.
  __device__ bool paired() const { return products.swiglu.tiles != nullptr; }
};

constexpr int kMostWeightStages = 4;
constexpr int kMostSlots = 4;
constexpr int kSlotPieces = 4;
constexpr int kPieceColumns = kUnitColumns / kSlotPieces;
// Barriers and what the hardware keeps leave this much of 227 KB.
constexpr int kUnitSharedBudget = 226 * 1024;
// What a block of unit_mma_kernel.cuh may take: compute capabilities 8.6 and 8.9 have 99 KB.
constexpr int kUnitMmaSharedBytes = 96 * 1024;

template <WeightType kType, int kTokens>
struct UnitShape {
  // Units of a consumer warp: two share what a step costs beside its fragments.
  static constexpr int kWarpUnits = 2;
  // For many rows of activations eight warps have registers that a whole warpgroup of producers
  // gives up.
  static constexpr bool kGives = kTokens > 64;
  static constexpr int kWarps = kItemUnits / kWarpUnits;
  // Two warps produce: one copies weights, one activations.
  static constexpr int kThreads = 32 * (kWarps + (kGives ? 4 : 2));
  static constexpr int kSums = kTokens / 2;  // of a unit in each lane
  static constexpr int kWeightBytes = kItemUnits * UnitBytes(kType);
  static constexpr int kPieceBytes = 2 * kPieceColumns * kTokens;

  static constexpr int kSlotBytes = kSlotPieces * kPieceBytes;

  // As many stages of weights as leave room for two steps of activations; the rest is theirs.
  static constexpr int WeightStages() {
    int stages = kMostWeightStages;
    while (stages > 2 && stages * kWeightBytes + 2 * kSlotBytes > kUnitSharedBudget) --stages;
    return stages;
  }
  static constexpr int kStages = WeightStages();
  static constexpr int kRoom = (kUnitSharedBudget - kStages * kWeightBytes) / kSlotBytes;
  static constexpr int kSlots = kRoom < kMostSlots ? kRoom : kMostSlots;
  static constexpr int kPieces = kSlots * kSlotPieces;
  static constexpr size_t kSharedBytes = size_t{kStages} * kWeightBytes + kSlots * kSlotBytes;
  static_assert(kStages >= 2 && kSlots >= 1);
};

struct UnitItem {
  int product;       // gate and up together: 0
  int64_t row_tile;  // of kItemRows, or of kTileRows of gate and as many of up
  int token_first;
};
// Items that share weights stand side by side, to find them in the L2 cache.
__device__ __forceinline__ UnitItem UnitItemAt(const UnitArguments& a, uint32_t index, int tokens) {
  const uint32_t tile = index / a.token_tiles;
  UnitItem item = {0, tile, static_cast<int>(index - tile * a.token_tiles) * tokens};
  while (!a.paired() && item.product + 1 < a.products.count) {
    const int64_t tiles = (a.products.product[item.product].n + kItemRows - 1) / kItemRows;
    if (item.row_tile < tiles) break;
    item.row_tile -= tiles;
    ++item.product;
  }
  return item;
}

}  // namespace layercake::kernels::cuda
