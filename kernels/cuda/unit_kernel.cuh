// The kernel of matmul_units.h: one producer thread copies weights and activations into rings of
// shared memory; the consumers, two warpgroups of 128 rows of weights each, make these f16
// in registers and multiply them with the activations that both share.
//
// Steps of 256 columns: the weights of a step are one stage of one ring; its activations come in
// four pieces of 64 columns (groups jj and jj + 4 of 32) in a ring of their own.
#pragma once

#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/unit_halves.cuh"
#include "kernels/cuda/unit_shape.cuh"
#include "kernels/cuda/unit_sums.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace layercake::kernels::cuda {

// A place in a ring of kCount stages, and the parity of its turn.
template <int kCount>
struct RingPlace {
  int index = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next() {
    if (++index < kCount) return;
    index = 0;
    parity ^= 1;
  }
};

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
      BarrierInit(WeightsEmpty(i), Shape::kWarps);
    }
    for (int i = 0; i < Shape::kPieces; ++i) {
      BarrierInit(PieceFull(i), StageCopier::kArrivals);
      BarrierInit(PieceEmpty(i), Shape::kWarps);
    }
    BarrierInitDone();
  }
};

// The column blocks of a block's segments, one after another.
class UnitSteps {
 public:
  __device__ UnitSteps(const UnitArguments& a, int tokens)
      : a_(&a), segments_(a.work, blockIdx.x), tokens_(tokens) {
    NextSegment();
  }
  __device__ __forceinline__ void Next() {
    if (++block_ == segment_.end) NextSegment();
  }
  __device__ bool valid() const { return valid_; }
  __device__ const UnitItem& item() const { return item_; }
  __device__ uint32_t block() const { return block_; }

 private:
  __device__ void NextSegment() {
    valid_ = segments_.Next(&segment_);
    if (!valid_) return;
    item_ = UnitItemAt(*a_, segment_.item, tokens_);
    block_ = segment_.begin;
  }

  const UnitArguments* a_;
  UnitSegments segments_;
  int tokens_;
  bool valid_ = false;
  UnitSegment segment_;
  UnitItem item_ = {};
  uint32_t block_ = 0;
};

// Units that do not exist are not copied: whatever stands there becomes rows that nobody stores.
template <WeightType kType, typename Shape>
__device__ void CopyWeights(const UnitArguments& a, const UnitSteps& at,
                            const UnitRings<Shape>& rings, int stage, const StageCopier& copier) {
  const UnitProduct& product = a.products.product[at.item().product];
  const int64_t first = at.item().row_tile * kItemUnits;
  const int64_t left = UnitRowCount(product.n) - first;
  const int units = left < kItemUnits ? static_cast<int>(left) : kItemUnits;
  const uint32_t barrier = rings.WeightsFull(stage);
  copier.Expect(barrier, static_cast<uint32_t>(units * UnitBytes(kType)));
  const Keep keep = a.token_tiles == 1 ? Keep::kBriefly : Keep::kLong;
  for (int tile = 0; tile * kTileUnits < units; ++tile) {
    const int count =
        units - tile * kTileUnits < kTileUnits ? units - tile * kTileUnits : kTileUnits;
    const int64_t unit = UnitIndex(product.n, a.products.k, first + tile * kTileUnits, at.block());
    copier.Copy(rings.Weights(stage) + static_cast<uint32_t>(tile * kTileUnits * UnitBytes(kType)),
                product.units + unit * UnitBytes(kType),
                static_cast<uint32_t>(count * UnitBytes(kType)), barrier, keep);
  }
}

