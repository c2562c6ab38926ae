#include "kernels/cuda/decode_kernel.cuh"

namespace layercake::kernels::cuda {

DecodeFunctions DecodeQ4_KWithQ6_K() { return FunctionsOf<WeightType::kQ4_K, WeightType::kQ6_K>(); }
DecodeFunctions DecodeQ5_KWithQ6_K() { return FunctionsOf<WeightType::kQ5_K, WeightType::kQ6_K>(); }

}  // namespace layercake::kernels::cuda
