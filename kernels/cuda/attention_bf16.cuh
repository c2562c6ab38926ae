// Tiles of bf16 and q8_0 caches for the tensor cores, which multiply both as bf16: its range is
// that of the cache, and it holds every int8. Queries and probabilities, which are float32, go in
// as the sum of two bf16 (16 bits of each), so nothing of a cache is rounded.
//
// A cache type `Kv` has, for tiles of kTokens positions of heads of at most kHeadDim:
//   Kv::Tile<kHeadDim, kTokens>  kLoadBytes: keys and values as they come from the cache;
//                                kMadeBytes: what Make makes of them, 0: they are used as they come
//   Kv::Issue                    asks for a tile: positions from `first` on, `count` of them there
//   Kv::Make                     once they have come
//   Kv::AddScores, Kv::AddValues
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/step_view.h"

namespace layercake::kernels::cuda {

// c (16 x 8, float32) += a (16 x 16) * b (16 x 8), bf16.
__device__ __forceinline__ void MultiplyAddBf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// (x, y) = high + low, pairs of bf16 with x in the lower half.
__device__ __forceinline__ void SplitPair(float x, float y, uint32_t& high, uint32_t& low) {
  const __nv_bfloat162 rounded = __floats2bfloat162_rn(x, y);
  high = *reinterpret_cast<const uint32_t*>(&rounded);
  const __nv_bfloat162 rest = __floats2bfloat162_rn(x - __uint_as_float(high << 16),
                                                    y - __uint_as_float(high & 0xffff0000u));
  low = *reinterpret_cast<const uint32_t*>(&rest);
}

// scores (16 query rows x kPositions) += (q_high + q_low) * keys, over the columns [16 * kFirst,
// 16 * kEnd) of a head. All three: rows of `pitch` bytes in shared memory.
template <int kFirst, int kEnd, int kPositions>
__device__ __forceinline__ void AddSplitScores(float (&scores)[kPositions / 8][4], uint32_t q_high,
                                               uint32_t q_low, uint32_t keys, int pitch) {
  const int lane = threadIdx.x % 32;
  const uint32_t q_row =
      static_cast<uint32_t>(lane % 16 * pitch) + static_cast<uint32_t>(lane / 16 * 16);
  const uint32_t key_row = keys + static_cast<uint32_t>((lane % 8 + lane / 16 * 8) * pitch) +
                           static_cast<uint32_t>(lane / 8 % 2 * 16);
#pragma unroll
  for (int k = kFirst; k < kEnd; ++k) {
    uint32_t high[4];
    uint32_t low[4];
    LoadMatrices(high, q_high + q_row + static_cast<uint32_t>(k * 32));
    LoadMatrices(low, q_low + q_row + static_cast<uint32_t>(k * 32));
#pragma unroll
    for (int n = 0; n < kPositions / 16; ++n) {
      uint32_t b[4];
      LoadMatrices(b, key_row + static_cast<uint32_t>(n * 16 * pitch + k * 32));
      MultiplyAddBf16(scores[2 * n], high, b[0], b[1]);
      MultiplyAddBf16(scores[2 * n + 1], high, b[2], b[3]);
      MultiplyAddBf16(scores[2 * n], low, b[0], b[1]);
      MultiplyAddBf16(scores[2 * n + 1], low, b[2], b[3]);
    }
  }
}

// out[2 n], out[2 n + 1] += (high + low) * values for n in [kFirst, kEnd): 16 columns each of 16
// positions whose rows begin at `values`.
template <int kFirst, int kEnd, int kOut>
__device__ __forceinline__ void AddSplitValues(float (&out)[kOut][4], const uint32_t (&high)[4],
                                               const uint32_t (&low)[4], uint32_t values,
                                               int pitch) {
  const int lane = threadIdx.x % 32;
  const uint32_t row =
      values + static_cast<uint32_t>(lane % 16 * pitch) + static_cast<uint32_t>(lane / 16 * 16);
#pragma unroll
  for (int n = kFirst; n < kEnd; ++n) {
    uint32_t b[4];
    LoadMatricesTransposed(b, row + static_cast<uint32_t>(n * 32));
    MultiplyAddBf16(out[2 * n], high, b[0], b[1]);
    MultiplyAddBf16(out[2 * n + 1], high, b[2], b[3]);
    MultiplyAddBf16(out[2 * n], low, b[0], b[1]);
    MultiplyAddBf16(out[2 * n + 1], low, b[2], b[3]);
  }
}

struct Bf16Kv {
  template <int kHeadDim, int kTokens>
  struct Tile {
    static constexpr int kPitch = kHeadDim * 2 + 16;
    static constexpr int kValues = kTokens * kPitch;  // where the values begin
    static constexpr int kLoadBytes = 2 * kTokens * kPitch;
    static constexpr int kMadeBytes = 0;
  };

