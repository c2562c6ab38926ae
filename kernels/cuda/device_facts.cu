#include "kernels/cuda/device_facts.h"

namespace layercake::kernels::cuda {
namespace {

// Compiled as all kernels are; never launched.
__global__ void AnyKernel() {}

}  // namespace

cudaError_t DescribeDevice(int device, Context* context) {
  const auto read = [device](cudaDeviceAttr attribute, int* value) {
    return cudaDeviceGetAttribute(value, attribute, device);
  };
  int l2_bytes = 0;
  cudaFuncAttributes code = {};
  for (const cudaError_t error :
       {cudaSetDevice(device), read(cudaDevAttrComputeCapabilityMajor, &context->compute_major),
        read(cudaDevAttrComputeCapabilityMinor, &context->compute_minor),
        read(cudaDevAttrMultiProcessorCount, &context->sm_count),
        read(cudaDevAttrL2CacheSize, &l2_bytes),
        read(cudaDevAttrMaxSharedMemoryPerBlockOptin, &context->max_shared_bytes),
        cudaFuncGetAttributes(&code, AnyKernel)}) {
    if (error != cudaSuccess) return error;
  }
  context->device = device;
  context->l2_bytes = static_cast<size_t>(l2_bytes);
  context->code_major = code.ptxVersion / 10;
  context->use_pdl = context->code_major >= 9;
  return cudaSuccess;
}

}  // namespace layercake::kernels::cuda
