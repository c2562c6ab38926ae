// Products of 17 and more rows with quantised matrices that are read as units (unit_layout.h): each
// weight becomes f16 in a register, on its way to the tensor cores, once per 32, 64 or 128 rows.
//
// A weight is q * s (+ m) with s and m the format's float32 values times kUnitWeightScale rounded
// to f16, and the result rounded once more; an activation is an f16 under a power of two per row.
// An output is off by about 4e-4 of its norm.
//
// The work is items of 256 rows of weights by up to 128 rows of activations, each a run of column
// blocks. Equal parts of the whole go to the multiprocessors; items that are cut are added up by a
// second kernel in ascending order of columns. So bits depend on n, k, the rows, the matrices of
// the launch and the multiprocessors.
//
// Thread rule: as for every launch, the thread that owns the context's stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/operand_layout.h"
#include "kernels/weight_type.h"

namespace layercake::kernels::cuda {

inline constexpr int kUnitMaxProducts = 3;

// Small scales would be f16 subnormals without it. Weights beyond 65,504 / 64 become infinities.
inline constexpr float kUnitWeightScale = 64.0f;

// The types whose files are common enough to have these kernels.
constexpr bool HasUnitMatmul(WeightType type) {
  return type == WeightType::kQ4_K || type == WeightType::kQ5_K || type == WeightType::kQ6_K ||
         type == WeightType::kQ8_0;
}

struct UnitProduct {
  const std::byte* units = nullptr;
  int64_t n = 0;
  const float* bias = nullptr;  // (n) or null
  float* out = nullptr;         // (rows, out_stride)
  int64_t out_stride = 0;
  bool accumulate = false;
};

struct UnitProducts {
  int count = 0;  // 1 to kUnitMaxProducts
  UnitProduct product[kUnitMaxProducts];
  int64_t k = 0;
};

// Room for what blocks leave of items that are cut.
size_t UnitPartialBytes(int sm_count);

// Raises the kernels' shared memory limits; once per device, before the first launch. False in
// *available where the device has too little shared memory (before compute capability 9.0).
cudaError_t PrepareUnitMatmul(const Context& context, bool* available);

// Two launches. Any rows >= 1 of x.half and x.half_scale; products of one type that
// HasUnitMatmul, k a multiple of 32; cudaErrorInvalidValue otherwise.
cudaError_t MultiplyUnits(const Context& context, WeightType type, const UnitProducts& products,
                          const OperandView& x, int rows, float* partials);

}  // namespace layercake::kernels::cuda
