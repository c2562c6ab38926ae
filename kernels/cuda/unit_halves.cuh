// The weights of a unit (unit_layout.h) as the left operand of f16 tensor-core instructions: a warp
// takes a unit, and each lane makes its fragments in registers.
//
// A weight is q * s (+ m), s and m being the format's float32 values times the matrix's power of
// two (UnitWeightScale) rounded to f16; the result is rounded once more. A code q in the lowest
// bits of a half is q * 2^-24, an f16 subnormal, so scales are 2^24 times larger here.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/matmul_units.h"
#include "kernels/cuda/unit_reader.cuh"

namespace layercake::kernels::cuda {

constexpr float kCodeScale = 16777216.0f;  // 2^24: a code's bits are that part of it

// What a lane reads of a unit's header planes for its LaneScales: of rows g and g + 8, g = lane
// / 4.
template <WeightType kType>
struct LaneHeader {
  HeaderBytes first[2], second[2];

  __device__ __forceinline__ void Load(const std::byte* unit, int lane) {
    constexpr UnitFormat kFormat = UnitFormatOf(kType);
    const auto* const bytes = reinterpret_cast<const uint8_t*>(unit);
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
      const int row = lane / 4 + 8 * lower;
      first[lower] = LoadHeader<kFormat.header_row_bytes[0]>(bytes + kFormat.header[0] +
                                                             kFormat.header_row_bytes[0] * row);
      if constexpr (kFormat.header_row_bytes[1] > 0) {
        second[lower] = LoadHeader<kFormat.header_row_bytes[1]>(bytes + kFormat.header[1] +
                                                                kFormat.header_row_bytes[1] * row);
      }
    }
  }
};

// Half t + 4 upper of eight, t in [0, 4).
__device__ __forceinline__ float GroupHalf(const HeaderBytes& header, int t, int upper) {
  const uint32_t word = upper == 0 ? (t < 2 ? header.word[0] : header.word[1])
                                   : (t < 2 ? header.word[2] : header.word[3]);
  return HalfBits(word >> (16 * (t % 2)) & 0xffffu);
}

// Scale and minimum of group t + 4 upper in a row of Q4_K and Q5_K, without d and dmin.
struct KPair {
  float scale, minimum;

  __device__ __forceinline__ KPair(const HeaderBytes& header, int t, int upper) {
    const uint32_t scales = header.word[1] >> (8 * t);  // on top two bits of group t + 4
    const uint32_t minima = header.word[2] >> (8 * t);
    const uint32_t rest = header.word[3] >> (8 * t);
    scale = static_cast<float>(upper == 0 ? scales & 63u : (rest & 15u) | ((scales >> 2) & 48u));
    minimum =
        static_cast<float>(upper == 0 ? minima & 63u : ((rest >> 4) & 15u) | ((minima >> 2) & 48u));
  }
};

// Scale of group 2 (t + 4 upper) + half of 16 columns in a row of Q6_K or Q3_K, without d.
template <WeightType kType>
__device__ __forceinline__ float HalfGroupScale(const HeaderBytes& header, int t, int upper,
                                                int half) {
  if constexpr (kType == WeightType::kQ6_K) {
    const uint32_t word = upper == 0 ? (t < 2 ? header.word[0] : header.word[1])
                                     : (t < 2 ? header.word[2] : header.word[3]);
    return static_cast<float>(static_cast<int8_t>(word >> (16 * (t % 2) + 8 * half) & 255u));
  } else {
    static_assert(kType == WeightType::kQ3_K);
    const int place = 16 * (t % 2) + 8 * half;
    const uint32_t low = (t < 2 ? header.word[0] : header.word[1]) >> (place + 4 * upper) & 15u;
    const uint32_t high = header.word[2] >> (place + 2 * (t / 2 + 2 * upper)) & 3u;
    return static_cast<float>(static_cast<int>(low | high << 4) - 32);
  }
}

// The scales of rows g and g + 8 of a unit, g = lane / 4. Each of a row's four lanes makes those of
// groups t and t + 4 (t = lane % 4) of 32 columns, and lends them to the others.
template <WeightType kType>
class LaneScales {
 public:
  // Of a group: (scale, what code 0 stands for), or the scales of its two halves of 16 columns.
  static constexpr bool kOfHalves = kType == WeightType::kQ6_K || kType == WeightType::kQ3_K;
  // Upper groups' codes stand four bits higher, their scales are a sixteenth (CodeHalves).
  static constexpr bool kUpperTimes16 = kType == WeightType::kQ4_K || kType == WeightType::kQ4_1;

