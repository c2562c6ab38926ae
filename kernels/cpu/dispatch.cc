#include "kernels/cpu/cpu_kernels.h"

#ifdef LAYERCAKE_AVX2
#include <cpuid.h>

#include "kernels/cpu/avx2_kernels.h"
#endif

namespace layercake::kernels {
#ifdef LAYERCAKE_AVX2
namespace {

// __builtin_cpu_supports of clang 14 does not know the name "f16c".
bool HasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace
#endif

const CpuKernels* Avx2Kernels() {
#ifdef LAYERCAKE_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c()) {
    static const CpuKernels kKernels = MakeAvx2Kernels();
    return &kKernels;
  }
#endif
  return nullptr;
}

}  // namespace layercake::kernels
