// Zeroed, page-aligned host memory that says no instead of dying.
#pragma once

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace layercake::kernels {

// One anonymous mapping. Move-only; freed with its owner.
class HostMemory {
 public:
  HostMemory() = default;
  // Every page is present and zero on return, so that what was granted here is never refused
  // later. `purpose` is for the message: ResourceExhausted with both sizes when the machine has
  // not that much free.
  static absl::StatusOr<HostMemory> Allocate(size_t bytes, absl::string_view purpose);

  HostMemory(HostMemory&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  HostMemory& operator=(HostMemory&& other) noexcept;
  ~HostMemory();

  std::byte* address() const { return address_; }
  size_t bytes() const { return bytes_; }

 private:
  HostMemory(std::byte* address, size_t bytes) : address_(address), bytes_(bytes) {}
  std::byte* address_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace layercake::kernels
