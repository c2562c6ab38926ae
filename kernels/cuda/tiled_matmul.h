// The plain product of two row-major matrices of 16-bit floats on tensor cores, for machines
// without cuBLASLt: right, simple and about half as fast.
//
// Thread rule: as for every launch, the thread that owns the context's stream.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/launch.h"

namespace layercake::kernels::cuda {

// y[r, i] = sum over c of x[r, c] * w[i, c] (+ y[r, i]), added in float32.
struct MatmulProblem {
  bool bf16 = false;            // of w and x; else f16
  const uint16_t* w = nullptr;  // (n, k), 16-byte aligned
  const uint16_t* x = nullptr;  // (rows, k), 16-byte aligned
  float* y = nullptr;           // (rows, y_stride)
  int64_t n = 0;
  int64_t k = 0;  // a multiple of 8
  int64_t rows = 0;
  int64_t y_stride = 0;
  bool accumulate = false;
};

// Raises the kernels' shared memory limits; once per device, before the first launch.
cudaError_t PrepareTiledMatmul();
cudaError_t TiledMatmul(const Context& context, const MatmulProblem& problem);

// What a product under a power of two per row needs around it. scale (rows), or null for 1.
//   before: y = (y (if accumulate) + bias) / scale; nothing where bias is null and scale is 1
//   after:  y = y * scale; nothing where scale is 1
struct RowScaling {
  const float* scale = nullptr;
  const float* bias = nullptr;  // (n) or null
  float* y = nullptr;           // (rows, y_stride)
  int64_t n = 0;
  int64_t y_stride = 0;
  bool accumulate = false;
};
inline constexpr int kMaxScalings = 3;
struct RowScalings {
  int64_t rows = 0;
  int count = 0;
  RowScaling product[kMaxScalings];
};
// Whether the product that follows adds to what `before` left.
constexpr bool AddsToBefore(const RowScaling& scaling) {
  return scaling.accumulate || scaling.bias != nullptr;
}
// One launch for those that need it, none where none does.
cudaError_t ScaleBefore(const Context& context, const RowScalings& scalings);
cudaError_t ScaleAfter(const Context& context, const RowScalings& scalings);

}  // namespace layercake::kernels::cuda
