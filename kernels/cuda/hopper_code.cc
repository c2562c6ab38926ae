#include "kernels/cuda/hopper_code.h"

namespace layercake::kernels::cuda {
namespace {

#ifdef LAYERCAKE_SM90A  // by CMake, from the architectures
constexpr bool kBuilt = true;
#else
constexpr bool kBuilt = false;
#endif

}  // namespace

bool RunsHopperCode(const Context& context) {
  return kBuilt && context.compute_major == 9 && context.compute_minor == 0;
}

}  // namespace layercake::kernels::cuda
