// Quantised weights as plain numbers: panels of 16-bit floats for the products with many rows, and
// single rows as float32 for the embedding.
//
// Thread rule: as for every launch, the thread that owns the context's stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/unit_layout.h"
#include "kernels/weight_type.h"

namespace layercake::kernels::cuda {

// What a quantised type is unpacked to: f16, but bf16 for MXFP4, whose exponents f16 cannot hold
// (and whose values bf16 holds exactly).
LAYERCAKE_HOST_DEVICE constexpr bool UnpacksToBf16(WeightType type) {
  return type == WeightType::kMXFP4;
}

// Rows [row_begin, row_end) of the n x k matrix in `units` (unit_layout.h), each weight the
// float32 of the format's own formula rounded to 16 bits, as row-major (row_end - row_begin, k) at
// `panel` (16-byte aligned). row_begin is a multiple of kUnitRows. Moves the matrix's bytes plus 2
// per weight.
cudaError_t UnpackRows(const Context& context, WeightType type, int64_t n, int64_t k,
                       const std::byte* units, int64_t row_begin, int64_t row_end, uint16_t* panel);

// x[r] = row tokens[r] of the n x k matrix `table` of any type, as float32, value for value what
// the format says. tokens (rows) on the device, each in [0, n); x (rows, k).
cudaError_t GatherRows(const Context& context, WeightType type, int64_t n, int64_t k,
                       const std::byte* table, const int32_t* tokens, int rows, float* x);

}  // namespace layercake::kernels::cuda
