#include "kernels/cpu/cpu_kernels.h"

namespace layercake::kernels {

const CpuKernels* Avx2Kernels() { return nullptr; }

}  // namespace layercake::kernels
