// UnitProduct of the types with blocks of 256: integer scales, one float scale per row and unit.
#pragma once

#include "kernels/cuda/decode_formats.cuh"

namespace layercake::kernels::cuda {

template <int kTiles>
struct IntegerSums {
  int value[kTiles][4];

  __device__ __forceinline__ IntegerSums() {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) value[n][i] = 0;
    }
  }
  __device__ __forceinline__ void Add(int n, const int (&part)[4], int scale, int scale8) {
    value[n][0] += part[0] * scale;
    value[n][1] += part[1] * scale;
    value[n][2] += part[2] * scale8;
    value[n][3] += part[3] * scale8;
  }
};

__device__ __forceinline__ int UnsignedByte(uint32_t word, int i) {
  return static_cast<int>((word >> (8 * i)) & 255u);
}

// Low nibbles as q, high nibbles as 16 q, in sums of their own. |sum| <= 4 * 32 * 240 * 128 * 63
// < 2^28.
template <>
struct UnitProduct<WeightType::kQ4_K> {
  template <int kTiles>
  static __device__ __forceinline__ void Add(const UnitPair& at, const OperandPlace<kTiles>& place,
                                             float (&sums)[kTiles][2]) {
    const int g = at.lane >> 2;
    const KHeader header(at.unit + kNibblePlaneBytes + static_cast<uint32_t>(g * 16));
    const KHeader header8(at.unit + kNibblePlaneBytes + static_cast<uint32_t>((g + 8) * 16));
    IntegerSums<kTiles> low;
    IntegerSums<kTiles> high;
#pragma unroll
    for (int jj = 0; jj < 4; ++jj) {
      uint32_t words[4];
      Words(words, LoadShared16(PlaneWord(at, 0, jj)));
      Registers a;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a.low[i] = words[i] & 0x0f0f0f0fu;
        a.high[i] = words[i] & 0xf0f0f0f0u;
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint4 b = OperandQuants(at, place, n, jj);
        int part[4];
        MultiplyU8(part, a.low, b.x, b.y);
        low.Add(n, part, UnsignedByte(header.scale[0], jj), UnsignedByte(header8.scale[0], jj));
        MultiplyU8(part, a.high, b.z, b.w);
        high.Add(n, part, UnsignedByte(header.scale[1], jj), UnsignedByte(header8.scale[1], jj));
      }
    }
    MinimumSums<kTiles> minimum;
    minimum.Multiply32(at, place, header.MinimumPair(at.lane & 3),
                       header8.MinimumPair(at.lane & 3));
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float scale = OperandScale(at, place, n);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int* l = low.value[n] + 2 * r;
        const int* h = high.value[n] + 2 * r;
        // The sums of 16 q are multiples of 16.
        float value =
            Join(l[0] + (h[0] >> 4), l[1] + (h[1] >> 4)) * (r == 0 ? header.d : header8.d);
        value = fmaf(minimum.value[n][r], r == 0 ? header.minimum_factor : header8.minimum_factor,
                     value);
        sums[n][r] = fmaf(value, scale, sums[n][r]);
      }
    }
  }
};

// 8 q as unsigned bytes. |sum| <= 8 * 32 * 248 * 128 * 63 < 2^29.
template <>
struct UnitProduct<WeightType::kQ5_K> {
  template <int kTiles>
  static __device__ __forceinline__ void Add(const UnitPair& at, const OperandPlace<kTiles>& place,
                                             float (&sums)[kTiles][2]) {
    constexpr UnitFormat kFormat = UnitFormatOf(WeightType::kQ5_K);
    const int g = at.lane >> 2;
    const auto headers = at.unit + static_cast<uint32_t>(kFormat.header[0]);
    const KHeader header(headers + static_cast<uint32_t>(g * 16));
    const KHeader header8(headers + static_cast<uint32_t>((g + 8) * 16));
    uint32_t bits[4];
    Words(bits, LoadShared16(PlaneWord(at, kFormat.bit, 0)));
    IntegerSums<kTiles> total;
#pragma unroll
    for (int jj = 0; jj < 4; ++jj) {
      Registers a = TopNibbles(at, jj);
      AddBits(a, bits, jj, 3);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint4 b = OperandQuants(at, place, n, jj);
        int part[4];
        MultiplyU8(part, a.low, b.x, b.y);
        total.Add(n, part, UnsignedByte(header.scale[0], jj), UnsignedByte(header8.scale[0], jj));
        MultiplyU8(part, a.high, b.z, b.w);
        total.Add(n, part, UnsignedByte(header.scale[1], jj), UnsignedByte(header8.scale[1], jj));
      }
    }
    MinimumSums<kTiles> minimum;
    minimum.Multiply32(at, place, header.MinimumPair(at.lane & 3),
                       header8.MinimumPair(at.lane & 3));
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float scale = OperandScale(at, place, n);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int* s = total.value[n] + 2 * r;
        float value = Join(s[0], s[1]) * (0.125f * (r == 0 ? header.d : header8.d));
        value = fmaf(minimum.value[n][r], r == 0 ? header.minimum_factor : header8.minimum_factor,
                     value);
        sums[n][r] = fmaf(value, scale, sums[n][r]);
      }
    }
  }
};

