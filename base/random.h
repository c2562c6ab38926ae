// Seeded randomness, passed in. Not for sampling tokens (kernels/sampling.h is counter based).
#pragma once

#include <cstdint>

namespace layercake::base {

class Random {
 public:
  virtual ~Random() = default;
  // Uniform over all 64-bit values.
  virtual uint64_t Next() = 0;

  // Uniform over [0, bound); bound > 0. (Lemire, "Fast random integer generation in an interval".)
  uint64_t Below(uint64_t bound);
  // Uniform over [0, 1).
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }
};

// SplitMix64 (Steele, Lea, Flood 2014): small state, any seed is good. Not thread-safe.
class SeededRandom final : public Random {
 public:
  explicit SeededRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next() override;

 private:
  uint64_t state_;
};

// 64 bits from the kernel, for secrets, request ids and default seeds.
uint64_t EntropySeed();

}  // namespace layercake::base
