// The kernel of decode.h, for a pair of weight types: a ring of stages that a producer warp fills
// ahead (one stage = the units of one tile and column block, and the operand's rows of that block),
// and eight warps that each own one unit of it.
#pragma once

#include "kernels/cuda/decode.h"
#include "kernels/cuda/decode_block_formats.cuh"
#include "kernels/cuda/decode_k_formats.cuh"
#include "kernels/cuda/decode_shape.h"
#include "kernels/cuda/part_flags.cuh"
#include "kernels/cuda/pipeline.cuh"

namespace layercake::kernels::cuda {

inline constexpr int kDecodeThreads = (kTileUnits + 1) * 32;
inline constexpr int kMaxStages = kMaxDecodeStages;

struct DecodeSegment {
  const uint8_t* units;
  const float* bias;
  float* out;
  int64_t out_stride;
  int n;
  int unit_rows;
  int first_tile;  // of the launch
  uint32_t unit_bytes;
  bool second_type;
  bool accumulate;
};

struct DecodeArguments {
  DecodeSegment segment[kDecodeMaxProducts];
  int count;
  uint32_t items;  // tiles * blocks
  int blocks;      // column blocks
  int rows;
  int stages;
  uint32_t operand_at;   // of a stage
  uint32_t stage_bytes;  // multiple of 128
  const FixedBlock* operand;
  float2* partials;
  uint32_t* flags;
};

__device__ __forceinline__ uint32_t FirstItem(const DecodeArguments& arguments, uint32_t block) {
  return arguments.items * block / gridDim.x;
}

// Tile after tile, block after block.
struct WorkCursor {
  int tile;   // of the launch
  int block;  // column block
  int segment = 0;

  __device__ WorkCursor(const DecodeArguments& arguments, uint32_t item)
      : tile(static_cast<int>(item / static_cast<uint32_t>(arguments.blocks))),
        block(static_cast<int>(item % static_cast<uint32_t>(arguments.blocks))) {
    FindSegment(arguments);
  }
  __device__ void NextTile(const DecodeArguments& arguments) {
    ++tile;
    block = 0;
    FindSegment(arguments);
  }
  __device__ void FindSegment(const DecodeArguments& arguments) {
    while (segment + 1 < arguments.count && tile >= arguments.segment[segment + 1].first_tile) {
      ++segment;
    }
  }
  __device__ int LocalTile(const DecodeArguments& arguments) const {
    return tile - arguments.segment[segment].first_tile;
  }
  __device__ int Units(const DecodeArguments& arguments) const {
    return min(kTileUnits,
               arguments.segment[segment].unit_rows - LocalTile(arguments) * kTileUnits);
  }
};

// The weights of item after item, as the producer copies them.
struct WeightStream {
  WorkCursor at;
  const uint8_t* from;
  uint32_t bytes;  // of each column block of this tile

