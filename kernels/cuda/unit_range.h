// What the products by units (matmul_units.h) have to know of a matrix's values: how far its scales
// may be moved before f16 overflows, and how large a result can get.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/weight_type.h"

namespace layercake::kernels::cuda {

// A weight is scale * code + minimum, code an integer below 256 (less the format's bias). Zeros for
// types without HasUnitMatmul; values that are no finite numbers do not count.
struct UnitRange {
  float largest_scale = 0;     // of a group of columns, as a magnitude
  float largest_minimum = 0;   // likewise
  float largest_row_norm = 0;  // Euclidean norm of a row of weights
};

// The power of two S by which such weights are multiplied to become f16: the largest with
// largest_scale * S * 2^24 and largest_minimum * S at most 2^15. So scales may be applied to codes
// that stand in the lowest bits of a half, which makes them f16 subnormals of code * 2^-24. Between
// 2^-100 and 2^100; 1 where nothing limits it.
float UnitWeightScale(const UnitRange& range);

// Fills range[0..2] on the device with the members of UnitRange, for n x k weights of a type that
// HasUnitMatmul, as units. One launch; cudaErrorInvalidValue for other types.
cudaError_t MeasureUnitRange(const Context& context, WeightType type, int64_t n, int64_t k,
                             const std::byte* units, float* range);

}  // namespace layercake::kernels::cuda
