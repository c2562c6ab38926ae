// The parts of the sampling rule (kernels/sampling_rule.h) on the device. Draws and penalties are
// the host's to the bit; so are the orders of tokens and the ties.
#pragma once

#include <cstdint>

#include "kernels/cuda/sampling.h"

namespace layercake::kernels::cuda {

struct Words4 {
  uint32_t word[4];
};

// Philox 4x32 with 10 rounds at counter (quad, 0, position) under the key seed.
__device__ inline Words4 GumbelBits(uint64_t seed, uint64_t position, uint32_t quad) {
  uint32_t c0 = quad;
  uint32_t c1 = 0;
  uint32_t c2 = static_cast<uint32_t>(position);
  uint32_t c3 = static_cast<uint32_t>(position >> 32);
  uint32_t k0 = static_cast<uint32_t>(seed);
  uint32_t k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c0);
    const uint32_t low0 = 0xD2511F53u * c0;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c2);
    const uint32_t low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

__device__ inline double GumbelFromBits(uint32_t bits) {
  const double u = (static_cast<double>(bits) + 0.5) * 0x1p-32;
  return -log(-log(u));
}

// At least GumbelFromBits(bits), without a logarithm: with u = (bits + 0.5) / 2^32,
// -log(u) >= 1 - u >= 2^-(z + 1), where z is the number of leading ones of bits.
__device__ inline float GumbelBound(uint32_t bits) {
  return static_cast<float>(__clz(static_cast<int>(~bits)) + 1) * 0.6931472f + 1e-5f;
}

// GumbelFromBits(bits) within 1e-5. Where u is near 1, 1 - u keeps the bits that a float of u has
// not.
__device__ inline float GumbelNear(uint32_t bits) {
  const bool upper = (bits & 0x80000000u) != 0;
  const float part = (static_cast<float>(upper ? ~bits : bits) + 0.5f) * 0x1p-32f;
  return -logf(upper ? -log1pf(-part) : -logf(part));
}
constexpr float kGumbelError = 1e-5f;
constexpr float kMostGumbel = 23;  // -log(-log(1 - 2^-33)) is 22.9

// The larger one, a NaN when either is.
__device__ inline float MaxOrNan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

// Two roundings where the host has two: no fused multiply-add.
__device__ inline float Penalized(float logit, int32_t output_count, const SampleJob& job) {
  logit = logit > 0 ? __fdiv_rn(logit, job.repetition_penalty)
                    : __fmul_rn(logit, job.repetition_penalty);
  logit = __fsub_rn(logit, __fmul_rn(job.presence_penalty, output_count > 0 ? 1.0f : 0.0f));
  return __fsub_rn(logit, __fmul_rn(job.frequency_penalty, static_cast<float>(output_count)));
}

// Keys in the order of tokens: the larger logit first, then the lower id. Larger keys come first.
using TokenKey = unsigned long long;
__device__ inline TokenKey KeyOf(float logit, int32_t token) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 is 0
  const uint32_t order = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return (static_cast<TokenKey>(order) << 32) | ~static_cast<uint32_t>(token);
}
__device__ inline int32_t TokenOf(TokenKey key) {
  return static_cast<int32_t>(~static_cast<uint32_t>(key));
}
__device__ inline float LogitOf(TokenKey key) {
  const auto order = static_cast<uint32_t>(key >> 32);
  return __uint_as_float((order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order);
}

}  // namespace layercake::kernels::cuda
