// The kernel of matmul_units.h for devices without wgmma: eight warps, each of which reads its own
// units from memory into registers, makes them f16 there and multiplies them (mma.sync) with
// activations that all share, out of a ring of slabs in shared memory.
//
// A step is a column block of 256: four pieces jj of 64 columns (groups jj and jj + 4 of 32), the
// words of the next one on their way while one is multiplied. The lines of the next step's units
// are asked for a step before, so that these reads find them in the L2 cache.
#pragma once

#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/unit_end.cuh"
#include "kernels/cuda/unit_functions.h"
#include "kernels/cuda/unit_halves.cuh"
#include "kernels/cuda/unit_shape.cuh"
#include "kernels/cuda/unit_steps.cuh"
#include "kernels/cuda/unit_sums.cuh"

namespace layercake::kernels::cuda {

template <int kTokens>
struct UnitMmaShape {
  // Units of a warp, which share what it reads of the activations.
  static constexpr int kWarpUnits = 2;
  static constexpr int kWarps = kItemUnits / kWarpUnits;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kSums = kTokens / 2;  // of a unit in each lane
  static constexpr int kPieceBytes = 2 * kPieceColumns * kTokens;
  // Pieces that one barrier of the block lets go: at most a step.
  static constexpr int kSlabPieces = kTokens <= 32 ? 4 : kTokens <= 64 ? 2 : 1;
  static constexpr int kSlabBytes = kSlabPieces * kPieceBytes;
  static constexpr int kSlabs = kTokens <= 64 ? 4 : 6;
  static constexpr size_t kSharedBytes = size_t{kSlabs} * kSlabBytes;
  static_assert(kSharedBytes <= kUnitMmaSharedBytes);
};

// Copies slab after slab of a block's work, by all of its threads.
template <int kTokens>
class SlabStream {
 public:
  using Shape = UnitMmaShape<kTokens>;

  __device__ SlabStream(const UnitArguments& a, std::byte* slabs)
      : a_(a), at_(a, kTokens), slabs_(slabs) {}

  // The next slab, one commit group; an empty one behind the last.
  __device__ __forceinline__ void CopyNext() {
    if (at_.valid()) {
      const auto thread = static_cast<int>(threadIdx.x);
      const uint16_t* const from =
          a_.x.tiles + TilePieceIndex(a_.x.tile_groups, at_.block(), piece_,
                                      at_.item().token_first / kTileTokens);
      constexpr int kPieceCopies = Shape::kPieceBytes / 16;
      constexpr int kCopies = Shape::kSlabPieces * kPieceCopies;
#pragma unroll
      for (int i = 0; i < kCopies / Shape::kThreads; ++i) {
        const int copy = i * Shape::kThreads + thread;
        const int piece = copy / kPieceCopies;
        CopyAsync16(slabs_ + slab_ * Shape::kSlabBytes + 16 * copy,
                    from + TilePieceIndex(a_.x.tile_groups, 0, piece, 0) +
                        8 * (copy - piece * kPieceCopies),
                    true);
      }
      static_assert(kCopies % Shape::kThreads == 0);
      if (++slab_ == Shape::kSlabs) slab_ = 0;
      piece_ += Shape::kSlabPieces;
      if (piece_ == kSlotPieces) {
        piece_ = 0;
        at_.Next();
      }
    }
    CopyAsyncCommit();
  }

 private:
  const UnitArguments& a_;
  UnitSteps at_;
  std::byte* const slabs_;
  int piece_ = 0;
  int slab_ = 0;
};

// Where a warp's units of a column block stand. Units that do not exist are read from the matrix's
// last: they become rows that nobody stores.
template <WeightType kType>
struct WarpUnits {
  const std::byte* unit[2];

  __device__ __forceinline__ WarpUnits(const UnitArguments& a, const UnitItem& item, uint32_t block,
                                       int warp) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const UnitProduct& product = a.products.product[a.paired() ? tile : item.product];
      const int64_t row_tile = a.paired() ? item.row_tile : 2 * item.row_tile + tile;
      const int64_t row = min(row_tile * kTileUnits + warp, UnitRowCount(product.n) - 1);
      unit[tile] =
          product.units + UnitIndex(product.n, a.products.k, row, block) * UnitBytes(kType);
    }
  }

  // Asks the L2 cache for them.
  __device__ __forceinline__ void Prefetch(int lane) const {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int at = 0; at < UnitBytes(kType); at += 32 * 128) {
        const int line = at + 128 * lane;
        if (line < UnitBytes(kType)) {
          asm volatile("prefetch.global.L2 [%0];" ::"l"(unit[tile] + line));
        }
      }
    }
  }
};

// A warp's part in the products.
template <WeightType kType, int kTokens>
class UnitMmaMultiplier {
 public:
  using Shape = UnitMmaShape<kTokens>;

  __device__ UnitMmaMultiplier(const UnitArguments& a, uint32_t slabs, int warp, int lane)
      : a_(a),
        ahead_(a, kTokens),
        next_(a, ahead_.item(), ahead_.block(), warp),
        slabs_(slabs),
        warp_(warp),
        lane_(lane),
        // Matrices of a read: two groups of eight tokens, two chunks of eight columns each.
        place_(
            static_cast<uint32_t>(lane / 16 * kGroupBytes + lane / 8 % 2 * 128 + lane % 8 * 16)) {
    Fetch();
  }

