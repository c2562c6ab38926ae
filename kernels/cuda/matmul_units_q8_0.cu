#include "kernels/cuda/unit_kernel.cuh"

namespace layercake::kernels::cuda {

UnitFunctions UnitsQ8_0() { return UnitFunctionsOf<WeightType::kQ8_0>(); }

}  // namespace layercake::kernels::cuda
