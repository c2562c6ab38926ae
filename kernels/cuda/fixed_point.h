// The numbers of a FixedBlock (operand_layout.h), for host and device code.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/unit_layout.h"

namespace layercake::kernels::cuda {

inline constexpr float kFixedLimit = 32512.0f;  // 127 * 256: high stays in int8
// A block whose largest magnitude is below this (2^-100) counts as zeros: 1 / scale stays finite.
inline constexpr uint32_t kFixedSmallestBits = 27u << 23;
inline constexpr uint32_t kInfinityBits = 0x7f800000u;

// scale: x = scale * X. inverse: X = round(x * inverse). From the bits of the largest |x|, which
// compare as integers and put NaN last.
struct FixedScale {
  float scale;
  float inverse;
};

// 0, 0 for zeros; NaN, 0 when there is a NaN or an infinity.
LAYERCAKE_HOST_DEVICE inline FixedScale FixedScaleOf(uint32_t largest_bits, float largest) {
  if (largest_bits >= kInfinityBits) return {NAN, 0.0f};
  if (largest_bits < kFixedSmallestBits) return {0.0f, 0.0f};
  return {largest / kFixedLimit, kFixedLimit / largest};
}

// X of x; x is 0 where inverse is (callers: NaN and infinity too).
LAYERCAKE_HOST_DEVICE inline int FixedValue(float x, float inverse) {
  const float scaled = rintf(x * inverse);
  return static_cast<int>(fminf(fmaxf(scaled, -kFixedLimit), kFixedLimit));
}

// X = 256 high + low, both in [-128, 127].
LAYERCAKE_HOST_DEVICE constexpr int FixedHigh(int x) { return (x + 128) >> 8; }
LAYERCAKE_HOST_DEVICE constexpr int FixedLow(int x) { return x - 256 * FixedHigh(x); }

}  // namespace layercake::kernels::cuda
