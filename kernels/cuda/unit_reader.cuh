// Weights out of units (unit_layout.h), value for value as the CPU's DequantizeRow gives them: the
// same products and sums, rounded in the same places.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/unit_format.h"
#include "kernels/cuda/unit_layout.h"

namespace layercake::kernels::cuda {

__device__ __forceinline__ float HalfBits(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// The 16 bytes at most that a row has in one header plane.
struct HeaderBytes {
  uint32_t word[4];

  __device__ __forceinline__ int Byte(int i) const {
    return static_cast<int>((word[i / 4] >> (8 * (i % 4))) & 255u);
  }
  __device__ __forceinline__ float Half(int i) const {
    return HalfBits((word[i / 2] >> (16 * (i % 2))) & 0xffffu);
  }
};

template <int kBytes>
__device__ __forceinline__ HeaderBytes LoadHeader(const uint8_t* address) {
  HeaderBytes bytes = {};
  if constexpr (kBytes == 16) {
    const uint4 value = *reinterpret_cast<const uint4*>(address);
    bytes = {{value.x, value.y, value.z, value.w}};
  } else if constexpr (kBytes == 2) {
    bytes.word[0] = *reinterpret_cast<const uint16_t*>(address);
  } else {
    static_assert(kBytes % 4 == 0);
#pragma unroll
    for (int i = 0; i < kBytes / 4; ++i) {
      bytes.word[i] = reinterpret_cast<const uint32_t*>(address)[i];
    }
  }
  return bytes;
}

// weight = scale * (multiplier * integer) (+ minimum) for 16 columns of a row.
struct GroupScale {
  float scale;
  float minimum;
  int multiplier;
};

// One row's part of a unit's header planes.
template <WeightType kType>
class RowHeader {
 public:
  static constexpr bool kHasMinimum = kType == WeightType::kQ4_1 || kType == WeightType::kQ5_1 ||
                                      kType == WeightType::kQ4_K || kType == WeightType::kQ5_K ||
                                      kType == WeightType::kQ2_K;
  static constexpr bool kHasMultiplier =
      kType == WeightType::kQ6_K || kType == WeightType::kQ2_K || kType == WeightType::kQ3_K;

  __device__ __forceinline__ RowHeader(const uint8_t* unit, int row) {
    constexpr int kFirst = UnitFormatOf(kType).header[0];
    constexpr int kFirstBytes = UnitFormatOf(kType).header_row_bytes[0];
    constexpr int kSecond = UnitFormatOf(kType).header[1];
    constexpr int kSecondBytes = UnitFormatOf(kType).header_row_bytes[1];
    first_ = LoadHeader<kFirstBytes>(unit + kFirst + row * kFirstBytes);
    second_ = LoadHeader<kSecondBytes>(unit + kSecond + row * kSecondBytes);
  }

  // Columns [32 j + 16 half, +16).
  __device__ __forceinline__ GroupScale Group(int j, int half) const {
    if constexpr (kType == WeightType::kQ4_K || kType == WeightType::kQ5_K) return KGroup(j);
    if constexpr (kType == WeightType::kQ6_K) {
      return {second_.Half(0), 0, static_cast<int8_t>(first_.Byte(2 * j + half))};
    }
    if constexpr (kType == WeightType::kQ2_K) {
      const int byte = first_.Byte(2 * j + half);
      return {second_.Half(0), -__fmul_rn(second_.Half(1), static_cast<float>(byte >> 4)),
              byte & 15};
    }
    if constexpr (kType == WeightType::kQ3_K) {
      const int i = 2 * j + half;
      const int low = i < 8 ? first_.Byte(i) & 15 : first_.Byte(i - 8) >> 4;
      const int high = (first_.Byte(8 + i % 4) >> (2 * (i / 4))) & 3;
      return {second_.Half(0), 0, (low | (high << 4)) - 32};
    }
    if constexpr (kType == WeightType::kIQ4_XS) {
      const int low = (first_.Byte(4 + j / 2) >> (4 * (j % 2))) & 15;
      const int high = static_cast<int>(first_.word[0] >> (16 + 2 * j)) & 3;
      return {__fmul_rn(first_.Half(0), static_cast<float>((low | (high << 4)) - 32)), 0, 1};
    }
    if constexpr (kType == WeightType::kMXFP4) {
      // 2^(e - 128), a denormal float for e < 2.
      const int exponent = first_.Byte(j);
      const uint32_t bits =
          exponent < 2 ? 0x00200000u << exponent : static_cast<uint32_t>(exponent - 1) << 23;
      return {__uint_as_float(bits), 0, 1};
    }
    if constexpr (kHasMinimum) return {first_.Half(j), second_.Half(j), 1};
    return {first_.Half(j), 0, 1};
  }

 private:
  __device__ __forceinline__ GroupScale KGroup(int j) const {
    const int at = 4 + j % 4;  // of the twelve bytes of 6-bit scales and minima, behind d and dmin
    int scale = first_.Byte(at) & 63;
    int minimum = first_.Byte(at + 4) & 63;
    if (j >= 4) {
      const int last = first_.Byte(at + 8);
      minimum = (last >> 4) | ((first_.Byte(at + 4) >> 6) << 4);
      scale = (last & 15) | ((first_.Byte(at) >> 6) << 4);
    }
    return {__fmul_rn(first_.Half(0), static_cast<float>(scale)),
            -__fmul_rn(first_.Half(1), static_cast<float>(minimum)), 1};
  }

  HeaderBytes first_, second_;
};

// Words of a unit's planes that hold register (j, lane, i); see unit_layout.h. Absent planes: 0.
struct PlaneWords {
  uint32_t main, pair, bit;
};

// The planes of a unit as one lane of a warp reads them, 16 bytes at a time.
template <WeightType kType>
struct LanePlanes {
  static constexpr UnitFormat kFormat = UnitFormatOf(kType);
  static constexpr int kMain = kFormat.main == MainPlane::kNone   ? 0
                               : kFormat.main == MainPlane::kByte ? 8
                                                                  : 4;
  static constexpr int kPair = kFormat.pair >= 0 ? 2 : 0;
  static constexpr int kBit = kFormat.bit >= 0 ? 1 : 0;
  uint32_t main[kMain + 1][4];
  uint32_t pair[kPair + 1][4];
  uint32_t bit[kBit + 1][4];

  static __device__ void Load(const uint8_t* at, uint32_t (&words)[4]) {
    const uint4 value = __ldg(reinterpret_cast<const uint4*>(at));
    words[0] = value.x;
    words[1] = value.y;
    words[2] = value.z;
    words[3] = value.w;
  }

  __device__ LanePlanes(const uint8_t* unit, int lane) {
    const uint8_t* at = unit + 16 * lane;
#pragma unroll
    for (int i = 0; i < kMain; ++i) Load(at + 512 * i, main[i]);
#pragma unroll
    for (int i = 0; i < kPair; ++i) Load(at + kFormat.pair + 512 * i, pair[i]);
#pragma unroll
    for (int i = 0; i < kBit; ++i) Load(at + kFormat.bit, bit[i]);
  }

  __device__ PlaneWords Words(int j, int i) const {
    PlaneWords words = {};
    if constexpr (kMain > 0) words.main = main[j % kMain][i];
    if constexpr (kPair > 0) words.pair = pair[j % 4 / 2][i];
    if constexpr (kBit > 0) words.bit = bit[0][i];
    return words;
  }
};

__device__ __forceinline__ uint32_t SelectBytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
  return result;
}

// Four entries of a table of sixteen signed bytes; nibble b of `codes` says which is byte b.
__device__ __forceinline__ uint32_t LookUp(const uint32_t (&table)[4], uint32_t codes) {
  const uint32_t low = SelectBytes(table[0], table[1], codes & 0x7777u);
  const uint32_t high = SelectBytes(table[2], table[3], codes & 0x7777u);
  return SelectBytes(low, high, 0x3210u + ((codes >> 1) & 0x4444u));
}

// The integer of a weight is its byte of PackedCodes less this.
template <WeightType kType>
__device__ constexpr int CodeBias() {
  switch (kType) {
    case WeightType::kQ4_0:
      return 8;
    case WeightType::kQ5_0:
      return 16;
    case WeightType::kQ6_K:
      return 32;
    case WeightType::kQ3_K:
      return 4;
    case WeightType::kQ8_0:
    case WeightType::kIQ4_NL:
    case WeightType::kIQ4_XS:
    case WeightType::kMXFP4:
      return 128;
    default:
      return 0;
  }
}

// The codes of the four weights of register (j, lane, i), a byte each.
template <WeightType kType>
__device__ __forceinline__ uint32_t PackedCodes(const PlaneWords& words, int j) {
  constexpr UnitFormat kFormat = UnitFormatOf(kType);
  if constexpr (kFormat.main == MainPlane::kByte) return words.main ^ 0x80808080u;
  if constexpr (kFormat.main == MainPlane::kTable) {
    // e2m1 doubled, as the CPU has it: 0 1 2 3 | 4 6 8 12 | 0 -1 -2 -3 | -4 -6 -8 -12; and
    // -127 -104 -83 -65 | -49 -35 -22 -10 | 1 13 25 38 | 53 69 89 113.
    constexpr bool kIsMx = kType == WeightType::kMXFP4;
    constexpr uint32_t kTable[4] = {
        kIsMx ? 0x03020100u : 0xbfad9881u, kIsMx ? 0x0c080604u : 0xf6eaddcfu,
        kIsMx ? 0xfdfeff00u : 0x26190d01u, kIsMx ? 0xf4f8fafcu : 0x71594535u};
    return LookUp(kTable, (words.main >> (16 * (j / 4))) & 0xffffu) ^ 0x80808080u;
  }
  uint32_t codes = 0;
  if constexpr (kFormat.main == MainPlane::kNibble) {
    codes = (words.main >> (4 * (j / 4))) & 0x0f0f0f0fu;
  }
  if constexpr (kFormat.pair >= 0) {
    codes = (codes << 2) | ((words.pair >> (2 * ((j & 1) + 2 * (j / 4)))) & 0x03030303u);
  }
  if constexpr (kFormat.bit >= 0) codes = (codes << 1) | ((words.bit >> j) & 0x01010101u);
  return codes ^ (0x01010101u * static_cast<uint32_t>(kFormat.inverted));
}

// Weight b of the four: byte b behind the exponent of 2^23, less that and the bias, is its integer.
template <WeightType kType>
__device__ __forceinline__ float WeightValue(const GroupScale& group, uint32_t codes, int b) {
  constexpr float kZero = 8388608.0f + static_cast<float>(CodeBias<kType>());
  const uint32_t bits = SelectBytes(codes, 0x4b000000u, 0x7550u + static_cast<uint32_t>(b));
  float integer = __uint_as_float(bits) - kZero;
  if constexpr (RowHeader<kType>::kHasMultiplier) {
    // Exact; a zero becomes +0, as of integers.
    integer = __fadd_rn(__fmul_rn(integer, static_cast<float>(group.multiplier)), 0.0f);
  }
  const float product = __fmul_rn(group.scale, integer);
  return RowHeader<kType>::kHasMinimum ? __fadd_rn(product, group.minimum) : product;
}

// Calls f<type>() for a quantised type; what f returns, or `otherwise` for float types.
template <typename Function, typename Result>
Result ForQuantisedType(WeightType type, Result otherwise, Function&& f) {
  switch (type) {
    case WeightType::kQ4_0:
      return f.template operator()<WeightType::kQ4_0>();
    case WeightType::kQ4_1:
      return f.template operator()<WeightType::kQ4_1>();
    case WeightType::kQ5_0:
      return f.template operator()<WeightType::kQ5_0>();
    case WeightType::kQ5_1:
      return f.template operator()<WeightType::kQ5_1>();
    case WeightType::kQ8_0:
      return f.template operator()<WeightType::kQ8_0>();
    case WeightType::kQ2_K:
      return f.template operator()<WeightType::kQ2_K>();
    case WeightType::kQ3_K:
      return f.template operator()<WeightType::kQ3_K>();
    case WeightType::kQ4_K:
      return f.template operator()<WeightType::kQ4_K>();
    case WeightType::kQ5_K:
      return f.template operator()<WeightType::kQ5_K>();
    case WeightType::kQ6_K:
      return f.template operator()<WeightType::kQ6_K>();
    case WeightType::kIQ4_NL:
      return f.template operator()<WeightType::kIQ4_NL>();
    case WeightType::kIQ4_XS:
      return f.template operator()<WeightType::kIQ4_XS>();
    case WeightType::kMXFP4:
      return f.template operator()<WeightType::kMXFP4>();
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      break;
  }
  return otherwise;
}

}  // namespace layercake::kernels::cuda
