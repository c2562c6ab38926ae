// How the blocks of one row's splits become one result.
#pragma once

#include "kernels/cuda/attention.h"

namespace layercake::kernels::cuda {

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

}  // namespace layercake::kernels::cuda
