// Attention of prompts on Hopper, for caches of halves: as attention_tiled.cu, with both products
// on wgmma. A block is one warpgroup, so a warp's 16 queries lie in its lanes as SoftmaxState wants
// them; three blocks share a multiprocessor, and one's softmax runs beside another's products.
//
// A tile of keys or values lies in shared memory as wgmma reads it with its swizzle of 128 bytes:
// half a head of every position (128 bytes), then the other half. Scores take a tile along the
// head, the sum of values takes one along the positions (transposed).
#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/attention_tiled.cuh"
#include "kernels/cuda/hopper_code.h"
#include "kernels/cuda/wgmma.cuh"

namespace layercake::kernels::cuda {
namespace {

constexpr int kHeadDim = 128;      // smaller heads are filled up
constexpr int kTokens = 64;        // positions of one tile of keys
constexpr int kRowBytes = 128;     // of half a head: as wide as the swizzle
constexpr int kGroupBytes = 1024;  // 8 positions of it, within which the swizzle moves
constexpr int kHalfBytes = kTokens * kRowBytes;
constexpr int kTileBytes = 2 * kHalfBytes;
constexpr int kStageBytes = 2 * kTileBytes;                  // keys, then values
constexpr int kSharedBytes = 2 * kStageBytes + kGroupBytes;  // aligned by hand

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// The lane's two queries as fragments of A (wgmma.cuh), four registers for 16 columns.
__device__ __forceinline__ void LoadQueries(const KvView& cache, const AttentionArguments& a,
                                            const TiledBlock& block,
                                            uint32_t (&queries)[kHeadDim / 4]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int m = TiledBlock::Query(h);
    const float* from = a.q + (block.Row(m) * a.heads + block.Head(m)) * cache.head_dim;
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; ++i) {
      const int d = 8 * i + 2 * (lane % 4);
      float2 pair = make_float2(0, 0);
      if (block.Has(m) && d < cache.head_dim) pair = *reinterpret_cast<const float2*>(from + d);
      queries[4 * (i / 2) + 2 * (i % 2) + h] = PackHalves(pair.x, pair.y);
    }
  }
}

// Half a warp copies one position. Its 16 bytes at chunk c of a row r go to chunk c ^ (r % 8).
__device__ __forceinline__ void IssueTile(const KvView& cache, const TiledBlock& block,
                                          const int64_t* places, int first, uint32_t to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int chunk = lane % 16;
  const int row = static_cast<int>(threadIdx.x) / 16;  // of each group
  const bool in_head = chunk * 8 < cache.head_dim;
  to += static_cast<uint32_t>(chunk / 8 * kHalfBytes + row * kRowBytes + (chunk % 8 ^ row) * 16);
#pragma unroll
  for (int i = 0; i < kTokens / 8; ++i) {
    const int token = 8 * i + row;
    const bool present = in_head && first + token <= block.last_position;
    const int64_t offset = present ? places[token] + chunk * 8 : 0;
    const uint32_t place = to + static_cast<uint32_t>(i * kGroupBytes);
    CopyAsync(place, static_cast<const __half*>(cache.keys) + offset, present);
    CopyAsync(place + kTileBytes, static_cast<const __half*>(cache.values) + offset, present);
  }
}

// FillPlaces in two parts: the block of a thread's position, read early, and its place.
__device__ __forceinline__ int32_t BlockOf(const KvView& cache, const TiledBlock& block,
                                           int first) {
  const int position = first + static_cast<int>(threadIdx.x);
  const bool present = threadIdx.x < kTokens && position <= block.last_position;
  return present ? block.table[position / cache.block_tokens] : 0;
}
__device__ __forceinline__ void SetPlace(const KvView& cache, const TiledBlock& block, int first,
                                         int32_t id, int64_t* places) {
  if (threadIdx.x >= kTokens) return;
  const int position = first + static_cast<int>(threadIdx.x);
  places[threadIdx.x] = ElementPlace(cache, id, block.kv_head, position % cache.block_tokens);
}