// Integer sums times `factor` d of each row.
template <int kTiles>
__device__ __forceinline__ void AddScaled(const UnitPair& at, const OperandPlace<kTiles>& place,
                                          const IntegerSums<kTiles>& total, float d, float d8,
                                          float (&sums)[kTiles][2]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const float scale = OperandScale(at, place, n);
    const int* s = total.value[n];
    sums[n][0] = fmaf(Join(s[0], s[1]) * d, scale, sums[n][0]);
    sums[n][1] = fmaf(Join(s[2], s[3]) * d8, scale, sums[n][1]);
  }
}

// 4 (q - 32) as signed bytes, groups of 16. |sum| <= 16 * 16 * 128 * 128 * 128 < 2^30.
template <>
struct UnitProduct<WeightType::kQ6_K> {
  template <int kTiles>
  static __device__ __forceinline__ void Add(const UnitPair& at, const OperandPlace<kTiles>& place,
                                             float (&sums)[kTiles][2]) {
    constexpr UnitFormat kFormat = UnitFormatOf(WeightType::kQ6_K);
    const int g = at.lane >> 2;
    const auto scales = at.unit + static_cast<uint32_t>(kFormat.header[0] + g * 16);
    uint32_t scale[4];
    uint32_t scale8[4];
    Words(scale, LoadShared16(scales));
    Words(scale8, LoadShared16(scales + 8 * 16));
    IntegerSums<kTiles> total;
#pragma unroll
    for (int jj = 0; jj < 4; ++jj) {
      uint32_t pairs[4];
      Words(pairs, LoadShared16(PlaneWord(at, kFormat.pair, jj / 2)));
      Registers a = TopNibbles(at, jj);
      AddPairs(a, pairs, jj, 2);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint4 b = OperandQuants(at, place, n, jj);
        // Scale byte 2 j of group j: word j / 2, bytes 2 (j & 1) and the next.
        const int low = jj / 2;
        const int byte = 2 * (jj & 1);
        int part[4];
        MultiplyS8Half(part, a.low[0], a.low[1], b.x);
        total.Add(n, part, SignedByte(scale[low], byte), SignedByte(scale8[low], byte));
        MultiplyS8Half(part, a.low[2], a.low[3], b.y);
        total.Add(n, part, SignedByte(scale[low], byte + 1), SignedByte(scale8[low], byte + 1));
        MultiplyS8Half(part, a.high[0], a.high[1], b.z);
        total.Add(n, part, SignedByte(scale[low + 2], byte), SignedByte(scale8[low + 2], byte));
        MultiplyS8Half(part, a.high[2], a.high[3], b.w);
        total.Add(n, part, SignedByte(scale[low + 2], byte + 1),
                  SignedByte(scale8[low + 2], byte + 1));
      }
    }
    const auto d = at.unit + static_cast<uint32_t>(kFormat.header[1] + g * 2);
    AddScaled(at, place, total, 0.25f * LoadSharedHalf(d), 0.25f * LoadSharedHalf(d + 16), sums);
  }
};

