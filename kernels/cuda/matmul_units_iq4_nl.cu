#include "kernels/cuda/unit_kernel.cuh"
#include "kernels/cuda/unit_mma_kernel.cuh"

namespace layercake::kernels::cuda {

template UnitFunctions UnitsByWgmma<WeightType::kIQ4_NL>();
template UnitFunctions UnitsByMma<WeightType::kIQ4_NL>();

}  // namespace layercake::kernels::cuda
