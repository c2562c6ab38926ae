// Whether kernels with wgmma can run: they are empty in code for anything but sm_90a.
#pragma once

#include "kernels/cuda/launch.h"

namespace layercake::kernels::cuda {

// Compute capability 9.0, and code for sm_90a in this build.
bool RunsHopperCode(const Context& context);
// Compute capability 9.0 without that code: slower kernels run, which the user wants to know.
bool LacksHopperCode(const Context& context);

}  // namespace layercake::kernels::cuda
