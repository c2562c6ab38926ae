// The AVX2 table itself; callers ask Avx2Kernels() of cpu_kernels.h, which looks at the CPU first.
#pragma once

#include "kernels/cpu/cpu_kernels.h"

namespace layercake::kernels {

CpuKernels MakeAvx2Kernels();

}  // namespace layercake::kernels
