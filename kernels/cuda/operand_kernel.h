// The producers of operand.h, as launches.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/operand_layout.h"

namespace layercake::kernels::cuda {

// What a row's values are made of.
struct OperandSource {
  enum class Kind : uint8_t { kPlain, kNorm, kSwiglu };
  Kind kind = Kind::kPlain;
  const float* x = nullptr;      // plain, norm: (rows, k); SwiGLU: gate
  const float* other = nullptr;  // norm: weight (k); SwiGLU: up
  int64_t stride = 0;            // floats between rows of x (and up)
  float eps = 0;                 // norm
};

// One kernel. Any rows >= 1 and k >= 1.
cudaError_t LaunchOperand(const Context& context, const OperandSource& source, int rows, int64_t k,
                          OperandForms forms, const OperandView& operand);

}  // namespace layercake::kernels::cuda
