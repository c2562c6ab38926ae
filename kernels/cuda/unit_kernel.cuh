// The kernel of matmul_units.h: a thread copies weights and another activations into rings of
// shared memory; the consumers, two warpgroups of 128 rows of weights each, make these f16 in
// registers and multiply them with the activations that both share.
//
// Steps of 256 columns: the weights of a step are one stage of one ring, its activations a slot of
// another: four pieces of 64 columns (groups jj and jj + 4 of 32), each with barriers of its own.
#pragma once

#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/ring_place.cuh"
#include "kernels/cuda/unit_end.cuh"
#include "kernels/cuda/unit_functions.h"
#include "kernels/cuda/unit_halves.cuh"
#include "kernels/cuda/unit_shape.cuh"
#include "kernels/cuda/unit_steps.cuh"
#include "kernels/cuda/unit_sums.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace layercake::kernels::cuda {

// Addresses in shared memory.
template <typename Shape>
struct UnitRings {
  uint32_t data;
  uint32_t barriers;

  __device__ uint32_t Weights(int stage) const {
    return data + static_cast<uint32_t>(stage) * Shape::kWeightBytes;
  }
  __device__ uint32_t Piece(int piece) const {
    return data + Shape::kStages * Shape::kWeightBytes +
           static_cast<uint32_t>(piece) * Shape::kPieceBytes;
  }
  __device__ uint32_t WeightsFull(int stage) const {
    return barriers + 8 * static_cast<uint32_t>(stage);
  }
  __device__ uint32_t WeightsEmpty(int stage) const { return WeightsFull(Shape::kStages + stage); }
  __device__ uint32_t PieceFull(int piece) const { return WeightsFull(2 * Shape::kStages + piece); }
  __device__ uint32_t PieceEmpty(int piece) const { return PieceFull(Shape::kPieces + piece); }

  __device__ void Init() const {
    for (int i = 0; i < Shape::kStages; ++i) {
      BarrierInit(WeightsFull(i), StageCopier::kArrivals);
      BarrierInit(WeightsEmpty(i), 32 * Shape::kWarps);
    }
    for (int i = 0; i < Shape::kPieces; ++i) {
      BarrierInit(PieceFull(i), StageCopier::kArrivals);
      BarrierInit(PieceEmpty(i), Shape::kWarps);
    }
    BarrierInitDone();
  }
};

// Units that do not exist are not copied: whatever stands there becomes rows that nobody stores.
template <WeightType kType, typename Shape>
__device__ void CopyWeights(const UnitArguments& a, const UnitSteps& at,
                            const UnitRings<Shape>& rings, int stage, const StageCopier& copier) {
  const uint32_t barrier = rings.WeightsFull(stage);
  const Keep keep = a.token_tiles == 1 ? Keep::kBriefly : Keep::kLong;
  const std::byte* from[2];
  uint32_t bytes[2];
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const UnitProduct& product = a.products.product[a.paired() ? tile : at.item().product];
    const int64_t first = a.paired() ? at.item().row_tile * kTileUnits
                                     : at.item().row_tile * kItemUnits + tile * kTileUnits;
    const int64_t left = UnitRowCount(product.n) - first;
    const int units = left < kTileUnits ? (left < 0 ? 0 : static_cast<int>(left)) : kTileUnits;
    bytes[tile] = static_cast<uint32_t>(units * UnitBytes(kType));
    from[tile] =
        product.units + UnitIndex(product.n, a.products.k, first, at.block()) * UnitBytes(kType);
  }
  copier.Expect(barrier, bytes[0] + bytes[1]);
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    if (bytes[tile] == 0) continue;
    copier.Copy(rings.Weights(stage) + static_cast<uint32_t>(tile * kTileUnits * UnitBytes(kType)),
                from[tile], bytes[tile], barrier, keep);
  }
}

// Weights do not wait for the kernel before this one.
template <WeightType kType, int kTokens>
__device__ void ProduceWeights(const UnitArguments& a,
                               const UnitRings<UnitShape<kType, kTokens>>& rings) {
  using Shape = UnitShape<kType, kTokens>;
  const StageCopier copier(0);
  RingPlace<Shape::kStages> stage;
  bool used = false;  // every stage has been filled once
  for (UnitSteps step(a, kTokens); step.valid(); step.Next()) {
    // The parity of the turn before this one.
    if (used) BarrierWait(rings.WeightsEmpty(stage.index), stage.parity ^ 1);
    CopyWeights<kType>(a, step, rings, stage.index, copier);
    stage.Next();
    used = used || stage.index == 0;
  }
}

