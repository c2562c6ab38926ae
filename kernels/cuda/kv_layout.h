// Keys and values of the types f16, bf16 and q8_0 on the device: how numbers are stored, and where
// those of q8_0 lie. For host and device code; the numbers are those of kernels/cpu, bit for bit
// (but for the sign of a NaN in f16).
//
// q8_0: the bytes of one kv head in one block are first the integers of all its positions, then
// their scales: int8 (block_tokens, 32 * groups), f16 (block_tokens, groups). That takes the 34
// bytes a group that the CPU's form takes, but integers can be read 16 bytes at a time, and so can
// the scales of 16 positions, since block_tokens is a multiple of kQ8Run.
#pragma once

#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>

#include "kernels/cuda/step_view.h"
#include "kernels/cuda/unit_layout.h"

namespace layercake::kernels::cuda {

inline constexpr int kQ8Group = 32;
inline constexpr int kQ8Run = 16;  // positions whose scales are read together

LAYERCAKE_HOST_DEVICE constexpr int Q8Groups(int head_dim) {
  return (head_dim + kQ8Group - 1) / kQ8Group;
}

// Bytes from the first key (or value) of the layer to the integers of one position of one head.
LAYERCAKE_HOST_DEVICE constexpr int64_t Q8ValueOffset(const KvView& cache, int64_t block,
                                                      int kv_head, int token) {
  const int groups = Q8Groups(cache.head_dim);
  return (block * cache.kv_heads + kv_head) * cache.block_tokens * groups * (kQ8Group + 2) +
         token * groups * kQ8Group;
}

// From there to the scales of the same position, `token` of its block.
LAYERCAKE_HOST_DEVICE constexpr int64_t Q8ScaleDistance(const KvView& cache, int token) {
  const int groups = Q8Groups(cache.head_dim);
  return static_cast<int64_t>(cache.block_tokens - token) * groups * kQ8Group +
         static_cast<int64_t>(token) * groups * 2;
}

// f16 of x, to nearest, ties to even; what f16 cannot hold becomes NaN. (An infinite key would have
// a score of -inf for some queries, which takes it out of the softmax without a word.)
LAYERCAKE_HOST_DEVICE inline uint16_t HalfStored(float x) {
  const uint16_t half = __half_as_ushort(__float2half_rn(x));
  const bool finite = (half & 0x7c00u) != 0x7c00u;
  return static_cast<uint16_t>(finite ? half : (half & 0x8000u) | 0x7e00u);
}

// bf16 of the float with these bits, to nearest, ties to even; what bf16 cannot hold becomes NaN.
LAYERCAKE_HOST_DEVICE constexpr uint16_t Bf16Stored(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t rounded =
      magnitude >= 0x7f800000u ? 0x7f80u : (magnitude + 0x7fffu + (magnitude >> 16 & 1u)) >> 16;
  const uint32_t sign = bits >> 16 & 0x8000u;
  return static_cast<uint16_t>(sign | (rounded >= 0x7f80u ? 0x7fc0u : rounded));
}

// The scale of a group as f16 bits, and what its values are multiplied by to become integers.
struct Q8Scale {
  uint16_t half;
  float inverse;
};

// From the largest |x| of the group and its bits, which compare as integers and put NaN last.
// Scales beyond f16 become NaN; where a scale vanishes, so do the values.
LAYERCAKE_HOST_DEVICE inline Q8Scale Q8ScaleOf(uint32_t largest_bits, float largest) {
  constexpr uint16_t kNan = 0x7e00;
  if (largest_bits >= 0x7f800000u) return {kNan, 0.0f};
  const uint16_t half = __half_as_ushort(__float2half_rn(largest / 127.0f));
  if (half == 0x7c00) return {kNan, 0.0f};
  return {half, half == 0 ? 0.0f : 127.0f / largest};
}

// inverse 0: for every x, NaN too.
LAYERCAKE_HOST_DEVICE inline int8_t Q8Value(float x, float inverse) {
  return inverse == 0.0f ? int8_t{0} : static_cast<int8_t>(static_cast<int>(rintf(x * inverse)));
}

// Two int8 (the low bytes of the 16-bit halves of `pair`) as bf16, without a conversion
// instruction: an int8 is its low seven bits, less 128 if it is negative, and bf16 holds 128 + n
// for n < 128 as 0x4300 | n and 256 as 0x4380. So each is MinuendOfInts - SubtrahendOfInts,
// exactly.
LAYERCAKE_HOST_DEVICE constexpr uint32_t MinuendOfInts(uint32_t pair) {
  return (pair & 0x007f007fu) | 0x43004300u;
}
LAYERCAKE_HOST_DEVICE constexpr uint32_t SubtrahendOfInts(uint32_t pair) {
  return (pair & 0x00800080u) | 0x43004300u;
}

}  // namespace layercake::kernels::cuda