  __device__ WeightStream(const DecodeArguments& arguments, uint32_t item) : at(arguments, item) {
    FindTile(arguments);
  }
  __device__ void Next(const DecodeArguments& arguments) {
    from += bytes;
    if (++at.block < arguments.blocks) return;
    at.NextTile(arguments);
    FindTile(arguments);
  }
  __device__ void FindTile(const DecodeArguments& arguments) {
    const DecodeSegment& segment = arguments.segment[at.segment];
    const int units = at.Units(arguments);
    const int64_t index =
        static_cast<int64_t>(at.LocalTile(arguments)) * kTileUnits * arguments.blocks +
        static_cast<int64_t>(at.block) * units;
    from = segment.units + index * segment.unit_bytes;
    bytes = static_cast<uint32_t>(units) * segment.unit_bytes;
  }
};

struct Ring {
  uint32_t stages;    // shared address
  uint32_t barriers;  // full[stages], then empty[stages]
  __device__ uint32_t Full(int stage) const { return barriers + static_cast<uint32_t>(stage) * 8; }
  __device__ uint32_t Empty(int stage) const { return Full(stage + kMaxStages); }
};

// Fills the ring with items [begin, end). The first stages' weights do not wait for the kernel
// before this one; operands do.
__device__ __forceinline__ void Produce(const DecodeArguments& arguments, const Ring& ring,
                                        uint32_t begin, uint32_t end, int lane) {
  const StageCopier copier(lane);
  if (!copier.active()) return;
  const uint32_t operand_bytes =
      static_cast<uint32_t>(arguments.rows) * static_cast<uint32_t>(sizeof(FixedBlock));
  const auto copy_weights = [&](const WeightStream& weights, int stage) {
    copier.Expect(ring.Full(stage), weights.bytes + operand_bytes);
    copier.Copy(ring.stages + static_cast<uint32_t>(stage) * arguments.stage_bytes, weights.from,
                weights.bytes, ring.Full(stage), Keep::kBriefly);
  };
  const auto copy_operand = [&](int block, int stage) {
    copier.Copy(
        ring.stages + static_cast<uint32_t>(stage) * arguments.stage_bytes + arguments.operand_at,
        arguments.operand + static_cast<int64_t>(block) * kFixedGroupRows, operand_bytes,
        ring.Full(stage), Keep::kLong);
    copier.Finish(ring.Full(stage));
  };
  const int first = min(static_cast<int>(end - begin), arguments.stages);
  WeightStream weights(arguments, begin);
  int block = weights.at.block;
  for (int stage = 0; stage < first; ++stage) {
    copy_weights(weights, stage);
    weights.Next(arguments);
  }
  GridDependencyWait();
  for (int stage = 0; stage < first; ++stage) {
    copy_operand(block, stage);
    if (++block == arguments.blocks) block = 0;
  }
  int stage = 0;
  uint32_t parity = 0;
  for (uint32_t item = begin + static_cast<uint32_t>(first); item < end; ++item) {
    BarrierWait(ring.Empty(stage), parity);
    copy_weights(weights, stage);
    copy_operand(weights.at.block, stage);
    weights.Next(arguments);
    if (++stage == arguments.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

// One warp's sums of a tile: rows g and g + 8 of its unit, tokens 4 n + t.
template <int kTiles>
struct TileSums {
  float value[kTiles][2];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) value[n][0] = value[n][1] = 0;
  }

  // Leaves them for the block that began the tile.
  __device__ __forceinline__ void Leave(const DecodeArguments& arguments, int warp, int lane) {
    const uint32_t place = blockIdx.x * kTileUnits + static_cast<uint32_t>(warp);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      __stcg(arguments.partials + (place * kTiles + n) * 32 + static_cast<uint32_t>(lane),
             make_float2(value[n][0], value[n][1]));
    }
    RaisePartFlag(arguments.flags + place, lane);
  }

  // Adds what the following blocks left of the tile whose items end at `tile_end`, in order.
  __device__ __forceinline__ void Gather(const DecodeArguments& arguments, uint32_t tile_end,
                                         int warp, int lane) {
    uint32_t last = blockIdx.x;
    while (last + 1 < gridDim.x && FirstItem(arguments, last + 1) < tile_end) ++last;
    TakePartFlags(blockIdx.x + 1, last + 1, lane, [&](uint32_t block) {
      return arguments.flags + block * kTileUnits + static_cast<uint32_t>(warp);
    });
    for (uint32_t block = blockIdx.x + 1; block <= last; ++block) {
      const uint32_t place = block * kTileUnits + static_cast<uint32_t>(warp);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float2 part =
            __ldcg(arguments.partials + (place * kTiles + n) * 32 + static_cast<uint32_t>(lane));
        value[n][0] += part.x;
        value[n][1] += part.y;
      }
    }
  }

  __device__ __forceinline__ void Store(const DecodeArguments& arguments, const WorkCursor& at,
                                        int warp, int lane) {
    const DecodeSegment& segment = arguments.segment[at.segment];
    const int row = at.LocalTile(arguments) * kTileRows + warp * kUnitRows + (lane >> 2);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int token = 4 * n + (lane & 3);
      if (token >= arguments.rows) continue;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = row + 8 * r;
        if (i >= segment.n) continue;
        float* out = segment.out + token * segment.out_stride + i;
        float result = value[n][r];
        if (segment.bias != nullptr) result += segment.bias[i];
        if (segment.accumulate) result += *out;
        *out = result;
      }
    }
  }
};

// What a warp needs to know of a tile.
struct TilePart {
  bool works;  // the tile has a unit for it
  bool second_type;
  uint32_t unit_at;  // of a stage

  __device__ TilePart(const DecodeArguments& arguments, const WorkCursor& at, int warp)
      : works(warp < at.Units(arguments)),
        second_type(arguments.segment[at.segment].second_type),
        unit_at(static_cast<uint32_t>(warp) * arguments.segment[at.segment].unit_bytes) {}
};

template <WeightType kFirst, WeightType kSecond, int kTiles>
__device__ __forceinline__ void AddUnit(bool second, const UnitPair& at,
                                        const OperandPlace<kTiles>& place, TileSums<kTiles>& sums) {
  if constexpr (kFirst != kSecond) {
    if (second) {
      UnitProduct<kSecond>::template Add<kTiles>(at, place, sums.value);
      return;
    }
  }
  UnitProduct<kFirst>::template Add<kTiles>(at, place, sums.value);
}

