#include "kernels/cuda/unit_kernel.cuh"
#include "kernels/cuda/unit_mma_kernel.cuh"

namespace layercake::kernels::cuda {

template UnitFunctions UnitsByWgmma<WeightType::kQ5_1>();
template UnitFunctions UnitsByMma<WeightType::kQ5_1>();

}  // namespace layercake::kernels::cuda
