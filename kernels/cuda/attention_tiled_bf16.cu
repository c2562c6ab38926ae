// The attention of prompts over bf16 and q8_0 caches (attention_bf16.cuh).
#include <type_traits>

#include "kernels/cuda/attention_bf16.cuh"
#include "kernels/cuda/attention_choice.h"

namespace layercake::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kTileQueries = 16 * kWarps;
constexpr float kLog2E = 1.4426950408889634f;

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

struct TiledBlock {
  RowTile tile;
  int kv_head;
  int group;
  int last_position;
  const int32_t* table;

  __device__ TiledBlock(const StepView& step, const KvView& cache, int heads) {
    // The longest tiles first, or they would run alone at the end.
    tile = step.tiles[step.tile_count - 1 - static_cast<int>(blockIdx.x)];
    kv_head = static_cast<int>(blockIdx.y);
    group = heads / cache.kv_heads;
    last_position = step.kv_position[tile.first_row + tile.row_count - 1];
    table =
        step.tables + static_cast<int64_t>(step.table_index[tile.first_row]) * step.table_stride;
  }
};

template <int kHeadDim>
__device__ void FillQueries(const KvView& cache, const AttentionArguments& a,
                            const TiledBlock& block, char* queries) {
  constexpr int kPitch = kHeadDim * 2 + 16;
  for (int i = static_cast<int>(threadIdx.x); i < kTileQueries * kHeadDim / 2; i += kThreads) {
    const int m = i / (kHeadDim / 2);
    const int d = i % (kHeadDim / 2) * 2;
    float2 value = make_float2(0, 0);
    if (m < block.tile.row_count * block.group && d < cache.head_dim) {
      const int64_t row = block.tile.first_row + m / block.group;
      const int head = block.kv_head * block.group + m % block.group;
      value = *reinterpret_cast<const float2*>(a.q + (row * a.heads + head) * cache.head_dim + d);
    }
    uint32_t high;
    uint32_t low;
    SplitPair(value.x, value.y, high, low);
    auto* to = reinterpret_cast<uint32_t*>(queries + m * kPitch + d * 2);
    to[0] = high;
    to[kTileQueries * kPitch / 4] = low;
  }
}

// Where the positions of one tile of keys lie, as Kv::Issue takes it.
template <typename Kv, int kTokens>
__device__ void FillPlaces(const KvView& cache, const TiledBlock& block, int first,
                           int64_t* offsets) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kTokens) return;
  const int position = first + i;
  int64_t offset = 0;
  if (position <= block.last_position) {
    const int64_t id = block.table[position / cache.block_tokens];
    const int token = position % cache.block_tokens;
    if constexpr (std::is_same_v<Kv, Bf16Kv>) {
      offset =
          ((id * cache.kv_heads + block.kv_head) * cache.block_tokens + token) * cache.head_dim;
    } else {
      offset = Q8ValueOffset(cache, id, block.kv_head, token);
    }
  }
  offsets[i] = offset;
}

template <int kHeadDim>
__device__ void StoreRows(const KvView& cache, const AttentionArguments& a, const TiledBlock& block,
                          const SoftmaxState<kHeadDim>& state) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int m = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4 + h * 8;
    if (m >= block.tile.row_count * block.group) continue;
    const int64_t row = block.tile.first_row + m / block.group;
    const int head = block.kv_head * block.group + m % block.group;
    float* out = a.out + (row * a.heads + head) * cache.head_dim;
    const float factor = 1.0f / state.sum[h];
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      const int d = n * 8 + lane % 4 * 2;
      if (d >= cache.head_dim) continue;
      *reinterpret_cast<float2*>(out + d) =
          make_float2(state.out[n][2 * h] * factor, state.out[n][2 * h + 1] * factor);
    }
  }
}

template <typename Kv, int kHeadDim>
__global__ void __launch_bounds__(kThreads, 2)
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
  const int lane = tid % 32;
  const int warp = tid / 32;
  int limits[2];  // the last position that each of the lane's two query rows attends
  for (int h = 0; h < 2; ++h) {
    const int m = warp * 16 + lane / 4 + h * 8;
    limits[h] = m < block.tile.row_count * block.group
                    ? step.kv_position[block.tile.first_row + m / block.group]
                    : block.last_position;
  }
  const int first_limit = step.kv_position[block.tile.first_row];
  char* loads = shared + Shape::kQueryBytes;
  const auto issue = [&](int t) {
    Kv::template Issue<kHeadDim, kTokens, kThreads>(
        cache, offsets[t % 2], t * kTokens, block.last_position + 1 - t * kTokens,
        SharedAddress(loads + t % Shape::kBuffers * Tile::kLoadBytes), tid);
  };
  FillPlaces<Kv, kTokens>(cache, block, 0, offsets[0]);
  FillPlaces<Kv, kTokens>(cache, block, kTokens, offsets[1]);
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
      Kv::template Make<kHeadDim, kTokens, kThreads>(
          cache, tile, block.last_position + 1 - t * kTokens, made, tid);
      tile = made;
      __syncthreads();
    }
    if (t + 1 < tiles) issue(t + 1);
    CommitCopies();
    FillPlaces<Kv, kTokens>(cache, block, (t + 2) * kTokens, offsets[t % 2]);
    float scores[kTokens / 8][4] = {};
    Kv::template AddScores<kHeadDim, kTokens>(scores, queries,
                                              queries + kTileQueries * Shape::kPitch, tile);
    if (t * kTokens + kTokens - 1 > first_limit) {
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int position = t * kTokens + n * 8 + lane % 4 * 2 + j % 2;
          if (position > limits[j / 2]) scores[n][j] = -INFINITY;
        }
      }
    }
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
