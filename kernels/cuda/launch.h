// What a kernel launch needs: the device's facts, its stream, and one way to launch. No header but
// CUDA's, so that .cu files stay cheap to compile.
//
// Programmatic dependent launch (PDL): a kernel launched here may begin while its predecessor still
// runs. So EVERY kernel calls GridDependencyWait() before it reads or writes anything but weights,
// in every thread that does so and in every block (a block that leaves without waiting would let
// its successor run ahead of its predecessor). Before the wait it may prefetch weights.
// GridLaunchDependents() is a hint that the next kernel may be put on the device now.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace layercake::kernels::cuda {

// One device and the one stream that its work goes through. Plain values; the owner of the stream
// (CudaDevice) outlives every user.
struct Context {
  int device = 0;  // CUDA's index
  cudaStream_t stream = nullptr;
  int sm_count = 0;
  int compute_major = 0;
  int compute_minor = 0;
  // Of the compute capability that the code was compiled for which runs there: what kernels see as
  // __CUDA_ARCH__ / 100. Below the device's own where a newer one runs a build for older ones.
  int code_major = 0;
  size_t l2_bytes = 0;
  int max_shared_bytes = 0;  // of one block, opted in
  bool use_pdl = false;      // code for 9.0 and newer
};

// Launches kernel<<<grid, block, shared_bytes>>>(arguments...) on the context's stream. More than
// 48 KB of shared memory: the caller has raised the kernel's limit (AllowSharedBytes).
template <typename... Parameters, typename... Arguments>
cudaError_t Launch(const Context& context, dim3 grid, dim3 block, size_t shared_bytes,
                   void (*kernel)(Parameters...), Arguments... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = context.stream;
  config.attrs = &attribute;
  config.numAttrs = context.use_pdl ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

// Lets a kernel use up to `bytes` of dynamic shared memory. Idempotent, cheap, not per launch.
template <typename... Parameters>
cudaError_t AllowSharedBytes(void (*kernel)(Parameters...), size_t bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

#ifdef __CUDACC__
__device__ __forceinline__ void GridDependencyWait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void GridLaunchDependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

}  // namespace layercake::kernels::cuda
