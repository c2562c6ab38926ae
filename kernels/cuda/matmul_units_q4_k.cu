#include "kernels/cuda/unit_kernel.cuh"

namespace layercake::kernels::cuda {

UnitFunctions UnitsQ4_K() { return UnitFunctionsOf<WeightType::kQ4_K>(); }

}  // namespace layercake::kernels::cuda
