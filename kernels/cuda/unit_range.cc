#include "kernels/cuda/unit_range.h"

#include <algorithm>
#include <cmath>

namespace layercake::kernels::cuda {
namespace {

constexpr int kMostExponent = 100;

// The largest e with value * 2^e <= 2^limit.
int ExponentTo(float value, int limit) {
  if (!(value > 0)) return kMostExponent;
  int exponent = 0;
  const float mantissa = std::frexp(value, &exponent);  // in [0.5, 1)
  return limit - exponent + (mantissa == 0.5f ? 1 : 0);
}

}  // namespace

float UnitWeightScale(const UnitRange& range) {
  if (!(range.largest_scale > 0) && !(range.largest_minimum > 0)) return 1;
  const int exponent =
      std::min(ExponentTo(range.largest_scale, 15 - 24), ExponentTo(range.largest_minimum, 15));
  return std::ldexp(1.0f, std::clamp(exponent, -kMostExponent, kMostExponent));
}

}  // namespace layercake::kernels::cuda
