// How a warp reads a column block of an operand and writes it in each form, for the kernels of
// operand_kernel.cu.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/fixed_point.h"
#include "kernels/cuda/operand_kernel.h"

namespace layercake::kernels::cuda {

struct OperandArguments {
  OperandSource source;
  OperandView out;
  int64_t k;
  OperandForms forms;
  bool vectors;  // 16-byte reads are aligned and within k
};

// A warp makes one column block of 256. A lane owns eight of its columns, in two runs of four.
// Where blocks or tiles are made, lane = 8 jj + 4 upper + t has columns 32 j + 4 t and
// 32 j + 16 + 4 t, j = jj + 4 upper.
struct LanePlace {
  int j;
  int t;
  __device__ explicit LanePlace(int lane) : j(lane / 8 + (lane & 4)), t(lane & 3) {}
  __device__ int64_t Column(int64_t block, int i) const {
    return block * kUnitColumns + 32 * j + 16 * (i / 4) + 4 * t + i % 4;
  }
};

// Where rows are made as they are, the warp's runs lie side by side: whole lines of memory at each
// read and write.
struct FlatPlace {
  int lane;
  __device__ explicit FlatPlace(int lane_of_warp) : lane(lane_of_warp) {}
  __device__ int64_t Column(int64_t block, int i) const {
    return block * kUnitColumns + 128 * (i / 4) + 4 * lane + i % 4;
  }
};

// The forms that are made: kForms, known when compiled, or those of the arguments where that is
// kAnyForms. Code for one form alone is a third as long.
constexpr OperandForms kAnyForms = 0;
constexpr OperandForms kBlockForms = kFixedForm | kTileForm;
template <OperandForms kForms>
constexpr bool kFlat = kForms != kAnyForms && (kForms & kBlockForms) == 0;
template <OperandForms kForms>
using PlaceOf = std::conditional_t<kFlat<kForms>, FlatPlace, LanePlace>;
template <OperandForms kForms>
__device__ __forceinline__ OperandForms FormsOf(const OperandArguments& arguments) {
  return kForms == kAnyForms ? arguments.forms : kForms;
}

template <typename Place>
__device__ __forceinline__ void Load8(const float* row, int64_t k, int64_t block,
                                      const Place& place, bool vectors, float (&v)[8]) {
  if (vectors) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t column = place.Column(block, 4 * half);
      float4 four = make_float4(0, 0, 0, 0);
      if (column < k) four = *reinterpret_cast<const float4*>(row + column);
      v[4 * half] = four.x;
      v[4 * half + 1] = four.y;
      v[4 * half + 2] = four.z;
      v[4 * half + 3] = four.w;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int64_t column = place.Column(block, i);
    v[i] = column < k ? row[column] : 0.0f;
  }
}

__device__ __forceinline__ uint32_t LargestBits(const float (&v)[8]) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = max(largest, __float_as_uint(v[i]) & 0x7fffffffu);
  return largest;
}

__device__ __forceinline__ uint32_t PackBytes(const int* x) {
  return (static_cast<uint32_t>(x[0]) & 255u) | (static_cast<uint32_t>(x[1]) & 255u) << 8 |
         (static_cast<uint32_t>(x[2]) & 255u) << 16 | static_cast<uint32_t>(x[3]) << 24;
}

// Two sums / 64 as pairs of halves: high parts, low parts (exact: a sum has at most 21 bits).
struct SumPair {
  uint32_t high;
  uint32_t low;
};
__device__ __forceinline__ SumPair SplitSums(int first, int second) {
  const float a = static_cast<float>(first) * 0.015625f;
  const float b = static_cast<float>(second) * 0.015625f;
  const __half2 high = __floats2half2_rn(a, b);
  const __half2 low = __floats2half2_rn(a - __low2float(high), b - __high2float(high));
  return {*reinterpret_cast<const uint32_t*>(&high), *reinterpret_cast<const uint32_t*>(&low)};
}

__device__ __forceinline__ void WriteFixed(const float (&v)[8], int lane, const LanePlace& place,
                                           FixedBlock* out) {
  const uint32_t largest = __reduce_max_sync(~0u, LargestBits(v));
  const FixedScale scale = FixedScaleOf(largest, __uint_as_float(largest));
  int high[8];
  int low[8];
  int sum[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    // Where the inverse is 0 a value may be an infinity, and 0 times it a NaN.
    const int x = scale.inverse == 0.0f ? 0 : FixedValue(v[i], scale.inverse);
    high[i] = FixedHigh(x);
    low[i] = FixedLow(x);
    sum[i / 4] += x;
  }
  // The lane 4 away has the other group of the pair: this one writes one part of both groups.
  const bool writes_low = (lane & 4) != 0;
  const uint32_t own[2][2] = {{PackBytes(high), PackBytes(high + 4)},
                              {PackBytes(low), PackBytes(low + 4)}};
  uint32_t other[2];
  other[0] = __shfl_xor_sync(~0u, writes_low ? own[0][0] : own[1][0], 4);
  other[1] = __shfl_xor_sync(~0u, writes_low ? own[0][1] : own[1][1], 4);
  const uint4 line = writes_low ? make_uint4(other[0], other[1], own[1][0], own[1][1])
                                : make_uint4(own[0][0], own[0][1], other[0], other[1]);
  *reinterpret_cast<uint4*>(out->quants + lane * 16) = line;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] += __shfl_xor_sync(~0u, sum[half], 1);
    sum[half] += __shfl_xor_sync(~0u, sum[half], 2);
  }
  const int j = place.j;
  if (place.t == 0) {
    const SumPair both = SplitSums(sum[0] + sum[1], 0);
    uint16_t* to = out->sums32 + (j / 2) * 4 + (j & 1);
    to[0] = static_cast<uint16_t>(both.high);
    to[2] = static_cast<uint16_t>(both.low);
  } else if (place.t == 1) {
    const SumPair halves = SplitSums(sum[0], sum[1]);
    auto* to = reinterpret_cast<uint32_t*>(out->sums16 + (j & 3) * 8 + 2 * (j / 4));
    to[0] = halves.high;
    to[2] = halves.low;
  }
  if (lane == 0) out->scale = scale.scale;
}