  // `weight_scale`: UnitWeightScale of the matrix.
  __device__ __forceinline__ void Make(const LaneHeader<kType>& header, float weight_scale,
                                       int lane) {
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        own_[lower][upper] =
            PairOf(header.first[lower], header.second[lower], weight_scale, lane % 4, upper);
      }
    }
  }

  // Of group jj + 4 upper in row g + 8 lower. Every lane of the warp calls it together.
  __device__ __forceinline__ __half2 Of(int jj, int upper, int lower, int lane) const {
    const uint32_t bits = __shfl_sync(~0u, own_[lower][upper], (lane & ~3) | jj);
    return *reinterpret_cast<const __half2*>(&bits);
  }

 private:
  static __device__ __forceinline__ uint32_t PairOf(const HeaderBytes& first,
                                                    const HeaderBytes& second, float weight_scale,
                                                    int t, int upper) {
    const float code_scale =
        weight_scale * (kUpperTimes16 && upper == 1 ? kCodeScale / 16 : kCodeScale);
    // The same power of two times scales and times what code 0 stands for: both round alike.
    const float zero_scale = weight_scale * -CodeBias<kType>();
    if constexpr (kType == WeightType::kQ4_K || kType == WeightType::kQ5_K) {
      const KPair k(first, t, upper);
      return Pair(first.Half(0) * code_scale * k.scale, first.Half(1) * -weight_scale * k.minimum);
    } else if constexpr (kOfHalves) {
      const float d = second.Half(0) * code_scale;
      return Pair(d * HalfGroupScale<kType>(first, t, upper, 0),
                  d * HalfGroupScale<kType>(first, t, upper, 1));
    } else if constexpr (kType == WeightType::kQ4_1 || kType == WeightType::kQ5_1) {
      return Pair(GroupHalf(first, t, upper) * code_scale,
                  GroupHalf(second, t, upper) * weight_scale);
    } else if constexpr (kType == WeightType::kIQ4_XS) {
      const int j = t + 4 * upper;
      const uint32_t low = first.word[1] >> (4 * j) & 15u;
      const uint32_t high = first.word[0] >> (16 + 2 * j) & 3u;
      const float d = first.Half(0) * static_cast<float>(static_cast<int>(low | high << 4) - 32);
      return Pair(d * code_scale, d * zero_scale);
    } else {
      static_assert(kType == WeightType::kQ8_0 || kType == WeightType::kQ4_0 ||
                    kType == WeightType::kQ5_0 || kType == WeightType::kIQ4_NL);
      const float d = GroupHalf(first, t, upper);
      return Pair(d * code_scale, d * zero_scale);
    }
  }
  static __device__ __forceinline__ uint32_t Pair(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }

  uint32_t own_[2][2];
};

// The four words of each plane that a lane needs for groups jj and jj + 4 of a unit.
template <WeightType kType>
class LaneWords {
 public:
  __device__ __forceinline__ void Load(const std::byte* unit, int jj, int lane) {
    const auto load = [&](int plane, int step) {
      return *reinterpret_cast<const uint4*>(unit + plane + 512 * step + 16 * lane);
    };
    if constexpr (kFormat.main != MainPlane::kNone) main_[0] = load(0, jj);
    if constexpr (kFormat.main == MainPlane::kByte) main_[1] = load(0, jj + 4);
    if constexpr (kFormat.pair >= 0) pair_ = load(kFormat.pair, jj / 2);
    if constexpr (kFormat.bit >= 0) bit_ = load(kFormat.bit, 0);
  }
  // Those of register (jj + 4 upper, lane, i).
  __device__ __forceinline__ PlaneWords Of(int upper, int i) const {
    PlaneWords words = {};
    if constexpr (kFormat.main != MainPlane::kNone)
      words.main = Word(main_[kFormat.main == MainPlane::kByte ? upper : 0], i);
    if constexpr (kFormat.pair >= 0) words.pair = Word(pair_, i);
    if constexpr (kFormat.bit >= 0) words.bit = Word(bit_, i);
    return words;
  }

 private:
  static constexpr UnitFormat kFormat = UnitFormatOf(kType);

  static __device__ __forceinline__ uint32_t Word(const uint4& words, int i) {
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
  }

  uint4 main_[kFormat.main == MainPlane::kByte ? 2 : 1];
  uint4 pair_, bit_;
};

// The codes of four weights of a row as two pairs of halves: of bytes 0 and 2 of register
// (jj + 4 upper, lane, i), and of bytes 1 and 3. As numbers: codes / kCodeScale (times 16, see
// kUpperTimes16).
template <WeightType kType>
__device__ __forceinline__ void CodeHalves(const PlaneWords& words, int jj, int upper,
                                           uint32_t (&pairs)[2]) {
  if constexpr (LaneScales<kType>::kUpperTimes16) {
    // Nibbles stay where they are.
    const uint32_t mask = upper == 0 ? 0x000f000fu : 0x00f000f0u;
    pairs[0] = words.main & mask;
    pairs[1] = (words.main >> 8) & mask;
  } else {
    const uint32_t codes = PackedCodes<kType>(words, jj + 4 * upper);
    pairs[0] = SelectBytes(codes, 0, 0x4240u);
    pairs[1] = SelectBytes(codes, 0, 0x4341u);
  }
}

// The fragments (wgmma.cuh) of group jj + 4 upper: eight registers, four for each half of 16
// columns. Column 4t + b of a half stands at place 2t + b / 2 for even b, 8 + 2t + b / 2 for odd b.
template <WeightType kType>
__device__ __forceinline__ void MakeFragments(const LaneWords<kType>& words,
                                              const LaneScales<kType>& scales, int jj, int upper,
                                              int lane, uint32_t (&a)[8]) {
#pragma unroll
  for (int lower = 0; lower < 2; ++lower) {
    const __half2 pair = scales.Of(jj, upper, lower, lane);
    // Exact but for subnormals.
    const __half2 zeros = __hmul2(pair, __float2half2_rn(-CodeBias<kType>() / kCodeScale));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool high = LaneScales<kType>::kOfHalves && half == 1;
      const __half2 factor = high ? __high2half2(pair) : __low2half2(pair);
      const __half2 addend = !LaneScales<kType>::kOfHalves ? __high2half2(pair)
                             : high                        ? __high2half2(zeros)
                                                           : __low2half2(zeros);
      uint32_t codes[2];
      CodeHalves<kType>(words.Of(upper, 2 * half + lower), jj, upper, codes);
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const __half2 weights =
            __hfma2(*reinterpret_cast<const __half2*>(&codes[odd]), factor, addend);
        a[4 * half + 2 * odd + lower] = *reinterpret_cast<const uint32_t*>(&weights);
      }
    }
  }
}

}  // namespace layercake::kernels::cuda
