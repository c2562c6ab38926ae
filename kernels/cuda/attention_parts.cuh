// How the blocks of one row's splits become one result.
#pragma once

#include "kernels/cuda/attention.h"

namespace layercake::kernels::cuda {

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

// out (head_dim) of one head from its parts, in ascending order; the whole block takes part.
// `weights`: shared memory for `splits` floats.
__device__ inline void CombineHead(const float* outputs, const float2* states, int splits,
                                   int head_dim, float* weights, float* out) {
  __shared__ float total;
  __syncthreads();  // the last head's weights are used up
  if (threadIdx.x < 32) {
    float max = -INFINITY;
    for (int s = static_cast<int>(threadIdx.x); s < splits; s += 32) {
      max = fmaxf(max, __ldcg(&states[s].x));
    }
    for (int mask = 16; mask > 0; mask /= 2) {
      max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, mask));
    }
    float sum = 0;
    for (int s = static_cast<int>(threadIdx.x); s < splits; s += 32) {
      const float2 state = __ldcg(&states[s]);
      const float weight = exp2f(state.x - max);
      weights[s] = weight;
      sum += weight * state.y;
    }
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    if (threadIdx.x == 0) total = sum;
  }
  __syncthreads();
  for (int d = static_cast<int>(threadIdx.x); d < head_dim; d += static_cast<int>(blockDim.x)) {
    float value = 0;
#pragma unroll 8
    for (int s = 0; s < splits; ++s) {
      value += weights[s] * __ldcg(outputs + static_cast<int64_t>(s) * head_dim + d);
    }
    out[d] = value / total;
  }
}

}  // namespace layercake::kernels::cuda
