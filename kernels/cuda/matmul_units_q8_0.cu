#include "kernels/cuda/unit_kernel.cuh"
#include "kernels/cuda/unit_mma_kernel.cuh"

namespace layercake::kernels::cuda {

template UnitFunctions UnitsByWgmma<WeightType::kQ8_0>();
template UnitFunctions UnitsByMma<WeightType::kQ8_0>();

}  // namespace layercake::kernels::cuda
