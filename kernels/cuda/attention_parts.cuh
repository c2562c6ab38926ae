// What the kernels of the decode attention share: which part of a row a block takes, and how the
// parts become one result.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/kv_layout.h"

namespace layercake::kernels::cuda {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kWarpTokens = kSplitTokens / kWarps;
// Beside the dynamic shared memory of the tensor core kernels; with room to spare.
constexpr int kStaticSharedBytes = 256;
constexpr float kLog2E = 1.4426950408889634f;
// Query heads of one block: the rows of one tensor core tile.
constexpr int kHeadsPerBlock = 16;

// The parts of one launch: outputs (rows, heads, splits, head_dim), not yet divided by their sums,
// then (rows, heads, splits) pairs of maximum (log2) and sum.
struct PartsView {
  float* outputs;
  float2* states;

  __device__ PartsView(const AttentionArguments& a, int rows, int splits, int head_dim)
      : outputs(a.parts),
        states(reinterpret_cast<float2*>(a.parts + static_cast<int64_t>(rows) * a.heads * splits *
                                                       head_dim)) {}
};

// True in every thread of the block that is the last of `count` to arrive at the counter, which
// then is zero again. Writes before it are visible to that block.
__device__ inline bool ArriveLast(int32_t* counter, int count) {
  __shared__ int is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(counter, 1) == count - 1 ? 1 : 0;
    if (is_last != 0) *counter = 0;
  }
  __syncthreads();
  if (is_last != 0) __threadfence();
  return is_last != 0;
}

// The results of `heads` heads from their parts, in ascending order of splits: outputs and states
// of head h begin at h * stride splits, out at h * head_dim. The whole block takes part; `weights`:
// shared memory for `capacity` floats, at least `splits`. head_dim is even.
__device__ inline void CombineHeads(const float* outputs, const float2* states, int heads,
                                    int stride, int splits, int head_dim, float* weights,
                                    int capacity, float* out) {
  __shared__ float totals[kHeadsPerBlock];
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid % 32;
  const int per_pass = min(heads, max(1, capacity / splits));
  for (int first = 0; first < heads; first += per_pass) {
    const int count = min(per_pass, heads - first);
    __syncthreads();  // the last pass's weights are used up
    for (int h = tid / 32; h < count; h += static_cast<int>(blockDim.x) / 32) {
      const float2* const own = states + static_cast<int64_t>(first + h) * stride;
      float max = -INFINITY;
      for (int s = lane; s < splits; s += 32) max = fmaxf(max, __ldcg(&own[s].x));
      for (int mask = 16; mask > 0; mask /= 2) {
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, mask));
      }
      float sum = 0;
      for (int s = lane; s < splits; s += 32) {
        const float2 state = __ldcg(&own[s]);
        const float weight = exp2f(state.x - max);
        weights[h * splits + s] = weight;
        sum += weight * state.y;
      }
      for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
      if (lane == 0) totals[h] = sum;
    }
    __syncthreads();
    const int pairs = head_dim / 2;
    for (int i = tid; i < count * pairs; i += static_cast<int>(blockDim.x)) {
      const int h = i / pairs;
      const int d = i % pairs * 2;
      const float* const own = outputs + static_cast<int64_t>(first + h) * stride * head_dim + d;
      float x = 0;
      float y = 0;
#pragma unroll 8
      for (int s = 0; s < splits; ++s) {
        const float2 part =
            __ldcg(reinterpret_cast<const float2*>(own + static_cast<int64_t>(s) * head_dim));
        const float weight = weights[h * splits + s];
        x += weight * part.x;
        y += weight * part.y;
      }
      *reinterpret_cast<float2*>(out + static_cast<int64_t>(first + h) * head_dim + d) =
          make_float2(x / totals[h], y / totals[h]);
    }
  }
}

struct DecodeBlock {
  int row;        // of the step
  int local_row;  // of the launch
  int split;
  int splits;  // of this row
  int kv_head;
  int first_head;
  int head_count;
  int first_position;
  int positions;      // of this split
  int old_positions;  // of which so many are older than this step

  __device__ DecodeBlock(const StepView& step, const KvView& cache, int heads, int first_row) {
    const int group = heads / cache.kv_heads;
    const int chunks = (group + kHeadsPerBlock - 1) / kHeadsPerBlock;
    split = static_cast<int>(blockIdx.x);
    kv_head = static_cast<int>(blockIdx.y) / chunks;
    const int chunk = static_cast<int>(blockIdx.y) % chunks;
    first_head = kv_head * group + chunk * kHeadsPerBlock;
    head_count = min(kHeadsPerBlock, group - chunk * kHeadsPerBlock);
    local_row = static_cast<int>(blockIdx.z);
    row = step.decode_rows[first_row + local_row];
    const int length = step.kv_position[row] + 1;
    splits = (length + kSplitTokens - 1) / kSplitTokens;
    first_position = split * kSplitTokens;
    positions = min(kSplitTokens, length - first_position);
    old_positions = min(positions, step.old_positions[row] - first_position);
  }
};

