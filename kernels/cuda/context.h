// Statuses and memory for the host side of the CUDA backend (.cc files).
#pragma once

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/launch.h"

namespace layercake::kernels::cuda {

// OK, or Internal that says what was attempted and what CUDA answered. Errors of the stream come
// out of a later call: `what` names the operation that noticed.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);

// One cudaMalloc, freed at the end. Move-only. Not thread-safe.
class DeviceArray {
 public:
  DeviceArray() = default;
  ~DeviceArray();
  DeviceArray(DeviceArray&& other) noexcept;
  DeviceArray& operator=(DeviceArray&& other) noexcept;

  // `bytes` bytes (at least 1), aligned to 256, zeroed in stream order. ResourceExhausted names
  // `what` and says what was wanted, what is free and what the device has.
  static absl::StatusOr<DeviceArray> Allocate(const Context& context, size_t bytes,
                                              absl::string_view what);

  void* address() const { return address_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(address_);
  }
  size_t bytes() const { return bytes_; }

 private:
  DeviceArray(void* address, size_t bytes, int device)
      : address_(address), bytes_(bytes), device_(device) {}

  void* address_ = nullptr;
  size_t bytes_ = 0;
  int device_ = 0;
};

// One cudaHostAlloc: host memory that the device copies to and from without a bounce. As above.
class PinnedArray {
 public:
  PinnedArray() = default;
  ~PinnedArray();
  PinnedArray(PinnedArray&& other) noexcept;
  PinnedArray& operator=(PinnedArray&& other) noexcept;

  static absl::StatusOr<PinnedArray> Allocate(const Context& context, size_t bytes,
                                              absl::string_view what);

  template <typename T>
  T* as() const {
    return static_cast<T*>(address_);
  }
  size_t bytes() const { return bytes_; }

 private:
  PinnedArray(void* address, size_t bytes) : address_(address), bytes_(bytes) {}

  void* address_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace layercake::kernels::cuda
