#include "kernels/cuda/unit_kernel.cuh"
#include "kernels/cuda/unit_mma_kernel.cuh"

namespace layercake::kernels::cuda {

template UnitFunctions UnitsByWgmma<WeightType::kQ6_K>();
template UnitFunctions UnitsByMma<WeightType::kQ6_K>();

}  // namespace layercake::kernels::cuda
