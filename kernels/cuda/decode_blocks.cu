#include "kernels/cuda/decode_kernel.cuh"

namespace layercake::kernels::cuda {

DecodeFunctions DecodeQ4_0() { return FunctionsOf<WeightType::kQ4_0, WeightType::kQ4_0>(); }
DecodeFunctions DecodeQ4_1() { return FunctionsOf<WeightType::kQ4_1, WeightType::kQ4_1>(); }
DecodeFunctions DecodeQ5_0() { return FunctionsOf<WeightType::kQ5_0, WeightType::kQ5_0>(); }
DecodeFunctions DecodeQ5_1() { return FunctionsOf<WeightType::kQ5_1, WeightType::kQ5_1>(); }
DecodeFunctions DecodeIQ4_NL() { return FunctionsOf<WeightType::kIQ4_NL, WeightType::kIQ4_NL>(); }
DecodeFunctions DecodeMXFP4() { return FunctionsOf<WeightType::kMXFP4, WeightType::kMXFP4>(); }

}  // namespace layercake::kernels::cuda