// The 16 scales of Q3_K, minus 32, as signed bytes, from its 12 bytes.
__device__ __forceinline__ void Q3Scales(uint32_t address, uint32_t (&scale)[4]) {
  const uint32_t a = LoadShared4(address);
  const uint32_t b = LoadShared4(address + 4);
  const uint32_t c = LoadShared4(address + 8);
  const uint32_t raw[4] = {(a & 0x0f0f0f0fu) | ((c << 4) & 0x30303030u),
                           (b & 0x0f0f0f0fu) | ((c << 2) & 0x30303030u),
                           ((a >> 4) & 0x0f0f0f0fu) | (c & 0x30303030u),
                           ((b >> 4) & 0x0f0f0f0fu) | ((c >> 2) & 0x30303030u)};
#pragma unroll
  // s - 32 for s in [0, 64): flip bit 5, then spread it over bits 6 and 7.
  for (int i = 0; i < 4; ++i) {
    const uint32_t flipped = raw[i] ^ 0x20202020u;
    const uint32_t sign = flipped & 0x20202020u;
    scale[i] = flipped | (sign << 1) | (sign << 2);
  }
}

// 32 (q - 4) as signed bytes, groups of 16. |sum| <= 16 * 16 * 128 * 128 * 32 < 2^28.
template <>
struct UnitProduct<WeightType::kQ3_K> {
  template <int kTiles>
  static __device__ __forceinline__ void Add(const UnitPair& at, const OperandPlace<kTiles>& place,
                                             float (&sums)[kTiles][2]) {
    constexpr UnitFormat kFormat = UnitFormatOf(WeightType::kQ3_K);
    const int g = at.lane >> 2;
    const auto scales = at.unit + static_cast<uint32_t>(kFormat.header[0] + g * 12);
    uint32_t scale[4];
    uint32_t scale8[4];
    Q3Scales(scales, scale);
    Q3Scales(scales + 8 * 12, scale8);
    uint32_t bits[4];
    Words(bits, LoadShared16(PlaneWord(at, kFormat.bit, 0)));
    IntegerSums<kTiles> total;
#pragma unroll
    for (int jj = 0; jj < 4; ++jj) {
      uint32_t pairs[4];
      Words(pairs, LoadShared16(PlaneWord(at, kFormat.pair, jj / 2)));
      Registers a = {};
      AddPairs(a, pairs, jj, 6);
      AddBits(a, bits, jj, 5);
      const int low = jj / 2;
      const int byte = 2 * (jj & 1);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint4 b = OperandQuants(at, place, n, jj);
        int part[4];
        MultiplyS8Half(part, a.low[0], a.low[1], b.x);
        total.Add(n, part, SignedByte(scale[low], byte), SignedByte(scale8[low], byte));
        MultiplyS8Half(part, a.low[2], a.low[3], b.y);
        total.Add(n, part, SignedByte(scale[low], byte + 1), SignedByte(scale8[low], byte + 1));
        MultiplyS8Half(part, a.high[0], a.high[1], b.z);
        total.Add(n, part, SignedByte(scale[low + 2], byte), SignedByte(scale8[low + 2], byte));
        MultiplyS8Half(part, a.high[2], a.high[3], b.w);
        total.Add(n, part, SignedByte(scale[low + 2], byte + 1),
                  SignedByte(scale8[low + 2], byte + 1));
      }
    }
    const auto d = at.unit + static_cast<uint32_t>(kFormat.header[1] + g * 2);
    AddScaled(at, place, total, 0.03125f * LoadSharedHalf(d), 0.03125f * LoadSharedHalf(d + 16),
              sums);
  }
};

// 64 q as unsigned bytes, groups of 16 with minima. |sum| <= 16 * 16 * 192 * 128 * 15 < 2^27.
template <>
struct UnitProduct<WeightType::kQ2_K> {
  // Minima of groups 2 t (+ 8 with `upper`) and the next as two halves (subnormals).
  static __device__ __forceinline__ uint32_t MinimumPair(const uint32_t (&scale)[4], int t,
                                                         bool upper) {
    const uint32_t word = t < 2 ? scale[upper ? 2 : 0] : scale[upper ? 3 : 1];
    const uint32_t minima = (word >> (16 * (t & 1) + 4)) & 0x0f0fu;
    return (minima & 0x0fu) | (minima & 0x0f00u) << 8;
  }

