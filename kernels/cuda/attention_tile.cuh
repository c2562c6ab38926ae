// Tensor core and copy instructions of the attention kernels, in the shapes they use.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/mma.cuh"

namespace layercake::kernels::cuda {

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// LoadMatrices of matrices that lie transposed.
__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// c (16 x 8, float32) += a (16 x 16) * b (16 x 8), halves.
__device__ __forceinline__ void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes from global to shared memory; zeros when not `present`.
__device__ __forceinline__ void CopyAsync(uint32_t to, const void* from, bool present) {
  const int bytes = present ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ uint32_t PackHalves(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ float2 UnpackHalves(uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

__device__ __forceinline__ float QuadMax(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}
__device__ __forceinline__ float QuadSum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// 2^x; 0 for -inf and results below 2^-126.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The running softmax of one warp: 16 query rows, of which a lane has rows lane / 4 and that + 8.
// `max` is in units of log2.
template <int kHeadDim>
struct SoftmaxState {
  float out[kHeadDim / 8][4];
  float max[2];
  float sum[2];

  __device__ void Clear() {
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) out[i][j] = 0;
    }
    max[0] = max[1] = -INFINITY;
    sum[0] = sum[1] = 0;
  }

  // Takes kPositions scores (masked ones are -inf), `scale` units of log2 each, which become
  // probabilities, and adds what they weigh of `values`: kPositions rows of `pitch` bytes in shared
  // memory. scale > 0.
  template <int kPositions>
  __device__ void Add(float (&scores)[kPositions / 8][4], float scale, uint32_t values, int pitch) {
    Weigh<kPositions>(scores, scale);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < kPositions / 16; ++k) {
      const uint32_t a[4] = {PackHalves(scores[2 * k][0], scores[2 * k][1]),
                             PackHalves(scores[2 * k][2], scores[2 * k][3]),
                             PackHalves(scores[2 * k + 1][0], scores[2 * k + 1][1]),
                             PackHalves(scores[2 * k + 1][2], scores[2 * k + 1][3])};
      const uint32_t row = values + static_cast<uint32_t>((k * 16 + lane % 16) * pitch) +
                           static_cast<uint32_t>(lane / 16 * 16);
#pragma unroll
      for (int n = 0; n < kHeadDim / 16; ++n) {
        uint32_t b[4];
        LoadMatricesTransposed(b, row + static_cast<uint32_t>(n * 32));
        MultiplyAdd(out[2 * n], a, b[0], b[1]);
        MultiplyAdd(out[2 * n + 1], a, b[2], b[3]);
      }
    }
  }

  // The first half of Add: scores become probabilities, the state so far shrinks to fit them.
  template <int kPositions>
  __device__ __forceinline__ void Weigh(float (&scores)[kPositions / 8][4], float scale) {
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float tile_max = -INFINITY;
#pragma unroll
      for (int n = 0; n < kPositions / 8; ++n) {
        tile_max = fmaxf(tile_max, fmaxf(scores[n][2 * h], scores[n][2 * h + 1]));
      }
      const float new_max = fmaxf(max[h], QuadMax(tile_max) * scale);
      const float base = new_max == -INFINITY ? 0.0f : new_max;
      factor[h] = Exp2(max[h] - base);
      max[h] = new_max;
      float tile_sum = 0;
#pragma unroll
      for (int n = 0; n < kPositions / 8; ++n) {
#pragma unroll
        for (int j = 2 * h; j < 2 * h + 2; ++j) {
          scores[n][j] = Exp2(fmaf(scores[n][j], scale, -base));
          tile_sum += scores[n][j];
        }
      }
      sum[h] = sum[h] * factor[h] + tile_sum;
    }
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) out[i][j] *= factor[j / 2];
    }
  }

  // After the last Add: a lane has added up its own columns only until here.
  __device__ void Finish() {
    sum[0] = QuadSum(sum[0]);
    sum[1] = QuadSum(sum[1]);
  }
};

// scores (16 query rows x kPositions) += q * keys: q 16 rows and keys kPositions rows of `pitch`
// bytes in shared memory.
template <int kHeadDim, int kPositions>
__device__ __forceinline__ void AddScores(float (&scores)[kPositions / 8][4], uint32_t q,
                                          uint32_t keys, int pitch) {
  const int lane = threadIdx.x % 32;
  const uint32_t q_row =
      q + static_cast<uint32_t>(lane % 16 * pitch) + static_cast<uint32_t>(lane / 16 * 16);
  const uint32_t key_row = keys + static_cast<uint32_t>((lane % 8 + lane / 16 * 8) * pitch) +
                           static_cast<uint32_t>(lane / 8 % 2 * 16);
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
    uint32_t a[4];
    LoadMatrices(a, q_row + static_cast<uint32_t>(k * 32));
#pragma unroll
    for (int n = 0; n < kPositions / 16; ++n) {
      uint32_t b[4];
      LoadMatrices(b, key_row + static_cast<uint32_t>(n * 16 * pitch + k * 32));
      MultiplyAdd(scores[2 * n], a, b[0], b[1]);
      MultiplyAdd(scores[2 * n + 1], a, b[2], b[3]);
    }
  }
}

}  // namespace layercake::kernels::cuda
