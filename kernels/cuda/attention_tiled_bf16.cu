// The attention of prompts over bf16 and q8_0 caches (attention_bf16.cuh).
#include <type_traits>

#include "kernels/cuda/attention_bf16.cuh"
#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/attention_tiled.cuh"

namespace layercake::kernels::cuda {
namespace {

template <typename Kv, int kHeadDim>
struct TiledShape {
  static constexpr bool kMakes = Kv::template Tile<kHeadDim, 32>::kMadeBytes > 0;
  // Positions of a tile: such that heads of 128 fit cards with 99 KB of shared memory, and that
  // nothing spills.
  static constexpr int kTokens = kHeadDim <= 64 ? 64 : (kMakes && kHeadDim > 128 ? 16 : 32);
  using Tile = typename Kv::template Tile<kHeadDim, kTokens>;
  static constexpr int kPitch = kHeadDim * 2 + 16;
  static constexpr int kQueryBytes = 2 * kTileQueries * kPitch;  // high, then low
  // What is made of a tile frees its buffer for the next one; else there are two.
  static constexpr int kBuffers = kMakes ? 1 : 2;
  static constexpr int kMade = kQueryBytes + kBuffers * Tile::kLoadBytes;
  static constexpr int kSharedBytes = kMade + Tile::kMadeBytes;
};

template <int kHeadDim>
__device__ void FillQueries(const KvView& cache, const AttentionArguments& a,
                            const TiledBlock& block, char* queries) {
  constexpr int kPitch = kHeadDim * 2 + 16;
  for (int i = static_cast<int>(threadIdx.x); i < kTileQueries * kHeadDim / 2; i += kTiledThreads) {
    const int m = i / (kHeadDim / 2);
    const int d = i % (kHeadDim / 2) * 2;
    float2 value = make_float2(0, 0);
    if (block.Has(m) && d < cache.head_dim) {
      value = *reinterpret_cast<const float2*>(
          a.q + (block.Row(m) * a.heads + block.Head(m)) * cache.head_dim + d);
    }
    uint32_t high;
    uint32_t low;
    SplitPair(value.x, value.y, high, low);
    auto* to = reinterpret_cast<uint32_t*>(queries + m * kPitch + d * 2);
    to[0] = high;
    to[kTileQueries * kPitch / 4] = low;
  }
}

// Where a position lies, as Kv::Issue takes it.
template <typename Kv>
struct PlaceIn {
  __device__ __forceinline__ int64_t operator()(const KvView& cache, int64_t block, int kv_head,
                                                int token) const {
    if constexpr (std::is_same_v<Kv, Bf16Kv>) return ElementPlace(cache, block, kv_head, token);
    return Q8ValueOffset(cache, block, kv_head, token);
  }
};

template <typename Kv, int kHeadDim>
__global__ void __launch_bounds__(kTiledThreads, 2)
    Bf16TiledKernel(StepView step, KvView cache, AttentionArguments a) {
  using Shape = TiledShape<Kv, kHeadDim>;
  using Tile = typename Shape::Tile;
  constexpr int kTokens = Shape::kTokens;
  extern __shared__ __align__(128) char shared[];
  __shared__ int64_t offsets[2][kTokens];
  GridDependencyWait();
  GridLaunchDependents();
  const TiledBlock block(step, cache, a.heads);
  const int tid = static_cast<int>(threadIdx.x);
  const int warp = tid / 32;
  const RowLimits limits(step, block);
  char* loads = shared + Shape::kQueryBytes;
  const auto issue = [&](int t) {
    Kv::template Issue<kHeadDim, kTokens, kTiledThreads>(
        cache, offsets[t % 2], t * kTokens, block.last_position + 1 - t * kTokens,
        SharedAddress(loads + t % Shape::kBuffers * Tile::kLoadBytes), tid);
  };
  FillPlaces<kTokens>(cache, block, 0, PlaceIn<Kv>(), offsets[0]);
  FillPlaces<kTokens>(cache, block, kTokens, PlaceIn<Kv>(), offsets[1]);
  FillQueries<kHeadDim>(cache, a, block, shared);
  __syncthreads();
  issue(0);
  CommitCopies();

  const uint32_t queries = SharedAddress(shared) + static_cast<uint32_t>(warp * 16 * Shape::kPitch);
  SoftmaxState<kHeadDim> state;
  state.Clear();
  const int tiles = block.last_position / kTokens + 1;
  for (int t = 0; t < tiles; ++t) {
    WaitCopies<0>();
    __syncthreads();
    const char* tile = loads + t % Shape::kBuffers * Tile::kLoadBytes;
    if constexpr (Shape::kMakes) {
      char* made = shared + Shape::kMade;
      Kv::template Make<kHeadDim, kTokens, kTiledThreads>(
          cache, tile, block.last_position + 1 - t * kTokens, made, tid);
      tile = made;
      __syncthreads();
    }
    if (t + 1 < tiles) issue(t + 1);
    CommitCopies();
    FillPlaces<kTokens>(cache, block, (t + 2) * kTokens, PlaceIn<Kv>(), offsets[t % 2]);
    float scores[kTokens / 8][4] = {};
    Kv::template AddScores<kHeadDim, kTokens>(scores, queries,
                                              queries + kTileQueries * Shape::kPitch, tile);
    limits.Mask<kTokens>(scores, t * kTokens);
    state.template Weigh<kTokens>(scores, a.scale * kLog2E);
    Kv::template AddValues<kHeadDim, kTokens>(scores, tile, state.out);
  }
  state.Finish();
  StoreRows<kHeadDim>(cache, a, block, state);
}

template <typename Kv>
TiledChoice Choose(int head_dim) {
  if (head_dim <= 64) return {Bf16TiledKernel<Kv, 64>, TiledShape<Kv, 64>::kSharedBytes};
  if (head_dim <= 96) return {Bf16TiledKernel<Kv, 96>, TiledShape<Kv, 96>::kSharedBytes};
  if (head_dim <= 128) return {Bf16TiledKernel<Kv, 128>, TiledShape<Kv, 128>::kSharedBytes};
  return {Bf16TiledKernel<Kv, 256>, TiledShape<Kv, 256>::kSharedBytes};
}

}  // namespace

TiledChoice ChooseBf16Tiled(KvElement element, int head_dim) {
  if (element == KvElement::kQ8_0) return Choose<Q8Kv>(head_dim);
  if (element == KvElement::kBfloat16 && head_dim % 8 == 0) return Choose<Bf16Kv>(head_dim);
  return {};
}

}  // namespace layercake::kernels::cuda