  template <int kTiles>
  static __device__ __forceinline__ void Add(const UnitPair& at, const OperandPlace<kTiles>& place,
                                             float (&sums)[kTiles][2]) {
    constexpr UnitFormat kFormat = UnitFormatOf(WeightType::kQ2_K);
    const int g = at.lane >> 2;
    const int t = at.lane & 3;
    const auto scales = at.unit + static_cast<uint32_t>(kFormat.header[0] + g * 16);
    uint32_t scale[4];
    uint32_t scale8[4];
    Words(scale, LoadShared16(scales));
    Words(scale8, LoadShared16(scales + 8 * 16));
    IntegerSums<kTiles> total;
#pragma unroll
    for (int jj = 0; jj < 4; ++jj) {
      uint32_t pairs[4];
      Words(pairs, LoadShared16(PlaneWord(at, kFormat.pair, jj / 2)));
      Registers a = {};
      AddPairs(a, pairs, jj, 6);
      const int low = jj / 2;
      const int byte = 2 * (jj & 1);
      const auto nibble = [](uint32_t word, int i) {
        return static_cast<int>((word >> (8 * i)) & 15u);
      };
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint4 b = OperandQuants(at, place, n, jj);
        int part[4];
        MultiplyU8Half(part, a.low[0], a.low[1], b.x);
        total.Add(n, part, nibble(scale[low], byte), nibble(scale8[low], byte));
        MultiplyU8Half(part, a.low[2], a.low[3], b.y);
        total.Add(n, part, nibble(scale[low], byte + 1), nibble(scale8[low], byte + 1));
        MultiplyU8Half(part, a.high[0], a.high[1], b.z);
        total.Add(n, part, nibble(scale[low + 2], byte), nibble(scale8[low + 2], byte));
        MultiplyU8Half(part, a.high[2], a.high[3], b.w);
        total.Add(n, part, nibble(scale[low + 2], byte + 1), nibble(scale8[low + 2], byte + 1));
      }
    }
    const uint32_t first[2] = {MinimumPair(scale, t, false), MinimumPair(scale8, t, false)};
    const uint32_t second[2] = {MinimumPair(scale, t, true), MinimumPair(scale8, t, true)};
    const auto head = at.unit + static_cast<uint32_t>(kFormat.header[1] + g * 4);
    MinimumSums<kTiles> minimum;
    minimum.Multiply16(at, place, first, second);
    const uint32_t heads[2] = {LoadShared4(head), LoadShared4(head + 8 * 4)};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float token_scale = OperandScale(at, place, n);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int* s = total.value[n] + 2 * r;
        float value = Join(s[0], s[1]) * (0.015625f * LowHalf(heads[r]));
        value = fmaf(minimum.value[n][r] * kIntegerMinimumFactor, -HighHalf(heads[r]), value);
        sums[n][r] = fmaf(value, token_scale, sums[n][r]);
      }
    }
  }
};

// Table values as signed bytes. |sum| <= 8 * 32 * 128 * 128 * 32 < 2^28.
template <>
struct UnitProduct<WeightType::kIQ4_XS> {
  static __device__ __forceinline__ int Scale(const uint2& header, int j) {
    const uint32_t low = (header.y >> (4 * j)) & 15u;
    const uint32_t high = (header.x >> (16 + 2 * j)) & 3u;
    return static_cast<int>(low | high << 4) - 32;
  }

  template <int kTiles>
  static __device__ __forceinline__ void Add(const UnitPair& at, const OperandPlace<kTiles>& place,
                                             float (&sums)[kTiles][2]) {
    constexpr UnitFormat kFormat = UnitFormatOf(WeightType::kIQ4_XS);
    const int g = at.lane >> 2;
    const auto headers = at.unit + static_cast<uint32_t>(kFormat.header[0] + g * 8);
    const uint2 header = LoadShared8(headers);
    const uint2 header8 = LoadShared8(headers + 8 * 8);
    IntegerSums<kTiles> total;
#pragma unroll
    for (int jj = 0; jj < 4; ++jj) {
      const Registers a = TableCodes(at, jj, Iq4Table());
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint4 b = OperandQuants(at, place, n, jj);
        int part[4];
        MultiplyS8(part, a.low, b.x, b.y);
        total.Add(n, part, Scale(header, jj), Scale(header8, jj));
        MultiplyS8(part, a.high, b.z, b.w);
        total.Add(n, part, Scale(header, jj + 4), Scale(header8, jj + 4));
      }
    }
    AddScaled(at, place, total, LowHalf(header.x), LowHalf(header8.x), sums);
  }
};

}  // namespace layercake::kernels::cuda
