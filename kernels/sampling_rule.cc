#include "kernels/sampling_rule.h"

#include <bit>
#include <cmath>

namespace layercake::kernels {

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9;  // golden ratio
  constexpr uint32_t kWeyl1 = 0xBB67AE85;  // sqrt(3) - 1
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

std::array<uint32_t, 4> GumbelBits(uint64_t seed, uint64_t position, uint32_t token_quad) {
  return Philox4x32(
      {token_quad, 0, static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32)},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

double GumbelFromBits(uint32_t bits) {
  const double u = (static_cast<double>(bits) + 0.5) * 0x1p-32;
  return -std::log(-std::log(u));
}

double GumbelBound(uint32_t bits) {
  constexpr double kLn2 = 0.693147180559945309;
  return (std::countl_one(bits) + 1) * kLn2;
}

float Penalized(float logit, int32_t output_count, const SamplingParams& params) {
  logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  const auto count = static_cast<float>(output_count);
  return logit - params.presence_penalty * (output_count > 0 ? 1.0f : 0.0f) -
         params.frequency_penalty * count;
}

}  // namespace layercake::kernels
