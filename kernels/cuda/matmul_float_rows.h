// The part of MultiplyFloats that needs no tensor cores: F32 weights, and 16-bit weights whose rows
// are not aligned to 16 bytes.
#pragma once

#include "kernels/cuda/matmul_float.h"

namespace layercake::kernels::cuda {

// As MultiplyFloats, which checks the arguments.
cudaError_t MultiplyFloatRows(const Context& context, const FloatProducts& products,
                              const OperandView& x, int rows);

}  // namespace layercake::kernels::cuda
