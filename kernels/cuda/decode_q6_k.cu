#include "kernels/cuda/decode_kernel.cuh"

namespace layercake::kernels::cuda {

DecodeFunctions DecodeQ6_K() { return FunctionsOf<WeightType::kQ6_K, WeightType::kQ6_K>(); }
DecodeFunctions DecodeQ8_0() { return FunctionsOf<WeightType::kQ8_0, WeightType::kQ8_0>(); }

}  // namespace layercake::kernels::cuda
