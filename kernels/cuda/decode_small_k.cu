#include "kernels/cuda/decode_kernel.cuh"

namespace layercake::kernels::cuda {

DecodeFunctions DecodeQ2_K() { return FunctionsOf<WeightType::kQ2_K, WeightType::kQ2_K>(); }
DecodeFunctions DecodeQ3_K() { return FunctionsOf<WeightType::kQ3_K, WeightType::kQ3_K>(); }
DecodeFunctions DecodeIQ4_XS() { return FunctionsOf<WeightType::kIQ4_XS, WeightType::kIQ4_XS>(); }

}  // namespace layercake::kernels::cuda
