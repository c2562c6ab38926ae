#include "kernels/cuda/hopper_code.h"

namespace layercake::kernels::cuda {
namespace {

#ifdef LAYERCAKE_SM90A  // by CMake, from the architectures
constexpr bool kBuilt = true;
#else
constexpr bool kBuilt = false;
#endif

bool IsHopper(const Context& context) {
  return context.compute_major == 9 && context.compute_minor == 0;
}

}  // namespace

bool RunsHopperCode(const Context& context) { return kBuilt && IsHopper(context); }
bool LacksHopperCode(const Context& context) { return !kBuilt && IsHopper(context); }

}  // namespace layercake::kernels::cuda
