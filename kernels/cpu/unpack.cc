// Every weight format once, in plain code: FACTS of the formats live here and in the vector twin.
#include <cstring>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/half.h"

namespace layercake::kernels {
namespace {

constexpr int16_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                    1,    13,   25,  38,  53,  69,  89,  113};
// Twice the values of e2m1; the block's exponent is one lower to make up for it.
constexpr int16_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

int16_t Int16(int value) { return static_cast<int16_t>(value); }

// Low nibbles are values 0 to 15 of the block, high nibbles 16 to 31.
template <typename Map>
void Nibbles(const uint8_t* qs, int16_t* out, Map map) {
  for (int j = 0; j < 16; ++j) {
    out[j] = map(qs[j] & 15, j);
    out[j + 16] = map(qs[j] >> 4, j + 16);
  }
}

void UnpackQ4_0(const uint8_t* block, int16_t* ints, float* scales, float*) {
  scales[0] = HalfToFloat(LoadU16(block));
  Nibbles(block + 2, ints, [](int q, int) { return Int16(q - 8); });
}

void UnpackQ4_1(const uint8_t* block, int16_t* ints, float* scales, float* minima) {
  scales[0] = HalfToFloat(LoadU16(block));
  minima[0] = HalfToFloat(LoadU16(block + 2));
  Nibbles(block + 4, ints, [](int q, int) { return Int16(q); });
}

uint32_t LoadU32(const uint8_t* bytes) {
  uint32_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

void UnpackQ5_0(const uint8_t* block, int16_t* ints, float* scales, float*) {
  scales[0] = HalfToFloat(LoadU16(block));
  const uint32_t high = LoadU32(block + 2);
  Nibbles(block + 6, ints,
          [high](int q, int j) { return Int16(q + 16 * static_cast<int>((high >> j) & 1) - 16); });
}

void UnpackQ5_1(const uint8_t* block, int16_t* ints, float* scales, float* minima) {
  scales[0] = HalfToFloat(LoadU16(block));
  minima[0] = HalfToFloat(LoadU16(block + 2));
  const uint32_t high = LoadU32(block + 4);
  Nibbles(block + 8, ints,
          [high](int q, int j) { return Int16(q + 16 * static_cast<int>((high >> j) & 1)); });
}

void UnpackQ8_0(const uint8_t* block, int16_t* ints, float* scales, float*) {
  scales[0] = HalfToFloat(LoadU16(block));
  for (int j = 0; j < 32; ++j) ints[j] = static_cast<int8_t>(block[2 + j]);
}

void UnpackIq4Nl(const uint8_t* block, int16_t* ints, float* scales, float*) {
  scales[0] = HalfToFloat(LoadU16(block));
  Nibbles(block + 2, ints, [](int q, int) { return kIq4Values[q]; });
}

void UnpackMxfp4(const uint8_t* block, int16_t* ints, float* scales, float*) {
  // 2^(e - 128), a denormal float for e < 2.
  const int exponent = block[0];
  scales[0] = exponent < 2 ? (exponent == 0 ? 0x1p-128f : 0x1p-127f)
                           : std::bit_cast<float>(static_cast<uint32_t>(exponent - 1) << 23);
  Nibbles(block + 1, ints, [](int q, int) { return kMxfp4Values[q]; });
}

void UnpackQ2_K(const uint8_t* block, int16_t* ints, float* scales, float* minima) {
  const uint8_t* group_scales = block;
  const uint8_t* qs = block + 16;
  const float d = HalfToFloat(LoadU16(block + 80));
  const float dmin = HalfToFloat(LoadU16(block + 82));
  for (int b = 0; b < 8; ++b) {
    scales[b] = d;
    const int shift = 2 * (b % 4);
    for (int j = 0; j < 32; ++j) {
      const int q = (qs[32 * (b / 4) + j] >> shift) & 3;
      ints[32 * b + j] = Int16(q * (group_scales[2 * b + j / 16] & 15));
    }
  }
  for (int g = 0; g < 16; ++g) minima[g] = -(dmin * static_cast<float>(group_scales[g] >> 4));
}

void UnpackQ3_K(const uint8_t* block, int16_t* ints, float* scales, float*) {
  const uint8_t* high = block;
  const uint8_t* qs = block + 32;
  const uint8_t* s = block + 96;
  const float d = HalfToFloat(LoadU16(block + 108));
  for (int b = 0; b < 8; ++b) {
    scales[b] = d;
    const int shift = 2 * (b % 4);
    for (int j = 0; j < 32; ++j) {
      const int i = 2 * b + j / 16;
      const int low4 = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
      const int scale = (low4 | (((s[8 + i % 4] >> (2 * (i / 4))) & 3) << 4)) - 32;
      const int q = ((qs[32 * (b / 4) + j] >> shift) & 3) - (((high[j] >> b) & 1) != 0 ? 0 : 4);
      ints[32 * b + j] = Int16(q * scale);
    }
  }
}

// The 6-bit scale and minimum of group j (0 to 7) of Q4_K and Q5_K.
void ScaleAndMinimum(const uint8_t* s, int j, int* scale, int* minimum) {
  if (j < 4) {
    *scale = s[j] & 63;
    *minimum = s[j + 4] & 63;
  } else {
    *scale = (s[j + 4] & 15) | ((s[j - 4] >> 6) << 4);
    *minimum = (s[j + 4] >> 4) | ((s[j] >> 6) << 4);
  }
}

void KScales(const uint8_t* block, float* scales, float* minima) {
  const float d = HalfToFloat(LoadU16(block));
  const float dmin = HalfToFloat(LoadU16(block + 2));
  for (int b = 0; b < 8; ++b) {
    int scale = 0;
    int minimum = 0;
    ScaleAndMinimum(block + 4, b, &scale, &minimum);
    scales[b] = d * static_cast<float>(scale);
    minima[b] = -(dmin * static_cast<float>(minimum));
  }
}

void UnpackQ4_K(const uint8_t* block, int16_t* ints, float* scales, float* minima) {
  KScales(block, scales, minima);
  const uint8_t* qs = block + 16;
  for (int b = 0; b < 8; ++b) {
    for (int j = 0; j < 32; ++j) {
      ints[32 * b + j] = Int16((qs[32 * (b / 2) + j] >> (4 * (b % 2))) & 15);
    }
  }
}

void UnpackQ5_K(const uint8_t* block, int16_t* ints, float* scales, float* minima) {
  KScales(block, scales, minima);
  const uint8_t* high = block + 16;
  const uint8_t* qs = block + 48;
  for (int b = 0; b < 8; ++b) {
    for (int j = 0; j < 32; ++j) {
      const int low = (qs[32 * (b / 2) + j] >> (4 * (b % 2))) & 15;
      ints[32 * b + j] = Int16(low + 16 * ((high[j] >> b) & 1));
    }
  }
}

void UnpackQ6_K(const uint8_t* block, int16_t* ints, float* scales, float*) {
  const uint8_t* low = block;
  const uint8_t* high = block + 128;
  const uint8_t* group_scales = block + 192;
  const float d = HalfToFloat(LoadU16(block + 208));
  for (int b = 0; b < 8; ++b) {
    scales[b] = d;
    const int part = b % 4;
    for (int j = 0; j < 32; ++j) {
      const int nibble = (low[64 * (b / 4) + 32 * (part % 2) + j] >> (4 * (part / 2))) & 15;
      const int q = (nibble | (((high[32 * (b / 4) + j] >> (2 * part)) & 3) << 4)) - 32;
      ints[32 * b + j] = Int16(q * static_cast<int8_t>(group_scales[2 * b + j / 16]));
    }
  }
}

void UnpackIq4Xs(const uint8_t* block, int16_t* ints, float* scales, float*) {
  const float d = HalfToFloat(LoadU16(block));
  const int scales_high = LoadU16(block + 2);
  const uint8_t* scales_low = block + 4;
  for (int b = 0; b < 8; ++b) {
    const int scale =
        ((scales_low[b / 2] >> (4 * (b % 2))) & 15) | (((scales_high >> (2 * b)) & 3) << 4);
    scales[b] = d * static_cast<float>(scale - 32);
    Nibbles(block + 8 + 16 * b, ints + 32 * b, [](int q, int) { return kIq4Values[q]; });
  }
}

using UnpackBlock = void (*)(const uint8_t*, int16_t*, float*, float*);

UnpackBlock UnpackerOf(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
      return UnpackQ4_0;
    case WeightType::kQ4_1:
      return UnpackQ4_1;
    case WeightType::kQ5_0:
      return UnpackQ5_0;
    case WeightType::kQ5_1:
      return UnpackQ5_1;
    case WeightType::kQ8_0:
      return UnpackQ8_0;
    case WeightType::kQ2_K:
      return UnpackQ2_K;
    case WeightType::kQ3_K:
      return UnpackQ3_K;
    case WeightType::kQ4_K:
      return UnpackQ4_K;
    case WeightType::kQ5_K:
      return UnpackQ5_K;
    case WeightType::kQ6_K:
      return UnpackQ6_K;
    case WeightType::kIQ4_NL:
      return UnpackIq4Nl;
    case WeightType::kIQ4_XS:
      return UnpackIq4Xs;
    case WeightType::kMXFP4:
      return UnpackMxfp4;
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      break;
  }
  return nullptr;
}

void DequantizeFloats(WeightType type, const uint8_t* row, int64_t k, float* out) {
  if (type == WeightType::kF32) {
    std::memcpy(out, row, static_cast<size_t>(k) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < k; ++i) {
    const uint16_t value = LoadU16(row + 2 * i);
    out[i] = type == WeightType::kF16 ? HalfToFloat(value) : Bf16ToFloat(value);
  }
}

}  // namespace

void UnpackRow(WeightType type, const uint8_t* row, int64_t k, const UnpackedRow& out) {
  const BlockShape block = BlockShapeOf(type);
  const UnpackBlock unpack = UnpackerOf(type);
  const int64_t groups_per_block = block.elements / kGroup;
  const int group = MinimumGroup(type);
  const int64_t minima_per_block = group == 0 ? 0 : block.elements / group;
  const int64_t blocks = k / block.elements;
  for (int64_t b = 0; b < blocks; ++b) {
    unpack(row + b * block.bytes, out.ints + b * block.elements, out.scales + b * groups_per_block,
           out.minima + b * minima_per_block);
  }
  for (int64_t g = k / kGroup; g < PaddedGroups(k); ++g) out.scales[g] = 0;
  if (group == 0) return;
  const int64_t padded = PaddedGroups(k) * (kGroup / group);
  for (int64_t g = k / group; g < padded; ++g) out.minima[g] = 0;
}

void DequantizeRow(WeightType type, const uint8_t* row, int64_t k, float* out) {
  if (IsFloatType(type)) {
    DequantizeFloats(type, row, k, out);
    return;
  }
  const BlockShape block = BlockShapeOf(type);
  const UnpackBlock unpack = UnpackerOf(type);
  const int group = MinimumGroup(type);
  for (int64_t b = 0; b < k / block.elements; ++b) {
    int16_t ints[256];
    float scales[8];
    float minima[16];
    unpack(row + b * block.bytes, ints, scales, minima);
    for (int i = 0; i < block.elements; ++i) {
      // Scale times int is exact for every type but IQ4_XS, so this rounds where the format's own
      // formula rounds.
      const float product = scales[i / kGroup] * static_cast<float>(ints[i]);
      *out++ = group == 0 ? product : product + minima[i / group];
    }
  }
}

}  // namespace layercake::kernels
