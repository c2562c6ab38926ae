#include "kernels/cuda/float_stream.cuh"
#include "kernels/cuda/matmul_float.h"
#include "kernels/cuda/matmul_float_rows.h"
#include "kernels/cuda/mma.cuh"

namespace layercake::kernels::cuda {
namespace {

constexpr int kThreads = 32 * kFloatWarps;
constexpr int kRoundSlices = 4;  // whose partial sums stand in shared memory at once

// A block owns a run of 8-row slices and walks over k with up to kSlices of them at once; its warps
// share k, chunk c going to warp c % kFloatWarps, and are added up in the order of the warps at the
// end of each walk, kRoundSlices at a time. Weights and activations come through a ring of shared
// memory that belongs to the warp alone, kStages - 1 stages ahead, across the ends of walks. Rows
// of activations up to kTokens: each walk reads them all again, 4 bytes a column beside 16 of each
// slice.
template <int kTokens, int kSlices, int kStages>
struct Shape {
  static constexpr int kTokenTiles = (kTokens + 7) / 8;
  static constexpr int kSliceOutputs = 8 * kTokenTiles * kSliceRows;
  static constexpr int kRound = kSlices < kRoundSlices ? kSlices : kRoundSlices;
  static constexpr int kOutputs = kRound * kSliceOutputs;     // of one round
  static constexpr int kWeightBytes = kSlices * kSliceBytes;  // of one stage
  static constexpr int kStageBytes = kWeightBytes + 4 * kStageColumns * kTokens;
  static constexpr size_t kPartialBytes = sizeof(float) * kFloatWarps * kOutputs;
  static constexpr size_t kSharedBytes =
      kPartialBytes + size_t{kFloatWarps} * kStages * kStageBytes;
};

// Adds the partial sums of all warps and writes the results of a round: of slices from the walk's
// slice `round` on.
template <typename Pairs, typename S>
__device__ void StoreRound(const FloatProducts& products, const OperandView& x, int rows,
                           SliceRange range, int round, const float* partial) {
  for (int i = static_cast<int>(threadIdx.x); i < S::kOutputs; i += kThreads) {
    const int slice = round + i / S::kSliceOutputs;  // of the walk
    const int token = (i / kSliceRows) % (8 * S::kTokenTiles);
    if (slice >= range.step || range.first + slice >= range.end || token >= rows) continue;
    const Slice at = SliceAt(products, range.first + slice);
    const FloatProduct& product = products.product[at.product];
    const int64_t row = at.row + i % kSliceRows;
    if (row >= product.n) continue;
    float sum = partial[i];
#pragma unroll
    for (int warp = 1; warp < kFloatWarps; ++warp) sum += partial[warp * S::kOutputs + i];
    sum *= Pairs::Scale(x, token);
    if (product.bias != nullptr) sum += product.bias[row];
    float* out = product.out + token * product.out_stride + row;
    *out = product.accumulate ? *out + sum : sum;
  }
}

// acc += the stage's weights times its activations.
template <typename Pairs, typename S, int kSlices>
__device__ __forceinline__ void MultiplyStage(const std::byte* stage, int rows, int lane,
                                              const int (&token_offset)[S::kTokenTiles],
                                              const float (&inverse)[S::kTokenTiles],
                                              float (&acc)[kSlices][S::kTokenTiles][4]) {
  using Mma = typename Pairs::Mma;
  // One sum takes two products after each other; those of other slices come between.
  constexpr int kGroup = kSlices < 4 ? kSlices : 4;
#pragma unroll
  for (int part = 0; part < kStageColumns / 32; ++part) {
    uint4 high[S::kTokenTiles], low[S::kTokenTiles];
#pragma unroll
    for (int m = 0; m < S::kTokenTiles; ++m) {
      const std::byte* const at = stage + 128 * part * rows + token_offset[m];
      high[m] = *reinterpret_cast<const uint4*>(at);
      low[m] = *reinterpret_cast<const uint4*>(at + 64 * rows);
      Pairs::Split(high[m], low[m], inverse[m]);
    }
#pragma unroll
    for (int first = 0; first < kSlices; first += kGroup) {
      uint4 w[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup && first + i < kSlices; ++i) {
        w[i] = *reinterpret_cast<const uint4*>(stage + kSliceBytes * (first + i) + 512 * part +
                                               kPieceBytes * lane);
      }
#pragma unroll
      for (int i = 0; i < kGroup && first + i < kSlices; ++i) {
#pragma unroll
        for (int m = 0; m < S::kTokenTiles; ++m) {
          Mma16816(Mma{}, acc[first + i][m], high[m].x, low[m].x, high[m].y, low[m].y, w[i].x,
                   w[i].y);
        }
      }
#pragma unroll
      for (int i = 0; i < kGroup && first + i < kSlices; ++i) {
#pragma unroll
        for (int m = 0; m < S::kTokenTiles; ++m) {
          Mma16816(Mma{}, acc[first + i][m], high[m].z, low[m].z, high[m].w, low[m].w, w[i].z,
                   w[i].w);
        }
      }
    }
  }
}

// The warp's sums of a round to its place among the partial sums; these acc = 0.
template <typename S, int kSlices>
__device__ __forceinline__ void LeavePartials(float (&acc)[kSlices][S::kTokenTiles][4], int round,
                                              int lane, float* partial) {
  float* const own = partial + (lane / 4) * kSliceRows + 2 * (lane % 4);
#pragma unroll
  for (int i = 0; i < S::kRound && round + i < kSlices; ++i) {
#pragma unroll
    for (int m = 0; m < S::kTokenTiles; ++m) {
      float* const a = acc[round + i][m];
      *reinterpret_cast<float2*>(own + 8 * (i * S::kTokenTiles + m) * kSliceRows) =
          make_float2(a[0] + a[2], a[1] + a[3]);
      a[0] = a[1] = a[2] = a[3] = 0;
    }
  }
}

template <typename Pairs, int kTokens, int kSlices, int kStages>
__global__ void __launch_bounds__(kThreads, 1)
    PairKernel(const __grid_constant__ FloatProducts products,
               const __grid_constant__ OperandView x, int rows) {
  using S = Shape<kTokens, kSlices, kStages>;
  constexpr int kTokenTiles = S::kTokenTiles;
  extern __shared__ __align__(16) std::byte shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* const partials = reinterpret_cast<float*>(shared);
  std::byte* const ring = shared + S::kPartialBytes + warp * kStages * S::kStageBytes;
  const int chunks = (static_cast<int>(products.k) + kChunk - 1) / kChunk;
  const int own_chunks = (chunks - warp + kFloatWarps - 1) / kFloatWarps;
  SliceRange range = SlicesOfBlock<kSlices>(products);

  GridLaunchDependents();
  WeightStream<kSlices> weights(products, range, warp, lane);
  if (own_chunks > 0) {
    for (int i = 0; i < kStages - 1; ++i) {
      weights.CopyNext(ring + i * S::kStageBytes);
      CopyAsyncCommit();
    }
  }
  GridDependencyWait();

  // Rows of activations that do not exist are read as ones that do, and not stored.
  int token_offset[kTokenTiles];
  float inverse[kTokenTiles];
#pragma unroll
  for (int m = 0; m < kTokenTiles; ++m) {
    const int token = (8 * m + lane / 4) % rows;
    token_offset[m] = S::kWeightBytes + 64 * token + kPieceBytes * (lane % 4);
    inverse[m] = Pairs::InverseScale(x, token);
  }
  float acc[kSlices][kTokenTiles][4] = {};

  const auto end_walk = [&]() {
#pragma unroll
    for (int round = 0; round < kSlices; round += S::kRound) {
      if (round >= range.step) break;
      __syncthreads();  // all warps have read the partial sums of the round before
      LeavePartials<S, kSlices>(acc, round, lane, partials + warp * S::kOutputs);
      __syncthreads();  // all warps have left theirs
      StoreRound<Pairs, S>(products, x, rows, range, round, partials);
    }
    range.first += range.step;
  };

  if (own_chunks <= 0) {
    while (range.first < range.end) end_walk();
    return;
  }
  ActivationStream<Pairs> activations(x, products.k, rows, warp, lane);
  activations.template CopyFirst<kTokens, kStages - 1>(ring + S::kWeightBytes, S::kStageBytes);
  int stage = 0;
  int left = own_chunks * kStagesPerChunk;  // stages of this walk
  while (true) {
    CopyAsyncWait<kStages - 2>();
    __syncwarp();
    // The stage read before this one is free: all lanes have passed the barrier above since.
    std::byte* const free = ring + (stage == 0 ? kStages - 1 : stage - 1) * S::kStageBytes;
    weights.CopyNext(free);
    activations.CopyNext(free + S::kWeightBytes);
    CopyAsyncCommit();
    MultiplyStage<Pairs, S, kSlices>(ring + stage * S::kStageBytes, rows, lane, token_offset,
                                     inverse, acc);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if (--left > 0) continue;
    end_walk();
    left = own_chunks * kStagesPerChunk;
    if (range.first >= range.end) return;
  }
}

// The more slices a walk takes, the fewer bytes of activations come beside its weights; what then
// remains of the shared memory is for bytes under way, of which a multiprocessor of an H200 wants
// 48 KB. A bucket of rows changes no bits, nor does the card.
template <typename Pairs, int kTokens, int kSlices, int kStages>
struct Bucket {
  static constexpr auto kKernel = PairKernel<Pairs, kTokens, kSlices, kStages>;
  static constexpr size_t kBytes = Shape<kTokens, kSlices, kStages>::kSharedBytes;
};
// For cards that give a block 227 KB, as those of compute capability 9.0 do.
template <typename Pairs>
struct LargeBuckets {
  static constexpr size_t kMostBytes = 227 << 10;
  using Two = Bucket<Pairs, 2, 8, 6>;
  using Four = Bucket<Pairs, 4, 8, 5>;
  using Eight = Bucket<Pairs, 8, 8, 5>;
  using Sixteen = Bucket<Pairs, 16, 8, 4>;
};
// For cards that give less: 163 KB (8.0) or 99 KB (8.6, 8.9).
template <typename Pairs>
struct SmallBuckets {
  static constexpr size_t kMostBytes = 99 << 10;
  using Two = Bucket<Pairs, 2, 4, 5>;
  using Four = Bucket<Pairs, 4, 4, 4>;
  using Eight = Bucket<Pairs, 8, 4, 3>;
  using Sixteen = Bucket<Pairs, 16, 4, 2>;
};

bool HasLargeBuckets(const Context& context) {
  return context.max_shared_bytes >= static_cast<int>(LargeBuckets<Bf16Pairs>::kMostBytes);
}

template <typename Buckets, typename B>
cudaError_t PrepareBucket() {
  static_assert(B::kBytes <= Buckets::kMostBytes);
  return AllowSharedBytes(B::kKernel, B::kBytes);
}

template <typename B>
cudaError_t PrepareBuckets() {
  cudaError_t error = PrepareBucket<B, typename B::Two>();
  if (error == cudaSuccess) error = PrepareBucket<B, typename B::Four>();
  if (error == cudaSuccess) error = PrepareBucket<B, typename B::Eight>();
  if (error == cudaSuccess) error = PrepareBucket<B, typename B::Sixteen>();
  return error;
}

template <typename B>
cudaError_t LaunchBucket(const Context& context, const FloatProducts& products,
                         const OperandView& x, int rows) {
  int slices = 0;
  for (int i = 0; i < products.count; ++i) slices += SliceCount(products.product[i].n);
  const dim3 grid(static_cast<unsigned>(slices < context.sm_count ? slices : context.sm_count));
  return Launch(context, grid, dim3(kThreads), B::kBytes, B::kKernel, products, x, rows);
}

template <typename B>
cudaError_t LaunchBuckets(const Context& context, const FloatProducts& products,
                          const OperandView& x, int rows) {
  if (rows <= 2) return LaunchBucket<typename B::Two>(context, products, x, rows);
  if (rows <= 4) return LaunchBucket<typename B::Four>(context, products, x, rows);
  if (rows <= 8) return LaunchBucket<typename B::Eight>(context, products, x, rows);
  return LaunchBucket<typename B::Sixteen>(context, products, x, rows);
}

template <typename Pairs>
cudaError_t LaunchPairs(const Context& context, const FloatProducts& products, const OperandView& x,
                        int rows) {
  return HasLargeBuckets(context) ? LaunchBuckets<LargeBuckets<Pairs>>(context, products, x, rows)
                                  : LaunchBuckets<SmallBuckets<Pairs>>(context, products, x, rows);
}

}  // namespace

cudaError_t PrepareFloatMatmul(const Context& context) {
  if (HasLargeBuckets(context)) {
    const cudaError_t error = PrepareBuckets<LargeBuckets<Bf16Pairs>>();
    return error != cudaSuccess ? error : PrepareBuckets<LargeBuckets<F16Pairs>>();
  }
  const cudaError_t error = PrepareBuckets<SmallBuckets<Bf16Pairs>>();
  return error != cudaSuccess ? error : PrepareBuckets<SmallBuckets<F16Pairs>>();
}

cudaError_t MultiplyFloats(const Context& context, const FloatProducts& products,
                           const OperandView& x, int rows) {
  constexpr int64_t kMaxK = int64_t{1} << 30;  // columns are ints in the kernels
  if (rows < 1 || rows > kFloatMaxRows || products.count < 1 ||
      products.count > kFloatMaxProducts || products.k < 1 || products.k > kMaxK) {
    return cudaErrorInvalidValue;
  }
  const bool aligned = products.k % 8 == 0;
  if (products.type == WeightType::kBF16 && aligned) {
    return LaunchPairs<Bf16Pairs>(context, products, x, rows);
  }
  if (products.type == WeightType::kF16 && aligned) {
    return LaunchPairs<F16Pairs>(context, products, x, rows);
  }
  return MultiplyFloatRows(context, products, x, rows);
}

}  // namespace layercake::kernels::cuda
