// RandomTensorBytes: random quants under scales that give the wanted deviation. The block layouts
// are those of ggml (docs of each type: model/gguf/tensor_type.h names them).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "model/gguf/testing/gguf_builder.h"

namespace layercake::model::testing {
namespace {

// Deviations of quants drawn uniformly: over n neighbouring integers it is sqrt((n*n - 1) / 12).
constexpr double kDeviation4Bit = 4.61;
constexpr double kDeviation5Bit = 9.23;
constexpr double kDeviation6Bit = 18.5;
constexpr double kDeviation8Bit = 73.9;
constexpr double kRms6BitScale = 36.4;    // root mean square of 0..63
constexpr double kRms4BitScale = 8.80;    // of 0..15
constexpr double kDeviationIq4 = 67.4;    // of IQ4_NL's table
constexpr double kDeviationMxfp4 = 5.85;  // of MXFP4's table, doubled as ggml has it

// Round toward zero; subnormals kept. `value` is finite and below 65504.
uint16_t ToHalf(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (magnitude < 0x1.0p-14) {
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(magnitude * 0x1.0p24));
  }
  int exponent = 0;
  const double fraction = std::frexp(magnitude, &exponent);  // in [0.5, 1)
  const auto mantissa = static_cast<uint16_t>(fraction * 2048.0 - 1024.0);
  return static_cast<uint16_t>(sign | ((exponent + 14) << 10) | mantissa);
}

void PutHalf(std::byte* at, double value) {
  const uint16_t bits = ToHalf(value);
  std::memcpy(at, &bits, sizeof(bits));
}

// 8 scales and 8 minimums of 6 bits each, every minimum equal to its scale, so that dmin can centre
// the values.
void PutEqualKScales(std::byte* scales, base::Random& random) {
  for (int j = 0; j < 4; ++j) {
    scales[j + 4] = scales[j];
    const auto low = static_cast<uint8_t>(random.Below(16));
    scales[j + 8] = static_cast<std::byte>(low | (low << 4));
  }
}

// `block` holds random bytes; fixes its scales.
void PutScales(TensorType type, double deviation, base::Random& random, std::byte* block) {
  switch (type) {
    case TensorType::kQ4_0:
      return PutHalf(block, deviation / kDeviation4Bit);
    case TensorType::kQ4_1:
      PutHalf(block, deviation / kDeviation4Bit);
      return PutHalf(block + 2, -7.5 * deviation / kDeviation4Bit);
    case TensorType::kQ5_0:
      return PutHalf(block, deviation / kDeviation5Bit);
    case TensorType::kQ5_1:
      PutHalf(block, deviation / kDeviation5Bit);
      return PutHalf(block + 2, -15.5 * deviation / kDeviation5Bit);
    case TensorType::kQ8_0:
      return PutHalf(block, deviation / kDeviation8Bit);
    case TensorType::kQ2_K: {
      const double d = deviation / (kRms4BitScale * 1.118);
      for (int i = 0; i < 16; ++i) {
        const auto scale = static_cast<uint8_t>(random.Below(16));
        block[i] = static_cast<std::byte>(scale | (scale << 4));
      }
      PutHalf(block + 80, d);
      return PutHalf(block + 82, 1.5 * d);
    }
    case TensorType::kQ3_K:
      return PutHalf(block + 108, deviation / (kDeviation6Bit * 2.29));
    case TensorType::kQ4_K:
    case TensorType::kQ5_K: {
      const bool five = type == TensorType::kQ5_K;
      const double d = deviation / (kRms6BitScale * (five ? kDeviation5Bit : kDeviation4Bit));
      PutHalf(block, d);
      PutHalf(block + 2, (five ? 15.5 : 7.5) * d);
      return PutEqualKScales(block + 4, random);
    }
    case TensorType::kQ6_K:
      // Scales of 6 bits instead of 8 keep d a normal half.
      for (int i = 0; i < 16; ++i) {
        block[192 + i] = static_cast<std::byte>(static_cast<int8_t>(random.Below(64)) - 32);
      }
      return PutHalf(block + 208, deviation / (kDeviation6Bit * kDeviation6Bit));
    case TensorType::kIQ4_NL:
      return PutHalf(block, deviation / kDeviationIq4);
    case TensorType::kIQ4_XS:
      return PutHalf(block, deviation / (kDeviationIq4 * kDeviation6Bit));
    case TensorType::kMXFP4:
      block[0] = static_cast<std::byte>(
          128 + static_cast<int>(std::lround(std::log2(deviation / kDeviationMxfp4))));
      return;
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBF16:
      return;
  }
}

void PutFloat(TensorType type, double value, std::byte* at) {
  const auto narrow = static_cast<float>(value);
  if (type == TensorType::kF16) return PutHalf(at, value);
  const auto* from = reinterpret_cast<const std::byte*>(&narrow);
  if (type == TensorType::kBF16) from += 2;
  std::memcpy(at, from, TensorBlockOf(type).bytes);
}

}  // namespace

std::vector<std::byte> RandomTensorBytes(TensorType type, uint64_t elements, double deviation,
                                         base::Random& random) {
  const TensorBlock block = TensorBlockOf(type);
  LC_CHECK(elements % block.elements == 0, TensorTypeName(type), " ", elements);
  std::vector<std::byte> bytes(elements / block.elements * block.bytes);
  for (size_t at = 0; at < bytes.size(); at += block.bytes) {
    if (block.elements == 1) {
      // Uniform over (-sqrt(3), sqrt(3)) has deviation 1.
      PutFloat(type, deviation * std::sqrt(3.0) * (2.0 * random.Unit() - 1.0), &bytes[at]);
      continue;
    }
    for (size_t i = 0; i < block.bytes; ++i) {
      bytes[at + i] = static_cast<std::byte>(random.Below(256));
    }
    PutScales(type, deviation, random, &bytes[at]);
  }
  return bytes;
}

}  // namespace layercake::model::testing