// What this thread copied becomes visible to wgmma; a barrier makes it so for the others' copies.
__device__ __forceinline__ void FenceCopies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// scores = queries * keys. The queries are held before and after: without that, ptxas of CUDA 13.0
// was seen to give their registers away within the loop (a shape that is no longer here).
__device__ __forceinline__ void Score(uint32_t (&queries)[kHeadDim / 4], uint32_t keys,
                                      float (&scores)[kTokens / 2]) {
#pragma unroll
  for (float& score : scores) score = 0;
  HoldRegisters(scores);
  HoldRegisters(queries);
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
    const auto at = static_cast<uint32_t>(k / 4 * kHalfBytes + k % 4 * 32);
    Wgmma<kTokens>(scores, queries + 4 * k, WgmmaSwizzled(keys + at, kGroupBytes, kHalfBytes));
  }
  WgmmaCommit();
  WgmmaWait<0>();
  HoldRegisters(scores);
  HoldRegisters(queries);
}

// out += probabilities * values.
__device__ __forceinline__ void AddValues(const float (&scores)[kTokens / 8][4], uint32_t values,
                                          float (&out)[kHeadDim / 2]) {
  uint32_t weights[kTokens / 4];
#pragma unroll
  for (int k = 0; k < kTokens / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const pair = scores[2 * k + i / 2] + i % 2 * 2;
      weights[4 * k + i] = PackHalves(pair[0], pair[1]);
    }
  }
  HoldRegisters(weights);
  HoldRegisters(out);
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < kTokens / 16; ++k) {
    Wgmma<kHeadDim, /*kTransposed=*/true>(
        out, weights + 4 * k,
        WgmmaSwizzled(values + static_cast<uint32_t>(2 * k * kGroupBytes), kGroupBytes,
                      kHalfBytes));
  }
  WgmmaCommit();
  WgmmaWait<0>();
  HoldRegisters(out);
}
#endif

__global__ void __launch_bounds__(kTiledThreads, 3)
    HopperAttentionKernel(StepView step, KvView cache, AttentionArguments a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) char shared[];
  __shared__ int64_t places[2][kTokens];
  GridLaunchDependents();
  GridDependencyWait();
  const TiledBlock block(step, cache, a.heads);
  const RowLimits limits(step, block);
  FillPlaces<kTokens>(cache, block, 0, ElementPlace, places[0]);
  FillPlaces<kTokens>(cache, block, kTokens, ElementPlace, places[1]);
  __syncthreads();
  const uint32_t stages = (SharedAddress(shared) + kGroupBytes - 1) / kGroupBytes * kGroupBytes;
  IssueTile(cache, block, places[0], 0, stages);
  CommitCopies();
  uint32_t queries[kHeadDim / 4];
  LoadQueries(cache, a, block, queries);

  const float scale = a.scale * kLog2E;
  SoftmaxState<kHeadDim> state;
  state.Clear();
  const int tiles = block.last_position / kTokens + 1;
  for (int t = 0; t < tiles; ++t) {
    WaitCopies<0>();
    FenceCopies();
    __syncthreads();
    const uint32_t keys = stages + static_cast<uint32_t>(t % 2 * kStageBytes);
    if (t + 1 < tiles) {
      IssueTile(cache, block, places[(t + 1) % 2], (t + 1) * kTokens,
                stages + static_cast<uint32_t>((t + 1) % 2 * kStageBytes));
    }
    CommitCopies();
    const int32_t ahead = BlockOf(cache, block, (t + 2) * kTokens);
    float scores[kTokens / 8][4];
    Score(queries, keys, reinterpret_cast<float(&)[kTokens / 2]>(scores));
    // What it reads came while the scores were made.
    SetPlace(cache, block, (t + 2) * kTokens, ahead, places[t % 2]);
    limits.Mask<kTokens>(scores, t * kTokens);
    state.template Weigh<kTokens>(scores, scale);
    AddValues(scores, keys + kTileBytes, reinterpret_cast<float(&)[kHeadDim / 2]>(state.out));
  }
  state.Finish();
  StoreRows<kHeadDim>(cache, a, block, state);
#endif
}

}  // namespace

TiledChoice ChooseHopperTiled(const Context& context, KvElement element, int head_dim) {
  if (!RunsHopperCode(context)) return {};
  if (element != KvElement::kFloat16 || head_dim % 8 != 0) return {};
  // Heads of 64 and less would pay for 128.
  if (head_dim <= 64 || head_dim > kHeadDim) return {};
  return {HopperAttentionKernel, kSharedBytes};
}

}  // namespace layercake::kernels::cuda