template <WeightType kFirst, WeightType kSecond, int kTiles>
__device__ __forceinline__ void Consume(const DecodeArguments& arguments, const Ring& ring,
                                        uint32_t begin, uint32_t end, int warp, int lane) {
  const OperandPlace<kTiles> place(lane, arguments.rows);
  TileSums<kTiles> sums;
  sums.Clear();
  WorkCursor at(arguments, begin);
  TilePart part(arguments, at, warp);
  int first_block = at.block;  // of this tile here
  int stage = 0;
  uint32_t parity = 0;
  for (uint32_t item = begin; item < end; ++item) {
    BarrierWait(ring.Full(stage), parity);
    if (part.works) {
      const uint32_t base = ring.stages + static_cast<uint32_t>(stage) * arguments.stage_bytes;
      AddUnit<kFirst, kSecond, kTiles>(
          part.second_type, {base + part.unit_at, base + arguments.operand_at, lane}, place, sums);
    }
    __syncwarp();
    if (lane == 0) BarrierArrive(ring.Empty(stage));
    if (++stage == arguments.stages) {
      stage = 0;
      parity ^= 1;
    }
    ++at.block;
    const bool tile_ends = at.block == arguments.blocks;
    if (!tile_ends && item + 1 != end) continue;
    if (part.works) {
      if (first_block > 0) {
        sums.Leave(arguments, warp, lane);
      } else {
        if (!tile_ends) {
          const auto tile_end =
              static_cast<uint32_t>(at.tile + 1) * static_cast<uint32_t>(arguments.blocks);
          sums.Gather(arguments, tile_end, warp, lane);
        }
        sums.Store(arguments, at, warp, lane);
      }
    }
    sums.Clear();
    first_block = 0;
    if (tile_ends) {
      at.NextTile(arguments);
      part = TilePart(arguments, at, warp);
    }
  }
}

// Block: kDecodeThreads. Grid: at most `items` blocks. A block waits for later ones only, and never
// before it has left what earlier ones wait for.
template <WeightType kFirst, WeightType kSecond, int kTiles>
__global__ void __launch_bounds__(kDecodeThreads, 1)
    DecodeKernel(const __grid_constant__ DecodeArguments arguments) {
  extern __shared__ __align__(128) uint8_t stages[];
  __shared__ __align__(8) uint64_t barriers[2 * kMaxStages];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Ring ring = {SharedAddress(stages), SharedAddress(barriers)};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < arguments.stages; ++stage) {
      BarrierInit(ring.Full(stage), StageCopier::kArrivals);
      BarrierInit(ring.Empty(stage), kTileUnits);
    }
    BarrierInitDone();
  }
  __syncthreads();
  GridLaunchDependents();
  const uint32_t begin = FirstItem(arguments, blockIdx.x);
  const uint32_t end = FirstItem(arguments, blockIdx.x + 1);
  if (warp == kTileUnits) {
    Produce(arguments, ring, begin, end, lane);
    return;
  }
  GridDependencyWait();
  Consume<kFirst, kSecond, kTiles>(arguments, ring, begin, end, warp, lane);
}

// The kernels of one pair of types, by n-tiles (4 rows of activations each): 1, 2 and 4.
using DecodeFunction = void (*)(DecodeArguments);
struct DecodeFunctions {
  DecodeFunction tiles1;
  DecodeFunction tiles2;
  DecodeFunction tiles4;
};
template <WeightType kFirst, WeightType kSecond>
DecodeFunctions FunctionsOf() {
  return {DecodeKernel<kFirst, kSecond, 1>, DecodeKernel<kFirst, kSecond, 2>,
          DecodeKernel<kFirst, kSecond, 4>};
}

// One per file, so that they compile side by side.
DecodeFunctions DecodeQ4_K();
DecodeFunctions DecodeQ5_K();
DecodeFunctions DecodeQ6_K();
DecodeFunctions DecodeQ2_K();
DecodeFunctions DecodeQ3_K();
DecodeFunctions DecodeIQ4_XS();
DecodeFunctions DecodeQ8_0();
DecodeFunctions DecodeQ4_0();
DecodeFunctions DecodeQ4_1();
DecodeFunctions DecodeQ5_0();
DecodeFunctions DecodeQ5_1();
DecodeFunctions DecodeIQ4_NL();
DecodeFunctions DecodeMXFP4();
DecodeFunctions DecodeQ4_KWithQ6_K();
DecodeFunctions DecodeQ5_KWithQ6_K();

}  // namespace layercake::kernels::cuda
