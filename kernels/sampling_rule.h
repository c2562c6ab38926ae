// The parts of the sampling rule (sampling.h) that every backend must share to the bit.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/sampling.h"

namespace layercake::kernels {

// Philox 4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011).
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// The 32 random bits of a token: word token % 4 of Philox at counter
// (token / 4, 0, position low, position high) under the key (seed low, seed high).
std::array<uint32_t, 4> GumbelBits(uint64_t seed, uint64_t position, uint32_t token_quad);

// -log(-log((bits + 0.5) / 2^32)).
double GumbelFromBits(uint32_t bits);
// An upper bound of GumbelFromBits that costs no logarithm: with u = (bits + 0.5) / 2^32,
// -log(u) >= 1 - u >= 2^-(z + 1), where z is the number of leading ones of bits.
double GumbelBound(uint32_t bits);

// Penalties on one token's logit; output_count 0 means that it was in the prompt only.
float Penalized(float logit, int32_t output_count, const SamplingParams& params);

inline bool HasPenalty(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
         params.frequency_penalty != 0;
}

}  // namespace layercake::kernels
