#include "kernels/cuda/unit_kernel.cuh"
#include "kernels/cuda/unit_mma_kernel.cuh"

namespace layercake::kernels::cuda {

template UnitFunctions UnitsByWgmma<WeightType::kQ4_K>();
template UnitFunctions UnitsByMma<WeightType::kQ4_K>();

}  // namespace layercake::kernels::cuda