template <WeightType kType, int kTokens>
__device__ void ProduceUnits(const UnitArguments& a,
                             const UnitRings<UnitShape<kType, kTokens>>& rings) {
  using Shape = UnitShape<kType, kTokens>;
  const StageCopier copier(0);
  UnitSteps weights(a, kTokens);
  RingPlace<Shape::kStages> stage;
  for (int i = 0; i < Shape::kStages && weights.valid(); ++i) {
    CopyWeights<kType>(a, weights, rings, stage.index, copier);
    weights.Next();
    stage.Next();
  }
  GridDependencyWait();
  RingPlace<Shape::kPieces> piece;
  bool first_step = true;
  bool pieces_used = false;  // every piece has been filled once
  for (UnitSteps step(a, kTokens); step.valid(); step.Next()) {
    for (int jj = 0; jj < 4; ++jj) {
      // The parity of the turn before this one.
      if (pieces_used) BarrierWait(rings.PieceEmpty(piece.index), piece.parity ^ 1);
      const uint32_t barrier = rings.PieceFull(piece.index);
      copier.Expect(barrier, Shape::kPieceBytes);
      copier.Copy(rings.Piece(piece.index),
                  a.x.tiles + TilePieceIndex(a.x.tile_groups, step.block(), jj,
                                             step.item().token_first / kTileTokens),
                  Shape::kPieceBytes, barrier, Keep::kLong);
      piece.Next();
      pieces_used = pieces_used || piece.index == 0;
    }
    // One stage behind, so that four pieces are there while this waits for the consumers.
    if (!first_step && weights.valid()) {
      BarrierWait(rings.WeightsEmpty(stage.index), stage.parity ^ 1);
      CopyWeights<kType>(a, weights, rings, stage.index, copier);
      weights.Next();
      stage.Next();
    }
    first_step = false;
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
      scales[i].Load(unit[i], lane_);
    }
#pragma unroll
    for (int jj = 0; jj < 4; ++jj) {
      LaneWords<kType> next[kUnits];
      if (jj < 3) {
#pragma unroll
        for (int i = 0; i < kUnits; ++i) next[i].Load(unit[i], jj + 1, lane_);
      }
      // From one lane, so that it is known to be the same in all.
      const uint64_t tile =
          WgmmaDescriptor(__shfl_sync(~0u, rings_.Piece(piece_.index), 0), 128, kGroupBytes);
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
        if (upper == 0) BarrierWait(rings_.PieceFull(piece_.index), piece_.parity);
        MultiplyGroup(upper, tile, sums);
      }
      if (jj == 3) {
        __syncwarp();
        if (lane_ == 0) BarrierArrive(stage_empty);
      }
      piece_before_ = piece_.index;
      piece_.Next();
#pragma unroll
      for (int i = 0; i < kUnits; ++i) words[i] = next[i];
    }
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
  RingPlace<Shape::kPieces> piece_;
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
    sums.Clear();
    for (uint32_t block = segment.begin; block < segment.end; ++block) {
      BarrierWait(rings.WeightsFull(stage.index), stage.parity);
      multiplier.Step(shared + stage.index * Shape::kWeightBytes, rings.WeightsEmpty(stage.index),
                      sums);
      stage.Next();
    }
    multiplier.Finish(sums);
    if (segment.begin > 0) {
      sums.Leave(a);
      continue;
    }
    if (segment.end < a.work.blocks) sums.Gather(a, (segment.item + 1) * a.work.blocks);
    sums.Store(a, UnitItemAt(a, segment.item, 2 * Shape::kSums));
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
    if (warp == Shape::kWarps && lane == 0) {
      ProduceUnits<kType, kTokens>(a, rings);
    } else {
      GridDependencyWait();
    }
    return;
  }
  if constexpr (Shape::kGives) TakeRegisters<224>();
  GridDependencyWait();
  ConsumeUnits<kType>(a, rings, shared, warp, lane);
#endif
}

// The kernels of one type, by rows of activations of an item.
using UnitFunction = void (*)(UnitArguments);
struct UnitKernelOf {
  UnitFunction function;
  int threads;
  size_t shared_bytes;
};
struct UnitFunctions {
  UnitKernelOf tokens32, tokens64, tokens96, tokens128;
};
template <WeightType kType, int kTokens>
UnitKernelOf UnitKernelFor() {
  using Shape = UnitShape<kType, kTokens>;
  return {UnitKernel<kType, kTokens>, Shape::kThreads, Shape::kSharedBytes};
}
template <WeightType kType>
UnitFunctions UnitFunctionsOf() {
  return {UnitKernelFor<kType, 32>(), UnitKernelFor<kType, 64>(), UnitKernelFor<kType, 96>(),
          UnitKernelFor<kType, 128>()};
}

// One per file, so that they compile side by side.
UnitFunctions UnitsQ4_K();
UnitFunctions UnitsQ5_K();
UnitFunctions UnitsQ6_K();
UnitFunctions UnitsQ8_0();

}  // namespace layercake::kernels::cuda