  // offsets: of the tile's positions, in elements.
  template <int kHeadDim, int kTokens, int kCount>
  static __device__ __forceinline__ void Issue(const KvView& cache, const int64_t* offsets, int,
                                               int count, uint32_t to, int thread) {
    using Tile = Bf16Kv::Tile<kHeadDim, kTokens>;
    constexpr int kChunks = kHeadDim / 8;
#pragma unroll 4
    for (int i = thread; i < kTokens * kChunks; i += kCount) {
      const int token = i / kChunks;
      const int chunk = i % kChunks;
      const bool present = token < count && chunk * 8 < cache.head_dim;
      const int64_t offset = present ? offsets[token] + chunk * 8 : 0;
      const uint32_t place = to + static_cast<uint32_t>(token * Tile::kPitch + chunk * 16);
      CopyAsync(place, static_cast<const __nv_bfloat16*>(cache.keys) + offset, present);
      CopyAsync(place + Tile::kValues, static_cast<const __nv_bfloat16*>(cache.values) + offset,
                present);
    }
  }

  template <int kHeadDim, int kTokens>
  static __device__ __forceinline__ void AddScores(float (&scores)[kTokens / 8][4], uint32_t q_high,
                                                   uint32_t q_low, const char* tile) {
    AddSplitScores<0, kHeadDim / 16, kTokens>(scores, q_high, q_low, SharedAddress(tile),
                                              Tile<kHeadDim, kTokens>::kPitch);
  }

  template <int kHeadDim, int kTokens>
  static __device__ __forceinline__ void AddValues(const float (&weights)[kTokens / 8][4],
                                                   const char* tile,
                                                   float (&out)[kHeadDim / 8][4]) {
    using Tile = Bf16Kv::Tile<kHeadDim, kTokens>;
    const uint32_t values = SharedAddress(tile) + Tile::kValues;
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
      uint32_t high[4];
      uint32_t low[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&w)[4] = weights[2 * k + i / 2];
        SplitPair(w[i % 2 * 2], w[i % 2 * 2 + 1], high[i], low[i]);
      }
      AddSplitValues<0, kHeadDim / 16>(
          out, high, low, values + static_cast<uint32_t>(k * 16 * Tile::kPitch), Tile::kPitch);
    }
  }
};

struct Q8Kv {
  template <int kHeadDim, int kTokens>
  struct Tile {
    static_assert(kHeadDim % kQ8Group == 0 && kTokens % kQ8Run == 0);
    static constexpr int kGroups = kHeadDim / kQ8Group;
    // As loaded: integers of keys, of values; f16 scales of keys, of values, kQ8Run positions of
    // the cache's own number of groups at a time.
    static constexpr int kIntBytes = kTokens * kHeadDim;
    static constexpr int kRunBytes = kQ8Run * kGroups * 2;
    static constexpr int kScaleBytes = kTokens / kQ8Run * kRunBytes;
    static constexpr int kLoadBytes = 2 * (kIntBytes + kScaleBytes);
    // As made: the integers as bf16, then float scales: (2, kTokens, kGroups).
    static constexpr int kPitch = kHeadDim * 2 + 16;
    static constexpr int kValues = kTokens * kPitch;
    static constexpr int kScales = 2 * kTokens * kPitch;
    static constexpr int kMadeBytes = kScales + 2 * kTokens * kGroups * 4;
  };

