// What the attention kernels of prompts share, whatever the type of the cache: which rows and heads
// a block of threads takes, where a sequence's positions lie, what a row may see, how results go
// out.
//
// A block of kThreads takes the rows of one tile with the query heads of one kv head: kTileQueries
// queries, 16 for each warp, of which a lane has numbers lane / 4 and that + 8 (SoftmaxState).
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/step_view.h"

namespace layercake::kernels::cuda {

inline constexpr int kTiledWarps = 4;
inline constexpr int kTiledThreads = 32 * kTiledWarps;
inline constexpr int kTileQueries = 16 * kTiledWarps;
inline constexpr float kLog2E = 1.4426950408889634f;

struct TiledBlock {
  RowTile tile;
  int kv_head;
  int group;
  int last_position;
  const int32_t* table;

  __device__ __forceinline__ TiledBlock(const StepView& step, const KvView& cache, int heads) {
    // The longest tiles first, or they would run alone at the end.
    tile = step.tiles[step.tile_count - 1 - static_cast<int>(blockIdx.x)];
    kv_head = static_cast<int>(blockIdx.y);
    group = heads / cache.kv_heads;
    last_position = step.kv_position[tile.first_row + tile.row_count - 1];
    table =
        step.tables + static_cast<int64_t>(step.table_index[tile.first_row]) * step.table_stride;
  }

  // Of the lane's h-th query in the block.
  static __device__ __forceinline__ int Query(int h) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    return static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4 + h * 8;
  }
  __device__ __forceinline__ int64_t Row(int query) const { return tile.first_row + query / group; }
  __device__ __forceinline__ int Head(int query) const { return kv_head * group + query % group; }
  __device__ __forceinline__ bool Has(int query) const { return query < tile.row_count * group; }
};

// What the lane's two queries may see.
struct RowLimits {
  int last[2];  // the last position of each
  int first;    // of the tile's first row: up to there all see everything

  __device__ __forceinline__ RowLimits(const StepView& step, const TiledBlock& block) {
    for (int h = 0; h < 2; ++h) {
      const int m = TiledBlock::Query(h);
      last[h] = block.Has(m) ? step.kv_position[block.Row(m)] : block.last_position;
    }
    first = step.kv_position[block.tile.first_row];
  }

  // Scores of the kTokens positions from `from` on: -inf behind the last one of their query.
  template <int kTokens>
  __device__ __forceinline__ void Mask(float (&scores)[kTokens / 8][4], int from) const {
    if (from + kTokens - 1 <= first) return;
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int position = from + n * 8 + lane % 4 * 2 + j % 2;
        if (position > last[j / 2]) scores[n][j] = -INFINITY;
      }
    }
  }
};

// Elements before a position, `token` of its block, in caches whose heads lie one after the other.
__device__ __forceinline__ int64_t ElementPlace(const KvView& cache, int64_t block, int kv_head,
                                                int token) {
  return ((block * cache.kv_heads + kv_head) * cache.block_tokens + token) * cache.head_dim;
}

// Where the positions of one tile of keys lie: place(cache, block, kv_head, token of the block).
// Behind the last position it is 0 and unused.
template <int kTokens, typename Place>
__device__ __forceinline__ void FillPlaces(const KvView& cache, const TiledBlock& block, int first,
                                           const Place& place, int64_t* places) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kTokens) return;
  const int position = first + i;
  places[i] = position <= block.last_position
                  ? place(cache, block.table[position / cache.block_tokens], block.kv_head,
                          position % cache.block_tokens)
                  : 0;
}

template <int kHeadDim>
__device__ __forceinline__ void StoreRows(const KvView& cache, const AttentionArguments& a,
                                          const TiledBlock& block,
                                          const SoftmaxState<kHeadDim>& state) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int m = TiledBlock::Query(h);
    if (!block.Has(m)) continue;
    float* out = a.out + (block.Row(m) * a.heads + block.Head(m)) * cache.head_dim;
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

}  // namespace layercake::kernels::cuda