template <WeightType kType, int kTokens>
__device__ void ProduceActivations(const UnitArguments& a,
                                   const UnitRings<UnitShape<kType, kTokens>>& rings) {
  using Shape = UnitShape<kType, kTokens>;
  const StageCopier copier(0);
  RingPlace<Shape::kSlots> slot;
  bool used = false;
  for (UnitSteps step(a, kTokens); step.valid(); step.Next()) {
    const uint16_t* from = a.x.tiles + TilePieceIndex(a.x.tile_groups, step.block(), 0,
                                                      step.item().token_first / kTileTokens);
    for (int jj = 0; jj < kSlotPieces; ++jj) {
      const int piece = kSlotPieces * slot.index + jj;
      if (used) BarrierWait(rings.PieceEmpty(piece), slot.parity ^ 1);
      const uint32_t barrier = rings.PieceFull(piece);
      copier.Expect(barrier, Shape::kPieceBytes);
      copier.Copy(rings.Piece(piece), from, Shape::kPieceBytes, barrier, Keep::kLong);
      from += TilePieceIndex(a.x.tile_groups, 0, 1, 0);
    }
    slot.Next();
    used = used || slot.index == 0;
  }
}

// A warp's part in the products: makes fragments while the tensor cores work on those before.
//
// Fragments of 32 columns at a time, two sets of registers in turn: one group of instructions is
// under way while the next is made ready, over the ends of steps too. So a piece of activations is
// free when the second group of the piece behind it is begun.
template <WeightType kType, typename Shape>
class UnitMultiplier {
 public:
  __device__ UnitMultiplier(const UnitRings<Shape>& rings, int lane) : rings_(rings), lane_(lane) {}

  // sums += the warp's units in a stage of weights times the next four pieces of activations.
  __device__ __forceinline__ void Step(const std::byte* stage, uint32_t stage_empty,
                                       UnitSums<Shape>& sums) {
    const std::byte* unit[kUnits];
    LaneScales<kType> scales[kUnits];
    LaneWords<kType> words[kUnits];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      unit[i] = stage + sums.Unit(i) * UnitBytes(kType);
      words[i].Load(unit[i], 0, lane_);
      LaneHeader<kType> header;
      header.Load(unit[i], lane_);
      scales[i].Make(header, sums.weight_scale[i], lane_);
    }
    const int first_piece = kSlotPieces * slot_.index;
    // From one lane, so that it is known to be the same in all.
    const uint64_t tiles =
        WgmmaDescriptor(__shfl_sync(~0u, rings_.Piece(first_piece), 0), 128, kGroupBytes);
#pragma unroll
    for (int jj = 0; jj < kSlotPieces; ++jj) {
      LaneWords<kType> next[kUnits];
      if (jj < kSlotPieces - 1) {
#pragma unroll
        for (int i = 0; i < kUnits; ++i) next[i].Load(unit[i], jj + 1, lane_);
      }
      const uint64_t tile = tiles + static_cast<uint64_t>(jj * (Shape::kPieceBytes >> 4));
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        WgmmaWait<1>();
        if (upper == 1) ReleasePiece();
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
          HoldRegisters(a_[upper][i]);
          MakeFragments<kType>(words[i], scales[i], jj, upper, lane_, a_[upper][i]);
          HoldRegisters(a_[upper][i]);
        }
        if (upper == 0) BarrierWait(rings_.PieceFull(first_piece + jj), slot_.parity);
        MultiplyGroup(upper, tile, sums);
      }
      if (jj == kSlotPieces - 1) {
        // Each lane for what it has read: racecheck does not see a __syncwarp of warps that are
        // known to be together.
        BarrierArrive(stage_empty);
      }
      piece_before_ = first_piece + jj;
