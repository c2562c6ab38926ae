#include "kernels/cpu/cpu_kernels.h"

#ifdef LAYERCAKE_AVX2
#include "kernels/cpu/avx2_kernels.h"
#endif

namespace layercake::kernels {

const CpuKernels* Avx2Kernels() {
#ifdef LAYERCAKE_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    static const CpuKernels kKernels = MakeAvx2Kernels();
    return &kKernels;
  }
#endif
  return nullptr;
}

}  // namespace layercake::kernels
