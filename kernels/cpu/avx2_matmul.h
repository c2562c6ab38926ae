// The product of the AVX2 table; for avx2_kernels.cc.
#pragma once

#include "kernels/cpu/cpu_kernels.h"

namespace layercake::kernels {

void Avx2Matmul(const MatmulArgs& args);

}  // namespace layercake::kernels
