// PeerMemory of a CUDA device (legacy CUDA IPC); in a build without CUDA the function says so.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda_backend.h"
#include "kernels/peer_memory.h"

namespace layercake::kernels {

// Within one process a handle cannot be opened (CUDA refuses), nor across PID or IPC namespaces.
// Unimplemented without CUDA in the build; Internal when CUDA refuses.
absl::StatusOr<std::unique_ptr<PeerMemory>> CreateCudaPeerMemory(const CudaDeviceFacts& facts);

}  // namespace layercake::kernels
