// Size arithmetic on numbers that came from a file or a wire: a product that wraps is an error,
// never a small plausible size.
#pragma once

#include <cstdint>
#include <optional>

namespace layercake::base {

inline std::optional<uint64_t> CheckedMul(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

inline std::optional<uint64_t> CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

// Rounds up to a multiple of `alignment`, a power of two.
inline std::optional<uint64_t> CheckedAlignUp(uint64_t value, uint64_t alignment) {
  const std::optional<uint64_t> sum = CheckedAdd(value, alignment - 1);
  if (!sum) return std::nullopt;
  return *sum & ~(alignment - 1);
}

}  // namespace layercake::base
