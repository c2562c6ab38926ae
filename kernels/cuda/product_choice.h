// Which kernels multiply. Pure.
#pragma once

#include <cstdint>

#include "kernels/cuda/operand_layout.h"
#include "kernels/weight_type.h"

namespace layercake::kernels::cuda {

enum class ProductKernel : uint8_t {
  kDecode,  // quantised weights, groups of up to kDecodeRows rows (decode.h)
  kFloat,   // float weights, the same groups (matmul_float.h)
  kLarge,   // any, all rows at once (matmul_large.h)
};

// Up to kDecodeRows rows never take kLarge: they belong to one family of kernels.
ProductKernel ChooseProductKernel(WeightType type, int64_t k, int rows);

// The forms of the operand that the choice reads.
OperandForms FormsOfProduct(WeightType type, int64_t k, int rows);

}  // namespace layercake::kernels::cuda