  // sums += the warp's units of the next column block times the activations.
  __device__ __forceinline__ void Step(SlabStream<kTokens>& stream, UnitSums<Shape>& sums) {
    const WarpUnits<kType> units = next_;
    LaneScales<kType> scales[kUnits];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) scales[i].Make(headers_[i], sums.weight_scale[i], lane_);
    ahead_.Next();
    if (ahead_.valid()) {
      next_ = WarpUnits<kType>(a_, ahead_.item(), ahead_.block(), warp_);
      next_.Prefetch(lane_);
    }
#pragma unroll
    for (int jj = 0; jj < kSlotPieces; ++jj) {
      if (jj % Shape::kSlabPieces == 0) NextSlab(stream);
      LaneWords<kType> words[kUnits];
#pragma unroll
      for (int i = 0; i < kUnits; ++i) words[i] = words_[i];
      if (jj + 1 < kSlotPieces) {
#pragma unroll
        for (int i = 0; i < kUnits; ++i) words_[i].Load(units.unit[i], jj + 1, lane_);
      } else {
        Fetch();
      }
      const uint32_t piece =
          slabs_ + static_cast<uint32_t>(slab_ * Shape::kSlabBytes +
                                         jj % Shape::kSlabPieces * Shape::kPieceBytes);
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        uint32_t weights[kUnits][8];
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
          MakeFragments<kType>(words[i], scales[i], jj, upper, lane_, weights[i]);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          Multiply(piece + place_ + static_cast<uint32_t>(256 * (2 * upper + half)), half, weights,
                   sums);
        }
      }
    }
  }

 private:
  static constexpr int kUnits = Shape::kWarpUnits;
  static constexpr int kGroupBytes = 2 * kPieceColumns * kTileTokens;  // of eight tokens

  // The first words and the headers of the next step.
  __device__ __forceinline__ void Fetch() {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      words_[i].Load(next_.unit[i], 0, lane_);
      headers_[i].Load(next_.unit[i], lane_);
    }
  }

  // Waits for the next slab, and has the one that everyone is done with filled anew.
  __device__ __forceinline__ void NextSlab(SlabStream<kTokens>& stream) {
    CopyAsyncWait<Shape::kSlabs - 2>();
    __syncthreads();
    stream.CopyNext();
    slab_ = slab_ + 1 == Shape::kSlabs ? 0 : slab_ + 1;
  }

  // 16 columns of the units times those of all tokens, which stand at `activations`.
  __device__ __forceinline__ void Multiply(uint32_t activations, int half,
                                           const uint32_t (&weights)[kUnits][8],
                                           UnitSums<Shape>& sums) {
#pragma unroll
    for (int n = 0; n < kTokens / 8; n += 2) {
      uint32_t b[4];
      LoadMatrices(b, activations + static_cast<uint32_t>(n * kGroupBytes));
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        const uint32_t* const w = weights[i] + 4 * half;
        MultiplyAddHalf(sums.value[i] + 4 * n, w, b[0], b[1]);
        MultiplyAddHalf(sums.value[i] + 4 * n + 4, w, b[2], b[3]);
      }
    }
  }

  const UnitArguments& a_;
  UnitSteps ahead_;
  WarpUnits<kType> next_;
  const uint32_t slabs_;
  const int warp_, lane_;
  const uint32_t place_;
  int slab_ = Shape::kSlabs - 1;  // the last that was taken
  LaneWords<kType> words_[kUnits];
  LaneHeader<kType> headers_[kUnits];
};

// Block: UnitMmaShape::kThreads. Grid: a.work.grid, all of it on the device at once. A block waits
// for later ones only, and never before it has left what earlier ones wait for.
template <WeightType kType, int kTokens>
__global__ void __launch_bounds__(UnitMmaShape<kTokens>::kThreads, 1)
    UnitMmaKernel(const __grid_constant__ UnitArguments a) {
  using Shape = UnitMmaShape<kTokens>;
  extern __shared__ __align__(128) std::byte shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  GridLaunchDependents();
  // Weights do not wait for the kernel before this one.
  UnitMmaMultiplier<kType, kTokens> multiplier(a, SharedAddress(shared), warp, lane);
  GridDependencyWait();
  SlabStream<kTokens> stream(a, shared);
  for (int i = 0; i < Shape::kSlabs - 1; ++i) stream.CopyNext();
  UnitSums<Shape> sums(warp, lane);
  UnitSegments segments(a.work, blockIdx.x);
  UnitSegment segment;
  while (segments.Next(&segment)) {
    const UnitItem item = UnitItemAt(a, segment.item, kTokens);
    sums.Begin(a, item);
    for (uint32_t block = segment.begin; block < segment.end; ++block) {
      multiplier.Step(stream, sums);
    }
    EndSegment(a, segment, item, sums, warp, lane);
  }
}

template <WeightType kType, int kTokens>
UnitKernelOf UnitMmaKernelFor() {
  using Shape = UnitMmaShape<kTokens>;
  return {UnitMmaKernel<kType, kTokens>, Shape::kThreads, Shape::kSharedBytes};
}
template <WeightType kType>
UnitFunctions UnitsByMma() {
  return {UnitMmaKernelFor<kType, 32>(), UnitMmaKernelFor<kType, 64>(),
          UnitMmaKernelFor<kType, 96>(), UnitMmaKernelFor<kType, 128>()};
}

}  // namespace layercake::kernels::cuda
