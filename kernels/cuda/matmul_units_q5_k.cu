#include "kernels/cuda/unit_kernel.cuh"

namespace layercake::kernels::cuda {

UnitFunctions UnitsQ5_K() { return UnitFunctionsOf<WeightType::kQ5_K>(); }

}  // namespace layercake::kernels::cuda