  // offsets: of the tile's positions, in bytes (Q8ValueOffset); `first` is a multiple of kQ8Run.
  template <int kHeadDim, int kTokens, int kCount>
  static __device__ __forceinline__ void Issue(const KvView& cache, const int64_t* offsets,
                                               int first, int count, uint32_t to, int thread) {
    using Tile = Q8Kv::Tile<kHeadDim, kTokens>;
    constexpr int kChunks = kHeadDim / 16;
    const auto* keys = static_cast<const char*>(cache.keys);
    const auto* values = static_cast<const char*>(cache.values);
    const int groups = Q8Groups(cache.head_dim);
#pragma unroll 4
    for (int i = thread; i < kTokens * kChunks; i += kCount) {
      const int token = i / kChunks;
      const int chunk = i % kChunks;
      const bool present = token < count && chunk * 16 < groups * kQ8Group;
      const int64_t offset = present ? offsets[token] + chunk * 16 : 0;
      const uint32_t place = to + static_cast<uint32_t>(token * kHeadDim + chunk * 16);
      CopyAsync(place, keys + offset, present);
      CopyAsync(place + Tile::kIntBytes, values + offset, present);
    }
    const int chunks = kQ8Run * 2 * groups / 16;  // of the scales of one run
    for (int i = thread; i < kTokens / kQ8Run * chunks; i += kCount) {
      const int run = i / chunks * kQ8Run;
      const int chunk = i % chunks;
      const bool present = run < count;
      const int64_t offset =
          present ? offsets[run] + Q8ScaleDistance(cache, (first + run) % cache.block_tokens) +
                        chunk * 16
                  : 0;
      const uint32_t place = to + 2 * Tile::kIntBytes +
                             static_cast<uint32_t>(run / kQ8Run * Tile::kRunBytes + chunk * 16);
      CopyAsync(place, keys + offset, present);
      CopyAsync(place + Tile::kScaleBytes, values + offset, present);
    }
  }

