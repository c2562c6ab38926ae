// Products with weights that are floats (BF16, F16, F32), for 1 to 16 rows of activations. (BF16 on
// Hopper goes by matmul_bf16.h, where k allows that.)
//
// Every weight is read once, 16 bytes a lane, straight from rows as they lie in the model file: 2
// bytes a weight (4 for F32) bound the time.
//
// Beside 16-bit weights an activation is a pair of 16-bit floats, high + low, of the weights' type:
// 16 bits of BF16 pairs or 22 of F16 pairs survive. The pair takes two of the sixteen rows of one
// mma.m16n8k16 operand, so eight rows of activations meet eight rows of weights per instruction.
// F32 weights meet float32 activations.
//
// One result is summed over k in an order that k alone fixes, so its bits do not depend on how many
// rows or matrices are computed beside it, nor on the device.
//
// Thread rule: as for every launch, the thread that owns the context's stream.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/operand_layout.h"
#include "kernels/weight_type.h"

namespace layercake::kernels::cuda {

inline constexpr int kFloatMaxRows = 16;  // of activations, in one launch
inline constexpr int kFloatMaxProducts = 3;

// The forms that MultiplyFloats reads for weights of a float type.
constexpr OperandForms FloatDecodeForms(WeightType type) {
  if (type == WeightType::kBF16) return kBfloat16Form;
  // F16 pairs are made from float32 under the row's power of two.
  return type == WeightType::kF16 ? kFloat32Form | kFloat16Form : kFloat32Form;
}

// out[r, i] = sum over c of weights[i, c] * x[r, c] (+ bias[i]) (+ out[r, i]).
struct FloatProduct {
  const void* weights = nullptr;  // (n, k), 16-byte aligned
  int64_t n = 0;
  const float* bias = nullptr;  // (n) or null
  float* out = nullptr;         // (rows, out_stride)
  int64_t out_stride = 0;
  bool accumulate = false;
};

struct FloatProducts {
  WeightType type = WeightType::kBF16;  // kBF16, kF16 or kF32, of all
  int count = 0;                        // 1 to kFloatMaxProducts
  FloatProduct product[kFloatMaxProducts];
  int64_t k = 0;
};

// Raises the shared memory limits of the kernels that fit the context's max_shared_bytes (at least
// 99 KB); once per device, before the first launch.
cudaError_t PrepareFloatMatmul(const Context& context);
// One kernel launch. 1 to kFloatMaxRows rows of the view, any n and k; cudaErrorInvalidValue
// otherwise. 16-bit types with k not a multiple of 8 take a plain slow kernel.
cudaError_t MultiplyFloats(const Context& context, const FloatProducts& products,
                           const OperandView& x, int rows);

}  // namespace layercake::kernels::cuda
