#include "kernels/cuda/unit_kernel.cuh"

namespace layercake::kernels::cuda {

UnitFunctions UnitsQ6_K() { return UnitFunctionsOf<WeightType::kQ6_K>(); }

}  // namespace layercake::kernels::cuda
