#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/attention_tiled.cuh"

namespace layercake::kernels::cuda {
namespace {

constexpr int kStaticSharedBytes = 1024;  // the offsets of two tiles

template <int kHeadDim>
struct TiledShape {
  static constexpr int kTokens = kHeadDim > 128 ? 32 : 64;  // positions of one tile of keys
  static constexpr int kPitch = kHeadDim * 2 + 16;
  static constexpr int kQueryBytes = kTileQueries * kPitch;
  static constexpr int kStageBytes = 2 * kTokens * kPitch;
  static constexpr int kSharedBytes = kQueryBytes + 2 * kStageBytes;
};

template <int kHeadDim>
__device__ void FillQueries(const KvView& cache, const AttentionArguments& a,
                            const TiledBlock& block, char* queries) {
  constexpr int kPieces = kHeadDim / 4;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kTileQueries * kPieces; i += kTiledThreads) {
    const int m = i / kPieces;
    const int d = 4 * (i % kPieces);
    float4 four = make_float4(0, 0, 0, 0);
    if (block.Has(m) && d < cache.head_dim) {
      four = *reinterpret_cast<const float4*>(
          a.q + (block.Row(m) * a.heads + block.Head(m)) * cache.head_dim + d);
    }
    *reinterpret_cast<uint2*>(queries + m * TiledShape<kHeadDim>::kPitch + 2 * d) =
        make_uint2(PackHalves(four.x, four.y), PackHalves(four.z, four.w));
  }
}

template <int kHeadDim>
__device__ void IssueTile(const KvView& cache, const TiledBlock& block, const int64_t* offsets,
                          int first, uint32_t to) {
  using Shape = TiledShape<kHeadDim>;
  constexpr int kChunks = kHeadDim / 8;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < Shape::kTokens * kChunks; i += kTiledThreads) {
    const int token = i / kChunks;
    const int chunk = i % kChunks;
    const bool present = first + token <= block.last_position && chunk * 8 < cache.head_dim;
    const int64_t offset = present ? offsets[token] + chunk * 8 : 0;
    const uint32_t place = to + static_cast<uint32_t>(token * Shape::kPitch + chunk * 16);
    CopyAsync(place, static_cast<const __half*>(cache.keys) + offset, present);
    CopyAsync(place + Shape::kTokens * Shape::kPitch,
              static_cast<const __half*>(cache.values) + offset, present);
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(kTiledThreads, 2)
    TiledAttentionKernel(StepView step, KvView cache, AttentionArguments a) {
  using Shape = TiledShape<kHeadDim>;
  constexpr int kTokens = Shape::kTokens;
  extern __shared__ __align__(128) char shared[];
  __shared__ int64_t offsets[2][kTokens];
  GridDependencyWait();
  GridLaunchDependents();
  const TiledBlock block(step, cache, a.heads);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const RowLimits limits(step, block);
  FillPlaces<kTokens>(cache, block, 0, ElementPlace, offsets[0]);
  FillPlaces<kTokens>(cache, block, kTokens, ElementPlace, offsets[1]);
  FillQueries<kHeadDim>(cache, a, block, shared);
  __syncthreads();
  const uint32_t stages = SharedAddress(shared + Shape::kQueryBytes);
  IssueTile<kHeadDim>(cache, block, offsets[0], 0, stages);
  CommitCopies();

  const uint32_t queries = SharedAddress(shared) + static_cast<uint32_t>(warp * 16 * Shape::kPitch);
  const float scale = a.scale * kLog2E;
  SoftmaxState<kHeadDim> state;
  state.Clear();
  const int tiles = block.last_position / kTokens + 1;
  for (int t = 0; t < tiles; ++t) {
    WaitCopies<0>();
    __syncthreads();
    const uint32_t keys = stages + static_cast<uint32_t>(t % 2 * Shape::kStageBytes);
    if (t + 1 < tiles) {
      IssueTile<kHeadDim>(cache, block, offsets[(t + 1) % 2], (t + 1) * kTokens,
                          stages + static_cast<uint32_t>((t + 1) % 2 * Shape::kStageBytes));
    }
    CommitCopies();
    FillPlaces<kTokens>(cache, block, (t + 2) * kTokens, ElementPlace, offsets[t % 2]);
    float scores[kTokens / 8][4] = {};
    AddScores<kHeadDim, kTokens>(scores, queries, keys, Shape::kPitch);
    limits.Mask<kTokens>(scores, t * kTokens);
    state.template Add<kTokens>(scores, scale, keys + kTokens * Shape::kPitch, Shape::kPitch);
  }
  state.Finish();
  StoreRows<kHeadDim>(cache, a, block, state);
}

template <int kHeadDim>
TiledChoice Shaped() {
  return {TiledAttentionKernel<kHeadDim>, TiledShape<kHeadDim>::kSharedBytes};
}

TiledChoice ShapedFor(int head_dim) {
  if (head_dim <= 64) return Shaped<64>();
  if (head_dim <= 80) return Shaped<80>();
  if (head_dim <= 96) return Shaped<96>();
  if (head_dim <= 128) return Shaped<128>();
  if (head_dim <= 192) return Shaped<192>();
  return Shaped<256>();
}

TiledChoice Choose(const Context& context, KvElement element, int head_dim) {
  if (element != KvElement::kFloat16) return ChooseBf16Tiled(element, head_dim);
  const TiledChoice hopper = ChooseHopperTiled(context, element, head_dim);
  if (hopper.kernel != nullptr) return hopper;
  return head_dim % 8 == 0 ? ShapedFor(head_dim) : TiledChoice{};
}

bool Runs(const Context& context, const TiledChoice& choice) {
  return choice.kernel != nullptr &&
         choice.shared_bytes + kStaticSharedBytes <= context.max_shared_bytes;
}

cudaError_t Allow(const Context& context, const TiledChoice& choice) {
  if (!Runs(context, choice)) return cudaSuccess;
  return AllowSharedBytes(choice.kernel, static_cast<size_t>(choice.shared_bytes));
}

}  // namespace

bool TiledAttentionTakes(const Context& context, const KvView& cache, int heads) {
  return heads / cache.kv_heads <= kTileQueries &&
         Runs(context, Choose(context, cache.element, cache.head_dim));
}

int RowsPerTile(int heads, int kv_heads) {
  const int rows = kTileQueries / (heads / kv_heads);
  return rows < 1 ? 1 : rows;
}

cudaError_t PrepareAttention(const Context& context) {
  for (const int head_dim : {64, 80, 96, 128, 192, 256}) {
    const cudaError_t error = Allow(context, Choose(context, KvElement::kFloat16, head_dim));
    if (error != cudaSuccess) return error;
  }
  for (const KvElement element : {KvElement::kBfloat16, KvElement::kQ8_0}) {
    for (const int head_dim : kBf16HeadDims) {
      const cudaError_t error = Allow(context, ChooseBf16Tiled(element, head_dim));
      if (error != cudaSuccess) return error;
    }
  }
  return PrepareDecodeAttention(context);
}

cudaError_t LaunchTiledAttention(const Context& context, const StepView& step, const KvView& cache,
                                 const AttentionArguments& arguments) {
  const TiledChoice choice = Choose(context, cache.element, cache.head_dim);
  const dim3 grid(static_cast<unsigned>(step.tile_count), static_cast<unsigned>(cache.kv_heads));
  return Launch(context, grid, dim3(kTiledThreads), static_cast<size_t>(choice.shared_bytes),
                choice.kernel, step, cache, arguments);
}

}  // namespace layercake::kernels::cuda
