// The activation of SwiGLU where its result becomes an operand.
#pragma once

namespace layercake::kernels::cuda {

// By the approximate exponential and quotient, which are off by 2 + |z| ulp: a thousandth of what
// the operand's rounding costs, in a quarter of the instructions.
__device__ __forceinline__ float Silu(float z) { return __fdividef(z, 1.0f + __expf(-z)); }

}  // namespace layercake::kernels::cuda
