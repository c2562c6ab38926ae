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
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // for all writes that the barrier has shown this thread
    is_last = atomicAdd(counter, 1) == count - 1 ? 1 : 0;
    if (is_last != 0) *counter = 0;
    __threadfence();
  }
  __syncthreads();
  return is_last != 0;
}

__device__ __forceinline__ void Scale(float2& value, float by) {
  value.x *= by;
  value.y *= by;
}
__device__ __forceinline__ void Scale(float4& value, float by) {
  value.x *= by;
  value.y *= by;
  value.z *= by;
  value.w *= by;
}
__device__ __forceinline__ void AddScaled(float2& sum, float by, const float2& value) {
  sum.x += by * value.x;
  sum.y += by * value.y;
}
__device__ __forceinline__ void AddScaled(float4& sum, float by, const float4& value) {
  sum.x += by * value.x;
  sum.y += by * value.y;
  sum.z += by * value.z;
  sum.w += by * value.w;
}

// The results of `heads` heads from their parts, in ascending order of splits: outputs and states
// of head h begin at h * stride splits, out at h * head_dim. The whole block takes part, a thread
// with a Vector of dimensions at a time; it asks for several parts and their states at once.
template <typename Vector>
__device__ inline void CombineHeads(const float* outputs, const float2* states, int heads,
                                    int stride, int splits, int head_dim, float* out) {
  constexpr int kTogether = 8;
  constexpr int kWidth = static_cast<int>(sizeof(Vector) / sizeof(float));
  const int vectors = head_dim / kWidth;
  for (int i = static_cast<int>(threadIdx.x); i < heads * vectors; i += kThreads) {
    const int64_t h = i / vectors;
    const int d = i % vectors * kWidth;
    const float* const own = outputs + h * stride * head_dim + d;
    float max = -INFINITY;
    float sum = 0;
    Vector value = {};
    for (int first = 0; first < splits; first += kTogether) {
      Vector parts[kTogether];
      float2 part_states[kTogether];
      float new_max = max;
#pragma unroll
      for (int s = 0; s < kTogether; ++s) {
        part_states[s] = make_float2(-INFINITY, 0);
        if (first + s >= splits) continue;
        part_states[s] = __ldcg(states + h * stride + first + s);
        parts[s] = __ldcg(
            reinterpret_cast<const Vector*>(own + static_cast<int64_t>(first + s) * head_dim));
      }
#pragma unroll
      for (int s = 0; s < kTogether; ++s) new_max = fmaxf(new_max, part_states[s].x);
      const float factor = exp2f(max - new_max);
      max = new_max;
      sum *= factor;
      Scale(value, factor);
#pragma unroll
      for (int s = 0; s < kTogether; ++s) {
        if (first + s >= splits) continue;
        const float weight = exp2f(part_states[s].x - max);
        sum += weight * part_states[s].y;
        AddScaled(value, weight, parts[s]);
      }
    }
    Vector result = {};
    AddScaled(result, 1 / sum, value);
    *reinterpret_cast<Vector*>(out + h * head_dim + d) = result;
  }
}

// A load that stays where it stands: the compiler would move it behind the branch that another
// load is waited for in.
__device__ __forceinline__ int32_t LoadNow(const int32_t* from) {
  int32_t to;
  asm volatile("ld.global.s32 %0, [%1];" : "=r"(to) : "l"(from));
  return to;
}

// What a block of the grid (kv heads' groups of query heads, splits, rows) takes. Blocks of all kv
// heads stand together: what they read lies side by side in the cache.
struct DecodeBlock {
  int row;        // of the step
  int sequence;   // its table
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
    split = static_cast<int>(blockIdx.y);
    kv_head = static_cast<int>(blockIdx.x) / chunks;
    const int chunk = static_cast<int>(blockIdx.x) % chunks;
    first_head = kv_head * group + chunk * kHeadsPerBlock;
    head_count = min(kHeadsPerBlock, group - chunk * kHeadsPerBlock);
    local_row = static_cast<int>(blockIdx.z);
    row = step.decode_rows[first_row + local_row];
    sequence = LoadNow(step.table_index + row);
    const int length = step.kv_position[row] + 1;
    splits = (length + kSplitTokens - 1) / kSplitTokens;
    first_position = split * kSplitTokens;
    positions = min(kSplitTokens, length - first_position);
    old_positions = min(positions, step.old_positions[row] - first_position);
  }
};

__device__ inline const int32_t* TableOf(const StepView& step, const DecodeBlock& block) {
  return step.tables + static_cast<int64_t>(block.sequence) * step.table_stride;
}

// From the first key (or value), in elements: where the block's kv head has a position of the row.
__device__ inline int64_t HeadOffset(const KvView& cache, const DecodeBlock& block,
                                     const int32_t* table, int position) {
  const int64_t id = table[position / cache.block_tokens];
  return ((id * cache.kv_heads + block.kv_head) * cache.block_tokens +
          position % cache.block_tokens) *
         cache.head_dim;
}

// The same for all positions of the split.
__device__ inline void FillOffsets(const StepView& step, const KvView& cache,
                                   const DecodeBlock& block, int64_t* offsets) {
  const int32_t* table = TableOf(step, block);
  for (int i = static_cast<int>(threadIdx.x); i < block.positions; i += kThreads) {
    offsets[i] = HeadOffset(cache, block, table, block.first_position + i);
  }
}

// The same for q8_0 caches: bytes to the integers (Q8ValueOffset).
__device__ inline void FillQ8Offsets(const StepView& step, const KvView& cache,
                                     const DecodeBlock& block, int64_t* offsets) {
  const int32_t* table = TableOf(step, block);
  for (int i = static_cast<int>(threadIdx.x); i < block.positions; i += kThreads) {
    const int position = block.first_position + i;
    offsets[i] = Q8ValueOffset(cache, table[position / cache.block_tokens], block.kv_head,
                               position % cache.block_tokens);
  }
}

// After the parts of this block's heads are written: the last block of the row adds them up.
// head_dim is even.
__device__ inline void Combine(const KvView& cache, const AttentionArguments& a,
                               const DecodeBlock& block, int splits_bound) {
  const PartsView parts(a, static_cast<int>(gridDim.z), splits_bound, cache.head_dim);
  int32_t* counter = a.counters + block.local_row * static_cast<int>(gridDim.x) + blockIdx.x;
  if (!ArriveLast(counter, block.splits)) return;
  const int64_t head =
      (static_cast<int64_t>(block.local_row) * a.heads + block.first_head) * splits_bound;
  const float* outputs = parts.outputs + head * cache.head_dim;
  float* out =
      a.out + (static_cast<int64_t>(block.row) * a.heads + block.first_head) * cache.head_dim;
  if (cache.head_dim % 4 == 0) {
    CombineHeads<float4>(outputs, parts.states + head, block.head_count, splits_bound, block.splits,
                         cache.head_dim, out);
  } else {
    CombineHeads<float2>(outputs, parts.states + head, block.head_count, splits_bound, block.splits,
                         cache.head_dim, out);
  }
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