// Element offsets of the split's positions of one kv head into keys and values.
__device__ inline void FillOffsets(const StepView& step, const KvView& cache,
                                   const DecodeBlock& block, int64_t* offsets) {
  const int32_t* table =
      step.tables + static_cast<int64_t>(step.table_index[block.row]) * step.table_stride;
  for (int i = static_cast<int>(threadIdx.x); i < block.positions; i += kThreads) {
    const int position = block.first_position + i;
    const int64_t id = table[position / cache.block_tokens];
    offsets[i] = ((id * cache.kv_heads + block.kv_head) * cache.block_tokens +
                  position % cache.block_tokens) *
                 cache.head_dim;
  }
}

// The same for q8_0 caches: bytes to the integers (Q8ValueOffset).
__device__ inline void FillQ8Offsets(const StepView& step, const KvView& cache,
                                     const DecodeBlock& block, int64_t* offsets) {
  const int32_t* table =
      step.tables + static_cast<int64_t>(step.table_index[block.row]) * step.table_stride;
  for (int i = static_cast<int>(threadIdx.x); i < block.positions; i += kThreads) {
    const int position = block.first_position + i;
    offsets[i] = Q8ValueOffset(cache, table[position / cache.block_tokens], block.kv_head,
                               position % cache.block_tokens);
  }
}

// After the parts of this block's heads are written: the last block of the row adds them up.
__device__ inline void Combine(const KvView& cache, const AttentionArguments& a,
                               const DecodeBlock& block, int splits_bound, float* weights,
                               int capacity) {
  const PartsView parts(a, static_cast<int>(gridDim.z), splits_bound, cache.head_dim);
  int32_t* counter = a.counters + block.local_row * static_cast<int>(gridDim.y) + blockIdx.y;
  if (!ArriveLast(counter, block.splits)) return;
  const int64_t head =
      (static_cast<int64_t>(block.local_row) * a.heads + block.first_head) * splits_bound;
  CombineHeads(
      parts.outputs + head * cache.head_dim, parts.states + head, block.head_count, splits_bound,
      block.splits, cache.head_dim, weights, capacity,
      a.out + (static_cast<int64_t>(block.row) * a.heads + block.first_head) * cache.head_dim);
}

// A warp's state to shared memory, as MergeWarps reads it: kHeadsPerBlock outputs of kHeadDim, as
// many maxima, as many sums.
template <int kHeadDim>
__device__ __forceinline__ void StoreState(const SoftmaxState<kHeadDim>& state, float* out) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      out[(lane / 4 + j / 2 * 8) * kHeadDim + n * 8 + lane % 4 * 2 + j % 2] = state.out[n][j];
    }
  }
  if (lane % 4 == 0) {
    for (int h = 0; h < 2; ++h) {
      out[kHeadsPerBlock * kHeadDim + lane / 4 + h * 8] = state.max[h];
      out[kHeadsPerBlock * (kHeadDim + 1) + lane / 4 + h * 8] = state.sum[h];
    }
  }
}

// Adds up the warps' states, kWarpBytes apart, in order, into the split's part or, alone, into the
// result.
template <int kHeadDim, int kWarpBytes>
__device__ __forceinline__ void MergeWarps(const KvView& cache, const AttentionArguments& a,
                                           const DecodeBlock& block, int splits_bound,
                                           const char* states) {
  const PartsView parts(a, static_cast<int>(gridDim.z), splits_bound, cache.head_dim);
  for (int i = static_cast<int>(threadIdx.x); i < block.head_count * cache.head_dim;
       i += kThreads) {
    const int h = i / cache.head_dim;
    const int d = i % cache.head_dim;
    float max = -INFINITY;
    for (int w = 0; w < kWarps; ++w) {
      const auto* state =
          reinterpret_cast<const float*>(states + static_cast<size_t>(w) * kWarpBytes);
      max = fmaxf(max, state[kHeadsPerBlock * kHeadDim + h]);
    }
    float value = 0;
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) {
      const auto* state =
          reinterpret_cast<const float*>(states + static_cast<size_t>(w) * kWarpBytes);
      const float factor = exp2f(state[kHeadsPerBlock * kHeadDim + h] - max);
      value += factor * state[h * kHeadDim + d];
      sum += factor * state[kHeadsPerBlock * (kHeadDim + 1) + h];
    }
    if (block.splits == 1) {
      a.out[(static_cast<int64_t>(block.row) * a.heads + block.first_head + h) * cache.head_dim +
            d] = value / sum;
      continue;
    }
    const int64_t part =
        (static_cast<int64_t>(block.local_row) * a.heads + block.first_head + h) * splits_bound +
        block.split;
    parts.outputs[part * cache.head_dim + d] = value;
    if (d == 0) parts.states[part] = make_float2(max, sum);
  }
}

}  // namespace layercake::kernels::cuda