  static __device__ __forceinline__ uint32_t ToBf16(uint32_t ints, uint32_t select) {
    const uint32_t pair = __byte_perm(ints, 0, select);
    const uint32_t from = MinuendOfInts(pair);
    const uint32_t less = SubtrahendOfInts(pair);
    const __nv_bfloat162 result = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&from),
                                          *reinterpret_cast<const __nv_bfloat162*>(&less));
    return *reinterpret_cast<const uint32_t*>(&result);
  }

  // Behind `count` positions scales become 0: what lies there is none of this sequence's.
  template <int kHeadDim, int kTokens, int kCount>
  static __device__ __forceinline__ void Make(const KvView& cache, const char* loaded, int count,
                                              char* made, int thread) {
    using Tile = Q8Kv::Tile<kHeadDim, kTokens>;
    constexpr int kChunks = kHeadDim / 16;
#pragma unroll 2
    for (int i = thread; i < 2 * kTokens * kChunks; i += kCount) {
      const uint4 ints = reinterpret_cast<const uint4*>(loaded)[i];
      auto* to = reinterpret_cast<uint4*>(made + i / kChunks * Tile::kPitch + i % kChunks * 32);
      to[0] = make_uint4(ToBf16(ints.x, 0x4140), ToBf16(ints.x, 0x4342), ToBf16(ints.y, 0x4140),
                         ToBf16(ints.y, 0x4342));
      to[1] = make_uint4(ToBf16(ints.z, 0x4140), ToBf16(ints.z, 0x4342), ToBf16(ints.w, 0x4140),
                         ToBf16(ints.w, 0x4342));
    }
    const int groups = Q8Groups(cache.head_dim);
    const char* scales = loaded + 2 * Tile::kIntBytes;
    auto* to = reinterpret_cast<float*>(made + Tile::kScales);
    for (int i = thread; i < 2 * kTokens * Tile::kGroups; i += kCount) {
      const int which = i / (kTokens * Tile::kGroups);
      const int token = i / Tile::kGroups % kTokens;
      const int group = i % Tile::kGroups;
      const auto* run = reinterpret_cast<const __half*>(scales + which * Tile::kScaleBytes +
                                                        token / kQ8Run * Tile::kRunBytes);
      to[i] = token < count && group < groups ? __half2float(run[token % kQ8Run * groups + group])
                                              : 0.0f;
    }
  }

  template <int kHeadDim, int kTokens>
  static __device__ __forceinline__ void AddScores(float (&scores)[kTokens / 8][4], uint32_t q_high,
                                                   uint32_t q_low, const char* made) {
    AddGroupScores<kHeadDim, kTokens, 0>(scores, q_high, q_low, made);
  }

  template <int kHeadDim, int kTokens>
  static __device__ __forceinline__ void AddValues(const float (&weights)[kTokens / 8][4],
                                                   const char* made,
                                                   float (&out)[kHeadDim / 8][4]) {
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
      AddGroupValues<kHeadDim, kTokens, 0>(weights, k, made, out);
    }
  }

 private:
  // A group's part of a score: the sum over integers, times the scale of position and group.
  template <int kHeadDim, int kTokens, int kGroup>
  static __device__ __forceinline__ void AddGroupScores(float (&scores)[kTokens / 8][4],
                                                        uint32_t q_high, uint32_t q_low,
                                                        const char* made) {
    using Tile = Q8Kv::Tile<kHeadDim, kTokens>;
    float sums[kTokens / 8][4] = {};
    AddSplitScores<2 * kGroup, 2 * kGroup + 2, kTokens>(sums, q_high, q_low, SharedAddress(made),
                                                        Tile::kPitch);
    const auto* scales = reinterpret_cast<const float*>(made + Tile::kScales) + kGroup;
    const int column = static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        scores[n][j] += sums[n][j] * scales[(n * 8 + column + j % 2) * Tile::kGroups];
      }
    }
    if constexpr (kGroup + 1 < Tile::kGroups) {
      AddGroupScores<kHeadDim, kTokens, kGroup + 1>(scores, q_high, q_low, made);
    }
  }

  // 16 positions of a group: each weight times its position's scale, times the integers.
  template <int kHeadDim, int kTokens, int kGroup>
  static __device__ __forceinline__ void AddGroupValues(const float (&weights)[kTokens / 8][4],
                                                        int k, const char* made,
                                                        float (&out)[kHeadDim / 8][4]) {
    using Tile = Q8Kv::Tile<kHeadDim, kTokens>;
    const auto* scales =
        reinterpret_cast<const float*>(made + Tile::kScales) +
        (kTokens + k * 16 + static_cast<int>(threadIdx.x % 4) * 2) * Tile::kGroups + kGroup;
    uint32_t high[4];
    uint32_t low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&w)[4] = weights[2 * k + i / 2];
      const float* scale = scales + i / 2 * 8 * Tile::kGroups;
      SplitPair(w[i % 2 * 2] * scale[0], w[i % 2 * 2 + 1] * scale[Tile::kGroups], high[i], low[i]);
    }
    AddSplitValues<2 * kGroup, 2 * kGroup + 2>(
        out, high, low,
        SharedAddress(made) + Tile::kValues + static_cast<uint32_t>(k * 16 * Tile::kPitch),
        Tile::kPitch);
    if constexpr (kGroup + 1 < Tile::kGroups) {
      AddGroupValues<kHeadDim, kTokens, kGroup + 1>(weights, k, made, out);
    }
  }
};

}  // namespace layercake::kernels::cuda
