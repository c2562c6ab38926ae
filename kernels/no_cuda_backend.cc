// The answers of a build without CUDA.
#include "kernels/cuda_backend.h"

namespace layercake::kernels {
namespace {

absl::Status NoCuda() {
  return absl::UnimplementedError(
      "this build has no CUDA backend; build where nvcc is found (LAYERCAKE_CUDA), or use cpu");
}

}  // namespace

absl::StatusOr<std::vector<CudaDeviceFacts>> ListCudaDevices() { return NoCuda(); }
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaDeviceFacts&, base::Executor&) {
  return NoCuda();
}
absl::StatusOr<std::unique_ptr<Ops>> CreateCudaOps(Device&, const CudaOpsOptions&) {
  return NoCuda();
}
absl::StatusOr<uint64_t> FreeBytesOnCard(const CudaDeviceFacts&) { return NoCuda(); }
absl::StatusOr<uint64_t> FreeCudaBytes(Device&) { return NoCuda(); }

}  // namespace layercake::kernels
