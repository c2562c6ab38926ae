// The kernels of matmul_units.h by weight type.
#pragma once

#include <cstddef>

#include "kernels/weight_type.h"

namespace layercake::kernels::cuda {

struct UnitArguments;

using UnitFunction = void (*)(UnitArguments);
struct UnitKernelOf {
  UnitFunction function;
  int threads;
  size_t shared_bytes;
};
// By rows of activations of an item.
struct UnitFunctions {
  UnitKernelOf tokens32 = {}, tokens64 = {}, tokens96 = {}, tokens128 = {};
};

// Of types that HasUnitMatmul, instantiated one per file so that they compile side by side. With
// wgmma, for Hopper (unit_kernel.cuh); with mma.sync, for any device (unit_mma_kernel.cuh).
template <WeightType kType>
UnitFunctions UnitsByWgmma();
template <WeightType kType>
UnitFunctions UnitsByMma();

}  // namespace layercake::kernels::cuda
