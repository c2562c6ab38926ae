#include "kernels/cuda/context.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace layercake::kernels::cuda {

absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(what, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error)));
}

DeviceArray::~DeviceArray() {
  // The device may have been lost; there is nothing to do about it here.
  if (address_ != nullptr && cudaSetDevice(device_) == cudaSuccess) {
    static_cast<void>(cudaFree(address_));
  }
}

DeviceArray::DeviceArray(DeviceArray&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      device_(other.device_) {}

DeviceArray& DeviceArray::operator=(DeviceArray&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  return *this;
}

absl::StatusOr<DeviceArray> DeviceArray::Allocate(const Context& context, size_t bytes,
                                                  absl::string_view what) {
  LC_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(context.device), "select the device"));
  const size_t wanted = std::max<size_t>(bytes, 1);
  void* address = nullptr;
  const cudaError_t error = cudaMalloc(&address, wanted);
  if (error == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // ordinary: the context lives on
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    LC_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free_bytes, &total_bytes), "ask for memory"));
    return absl::ResourceExhaustedError(absl::StrCat(what, " wants ", wanted,
                                                     " bytes of device memory; ", free_bytes,
                                                     " of ", total_bytes, " are free"));
  }
  LC_RETURN_IF_ERROR(CudaStatus(error, absl::StrCat("allocate ", what)));
  DeviceArray array(address, wanted, context.device);
  LC_RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(address, 0, wanted, context.stream),
                                absl::StrCat("clear ", what)));
  return array;
}

PinnedArray::~PinnedArray() {
  if (address_ != nullptr) static_cast<void>(cudaFreeHost(address_));
}

PinnedArray::PinnedArray(PinnedArray&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

PinnedArray& PinnedArray::operator=(PinnedArray&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

absl::StatusOr<PinnedArray> PinnedArray::Allocate(const Context& context, size_t bytes,
                                                  absl::string_view what) {
  LC_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(context.device), "select the device"));
  const size_t wanted = std::max<size_t>(bytes, 1);
  void* address = nullptr;
  const cudaError_t error = cudaHostAlloc(&address, wanted, cudaHostAllocPortable);
  if (error == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    return absl::ResourceExhaustedError(absl::StrCat(
        what, " wants ", wanted, " bytes of pinned host memory; there is not so much"));
  }
  LC_RETURN_IF_ERROR(CudaStatus(error, absl::StrCat("allocate ", what)));
  return PinnedArray(address, wanted);
}

}  // namespace layercake::kernels::cuda
