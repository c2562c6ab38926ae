// The answer of a build without CUDA.
#include "kernels/cuda_peer_memory.h"

namespace layercake::kernels {

absl::StatusOr<std::unique_ptr<PeerMemory>> CreateCudaPeerMemory(const CudaDeviceFacts&) {
  return absl::UnimplementedError("this build has no CUDA backend and shares no device memory");
}

}  // namespace layercake::kernels
