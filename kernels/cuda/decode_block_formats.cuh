// UnitProduct of the types with blocks of 32: a float scale (and minimum) per group of 32.
#pragma once

#include "kernels/cuda/decode_formats.cuh"

namespace layercake::kernels::cuda {

// How the weights of a block type become bytes, and the constant factor that this asks for.
template <WeightType kType>
struct BlockCodes;

template <>
struct BlockCodes<WeightType::kQ8_0> {
  static constexpr bool kSigned = true;
  static constexpr float kFactor = 1.0f;
  static __device__ __forceinline__ Registers Load(const UnitPair& at, int jj) {
    Registers a;
    Words(a.low, LoadShared16(PlaneWord(at, 0, jj)));
    Words(a.high, LoadShared16(PlaneWord(at, 0, jj + 4)));
    return a;
  }
};

// 16 (q - 8), signed; with minima 16 q, unsigned.
template <>
struct BlockCodes<WeightType::kQ4_0> {
  static constexpr bool kSigned = true;
  static constexpr float kFactor = 0.0625f;
  static __device__ __forceinline__ Registers Load(const UnitPair& at, int jj) {
    return TopNibbles(at, jj);
  }
};
template <>
struct BlockCodes<WeightType::kQ4_1> : BlockCodes<WeightType::kQ4_0> {
  static constexpr bool kSigned = false;
};

// 8 (q - 16), signed; with minima 8 q, unsigned.
template <>
struct BlockCodes<WeightType::kQ5_0> {
  static constexpr bool kSigned = true;
  static constexpr float kFactor = 0.125f;
  static __device__ __forceinline__ Registers Load(const UnitPair& at, int jj) {
    Registers a = TopNibbles(at, jj);
    uint32_t bits[4];
    Words(bits, LoadShared16(PlaneWord(at, UnitFormatOf(WeightType::kQ5_0).bit, 0)));
    AddBits(a, bits, jj, 3);
    return a;
  }
};
template <>
struct BlockCodes<WeightType::kQ5_1> : BlockCodes<WeightType::kQ5_0> {
  static constexpr bool kSigned = false;
};

template <>
struct BlockCodes<WeightType::kIQ4_NL> {
  static constexpr bool kSigned = true;
  static constexpr float kFactor = 1.0f;
  static __device__ __forceinline__ Registers Load(const UnitPair& at, int jj) {
    return TableCodes(at, jj, Iq4Table());
  }
};
template <>
struct BlockCodes<WeightType::kMXFP4> {
  static constexpr bool kSigned = true;
  static constexpr float kFactor = 1.0f;
  static __device__ __forceinline__ Registers Load(const UnitPair& at, int jj) {
    return TableCodes(at, jj, Mxfp4Table());
  }
};

// The scales of one row's eight groups.
template <WeightType kType>
struct BlockScales {
  uint32_t words[4];

  __device__ __forceinline__ BlockScales(const UnitPair& at, int row) {
    Words(words,
          LoadShared16(at.unit + static_cast<uint32_t>(UnitFormatOf(kType).header[0] + row * 16)));
  }
  __device__ __forceinline__ float At(int j) const {
    return (j & 1) != 0 ? HighHalf(words[j / 2]) : LowHalf(words[j / 2]);
  }
};
template <>
struct BlockScales<WeightType::kMXFP4> {
  uint2 words;

  __device__ __forceinline__ BlockScales(const UnitPair& at, int row)
      : words(LoadShared8(at.unit + static_cast<uint32_t>(
                                        UnitFormatOf(WeightType::kMXFP4).header[0] + row * 8))) {}
  // 2^(e - 128), a denormal float for e < 2.
  __device__ __forceinline__ float At(int j) const {
    const uint32_t e = ((j < 4 ? words.x : words.y) >> (8 * (j & 3))) & 255u;
    return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  }
};

// Each group's integer sum 256 high + low, below 2^31 (32 * 248 * 128 * 257 < 2^28), is one float.
template <WeightType kType, bool kMinima>
struct BlockProduct {
  template <int kTiles>
  static __device__ __forceinline__ void Add(const UnitPair& at, const OperandPlace<kTiles>& place,
                                             float (&sums)[kTiles][2]) {
    using Codes = BlockCodes<kType>;
    const int g = at.lane >> 2;
    const BlockScales<kType> scales(at, g);
    const BlockScales<kType> scales8(at, g + 8);
    float total[kTiles][2];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) total[n][0] = total[n][1] = 0;
    const auto add = [&](int n, const int(&part)[4], int j) {
      total[n][0] = fmaf(static_cast<float>(part[0] * 256 + part[1]), scales.At(j), total[n][0]);
      total[n][1] = fmaf(static_cast<float>(part[2] * 256 + part[3]), scales8.At(j), total[n][1]);
    };
    const auto multiply = [](int(&part)[4], const uint32_t(&a)[4], uint32_t b0, uint32_t b1) {
      if constexpr (Codes::kSigned) {
        MultiplyS8(part, a, b0, b1);
      } else {
        MultiplyU8(part, a, b0, b1);
      }
    };
#pragma unroll
    for (int jj = 0; jj < 4; ++jj) {
      const Registers a = Codes::Load(at, jj);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint4 b = OperandQuants(at, place, n, jj);
        int part[4];
        multiply(part, a.low, b.x, b.y);
        add(n, part, jj);
        multiply(part, a.high, b.z, b.w);
        add(n, part, jj + 4);
      }
    }
    Finish(at, place, total, sums);
  }

 private:
  template <int kTiles>
  static __device__ __forceinline__ void Finish(const UnitPair& at,
                                                const OperandPlace<kTiles>& place,
                                                const float (&total)[kTiles][2],
                                                float (&sums)[kTiles][2]) {
    constexpr float kFactor = BlockCodes<kType>::kFactor;
    [[maybe_unused]] MinimumSums<kTiles> minimum;
    if constexpr (kMinima) {
      // Minima of groups 2t and 2t + 1, f16 as in the file.
      const auto minima = at.unit + static_cast<uint32_t>(UnitFormatOf(kType).header[1] +
                                                          (at.lane >> 2) * 16 + (at.lane & 3) * 4);
      minimum.Multiply32(at, place, LoadShared4(minima), LoadShared4(minima + 8 * 16));
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float scale = OperandScale(at, place, n);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float value = total[n][r] * kFactor;
        if constexpr (kMinima) value = fmaf(minimum.value[n][r], kHalfMinimumFactor, value);
        sums[n][r] = fmaf(value, scale, sums[n][r]);
      }
    }
  }
};

template <>
struct UnitProduct<WeightType::kQ8_0> : BlockProduct<WeightType::kQ8_0, false> {};
template <>
struct UnitProduct<WeightType::kQ4_0> : BlockProduct<WeightType::kQ4_0, false> {};
template <>
struct UnitProduct<WeightType::kQ5_0> : BlockProduct<WeightType::kQ5_0, false> {};
template <>
struct UnitProduct<WeightType::kIQ4_NL> : BlockProduct<WeightType::kIQ4_NL, false> {};
template <>
struct UnitProduct<WeightType::kMXFP4> : BlockProduct<WeightType::kMXFP4, false> {};
template <>
struct UnitProduct<WeightType::kQ4_1> : BlockProduct<WeightType::kQ4_1, true> {};
template <>
struct UnitProduct<WeightType::kQ5_1> : BlockProduct<WeightType::kQ5_1, true> {};

}  // namespace layercake::kernels::cuda