// Four values as 16-bit floats.
__device__ __forceinline__ uint2 HalvesOf(const float* v, float factor) {
  const __half2 a = __floats2half2_rn(v[0] * factor, v[1] * factor);
  const __half2 b = __floats2half2_rn(v[2] * factor, v[3] * factor);
  return make_uint2(*reinterpret_cast<const uint32_t*>(&a), *reinterpret_cast<const uint32_t*>(&b));
}
__device__ __forceinline__ uint2 Bf16Of(float v0, float v1, float v2, float v3) {
  const __nv_bfloat162 a = __floats2bfloat162_rn(v0, v1);
  const __nv_bfloat162 b = __floats2bfloat162_rn(v2, v3);
  return make_uint2(*reinterpret_cast<const uint32_t*>(&a), *reinterpret_cast<const uint32_t*>(&b));
}
// What rounding to `high` lost, rounded.
__device__ __forceinline__ uint2 Bf16Rest(const float* v, uint2 high) {
  return Bf16Of(v[0] - __uint_as_float(high.x << 16), v[1] - __uint_as_float(high.x & 0xffff0000u),
                v[2] - __uint_as_float(high.y << 16), v[3] - __uint_as_float(high.y & 0xffff0000u));
}

// Of four 16-bit values the first `count`; all of them, in one aligned write, where `whole`.
__device__ __forceinline__ void StoreFour(uint2 four, bool whole, int64_t count, uint16_t* to) {
  if (whole) {
    *reinterpret_cast<uint2*>(to) = four;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < count) to[i] = static_cast<uint16_t>((i < 2 ? four.x : four.y) >> (16 * (i % 2)));
  }
}

template <OperandForms kForms, typename Place>
__device__ __forceinline__ void WriteFlat(const OperandArguments& arguments, int64_t row,
                                          int64_t block, const Place& place, const float (&v)[8],
                                          float to_half) {
  const OperandForms forms = FormsOf<kForms>(arguments);
  const OperandView& out = arguments.out;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t column = place.Column(block, 4 * half);
    if (column >= arguments.k) continue;
    const int64_t at = row * arguments.k + column;
    const int64_t count = arguments.k - column;
    const float* const run = v + 4 * half;
    if ((forms & kFloat32Form) != 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < count) out.values[at + i] = run[i];
      }
    }
    if ((forms & kFloat16Form) != 0) {
      StoreFour(HalvesOf(run, to_half), arguments.vectors, count, out.half + at);
    }
    if ((forms & (kBfloat16Form | kBfloat16HighForm)) != 0) {
      const uint2 high = Bf16Of(run[0], run[1], run[2], run[3]);
      StoreFour(high, arguments.vectors, count, out.bf16_high + at);
      if ((forms & kBfloat16Form) != 0) {
        StoreFour(Bf16Rest(run, high), arguments.vectors, count, out.bf16_low + at);
      }
    }
  }
}

// Four bytes at a time: of each half of 16 columns, columns 4t and 4t + 2, then 4t + 1 and 4t + 3.
__device__ __forceinline__ void WriteTiles(const OperandView& out, int64_t row, int64_t block,
                                           const LanePlace& place, const float (&v)[8],
                                           float to_half) {
  uint16_t* const group =
      out.tiles + TilePieceIndex(out.tile_groups, block, place.j % 4, row / kTileTokens);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int chunk = 4 * (place.j / 4) + 2 * half;
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const __half2 pair =
          __floats2half2_rn(v[4 * half + odd] * to_half, v[4 * half + odd + 2] * to_half);
      *reinterpret_cast<__half2*>(group + (chunk + odd) * 64 + row % kTileTokens * 8 +
                                  2 * place.t) = pair;
    }
  }
}

template <OperandForms kForms>
__device__ __forceinline__ void WriteBlock(const OperandArguments& arguments, int64_t row,
                                           int64_t block, int lane, const PlaceOf<kForms>& place,
                                           const float (&v)[8], float to_half) {
  const OperandForms forms = FormsOf<kForms>(arguments);
  if constexpr (!kFlat<kForms>) {
    if ((forms & kFixedForm) != 0) {
      WriteFixed(v, lane, place, arguments.out.fixed + FixedBlockIndex(arguments.k, row, block));
    }
    if ((forms & kTileForm) != 0) {
      WriteTiles(arguments.out, row, block, place, v, to_half);
    }
  }
  if ((forms & ~kBlockForms) != 0) {
    WriteFlat<kForms>(arguments, row, block, place, v, to_half);
  }
}

}  // namespace layercake::kernels::cuda