#pragma unroll
      for (int i = 0; i < kUnits; ++i) words[i] = next[i];
    }
    slot_.Next();
  }

  // Waits until the sums are complete.
  __device__ __forceinline__ void Finish(UnitSums<Shape>& sums) {
    WgmmaWait<0>();
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      HoldRegisters(a_[0][i]);
      HoldRegisters(a_[1][i]);
      HoldRegisters(sums.value[i]);
    }
    ReleasePiece();
    piece_before_ = -1;
  }

 private:
  static constexpr int kUnits = Shape::kWarpUnits;
  static constexpr int kTokens = 2 * Shape::kSums;
  static constexpr uint32_t kGroupBytes = 2 * kPieceColumns * kTileTokens;  // of eight rows

  __device__ __forceinline__ void ReleasePiece() {
    if (lane_ == 0 && piece_before_ >= 0) BarrierArrive(rings_.PieceEmpty(piece_before_));
  }

  // The fragments of a_[upper] times those columns of the piece.
  __device__ __forceinline__ void MultiplyGroup(int upper, uint64_t tile, UnitSums<Shape>& sums) {
    WgmmaFence();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // 16 columns are two times 128 bytes of a group.
      const uint64_t columns = tile + static_cast<uint64_t>((2 * upper + half) * (256 >> 4));
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        Wgmma<kTokens>(sums.value[i], a_[upper][i] + 4 * half, columns);
      }
    }
    WgmmaCommit();
  }

  const UnitRings<Shape> rings_;
  const int lane_;
  RingPlace<Shape::kSlots> slot_;
  int piece_before_ = -1;  // still read
  uint32_t a_[2][kUnits][8] = {};
};

template <WeightType kType, typename Shape>
__device__ __forceinline__ void ConsumeUnits(const UnitArguments& a, const UnitRings<Shape>& rings,
                                             const std::byte* shared, int warp, int lane) {
  UnitSums<Shape> sums(warp, lane);
  UnitMultiplier<kType, Shape> multiplier(rings, lane);
  RingPlace<Shape::kStages> stage;
  UnitSegments segments(a.work, blockIdx.x);
  UnitSegment segment;
  while (segments.Next(&segment)) {
    const UnitItem item = UnitItemAt(a, segment.item, 2 * Shape::kSums);
    sums.Begin(a, item);
    for (uint32_t block = segment.begin; block < segment.end; ++block) {
      BarrierWait(rings.WeightsFull(stage.index), stage.parity);
      multiplier.Step(shared + stage.index * Shape::kWeightBytes, rings.WeightsEmpty(stage.index),
                      sums);
      stage.Next();
    }
    multiplier.Finish(sums);
    EndSegment(a, segment, item, sums, warp, lane);
  }
}

// Registers of a thread, for warpgroups of which one gives to two.
template <int kRegisters>
__device__ __forceinline__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Block: Shape::kThreads. Grid: a.work.grid, all of it on the device at once. A block waits for
// later ones only, and never before it has left what earlier ones wait for.
template <WeightType kType, int kTokens>
__global__ void __launch_bounds__(UnitShape<kType, kTokens>::kThreads, 1)
    UnitKernel(const __grid_constant__ UnitArguments a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Shape = UnitShape<kType, kTokens>;
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ __align__(8) uint64_t barriers[2 * (Shape::kStages + Shape::kPieces)];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const UnitRings<Shape> rings = {SharedAddress(shared), SharedAddress(barriers)};
  if (threadIdx.x == 0) rings.Init();
  __syncthreads();
  GridLaunchDependents();
  if (warp >= Shape::kWarps) {
    if constexpr (Shape::kGives) GiveRegisters<56>();
    if (warp == Shape::kWarps + 1 && lane == 0) {
      ProduceWeights<kType, kTokens>(a, rings);
      return;
    }
    GridDependencyWait();
    if (warp == Shape::kWarps && lane == 0) ProduceActivations<kType, kTokens>(a, rings);
    return;
  }
  if constexpr (Shape::kGives) TakeRegisters<224>();
  GridDependencyWait();
  ConsumeUnits<kType>(a, rings, shared, warp, lane);
#endif
}

// The kernels of one type.
template <WeightType kType, int kTokens>
UnitKernelOf UnitKernelFor() {
  using Shape = UnitShape<kType, kTokens>;
  return {UnitKernel<kType, kTokens>, Shape::kThreads, Shape::kSharedBytes};
}
template <WeightType kType>
UnitFunctions UnitsByWgmma() {
  return {UnitKernelFor<kType, 32>(), UnitKernelFor<kType, 64>(), UnitKernelFor<kType, 96>(),
          UnitKernelFor<kType, 128>()};
}

}  // namespace layercake::kernels::cuda
