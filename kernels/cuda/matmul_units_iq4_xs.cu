#include "kernels/cuda/unit_kernel.cuh"
#include "kernels/cuda/unit_mma_kernel.cuh"

namespace layercake::kernels::cuda {

template UnitFunctions UnitsByWgmma<WeightType::kIQ4_XS>();
template UnitFunctions UnitsByMma<WeightType::kIQ4_XS>();

}  // namespace layercake::kernels::cuda
