#include "kernels/cuda/decode_kernel.cuh"

namespace layercake::kernels::cuda {

DecodeFunctions DecodeQ4_K() { return FunctionsOf<WeightType::kQ4_K, WeightType::kQ4_K>(); }
DecodeFunctions DecodeQ5_K() { return FunctionsOf<WeightType::kQ5_K, WeightType::kQ5_K>(); }

}  // namespace layercake::kernels::cuda
