// The memory of a ring: where its slots lie, and the pages they lie in.
//
// Thread rule: RingLayout is pure; RingMemory belongs to one thread at a time (its bytes are shared
// under the rules of the channel).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/executor.h"
#include "kernels/device.h"
#include "transport/channel.h"

namespace layercake::transport {

// Slots in whole pages behind `control_bytes`, plan lane first.
class RingLayout {
 public:
  static constexpr size_t kPageBytes = 4096;

  // `geometry` is checked here too (ValidateGeometry).
  static absl::StatusOr<RingLayout> Create(const ChannelGeometry& geometry, size_t control_bytes);

  size_t total_bytes() const { return total_bytes_; }
  // The slot within a ring that starts at `base`; `slot` is below the lane's count.
  kernels::Buffer Slot(std::byte* base, Lane lane, uint32_t slot) const;

 private:
  struct LaneLayout {
    size_t offset = 0;
    size_t stride = 0;
    size_t slot_bytes = 0;
  };
  std::array<LaneLayout, kLaneCount> lanes_;
  size_t total_bytes_ = 0;
};

// Makes host pages known to a device (cudaHostRegister in a CUDA build); returns what undoes it.
// Empty: plain memory.
using RegisterHostMemory =
    absl::AnyInvocable<absl::StatusOr<base::Task>(absl::Span<std::byte>) const>;

// Owns one mapping and its registration.
class RingMemory {
 public:
  RingMemory() = default;
  RingMemory(RingMemory&& other) noexcept { *this = std::move(other); }
  RingMemory& operator=(RingMemory&& other) noexcept;
  ~RingMemory();

  // Zeroed pages of this process. ResourceExhausted, naming the bytes, when there are not enough.
  static absl::StatusOr<RingMemory> Allocate(size_t bytes,
                                             const RegisterHostMemory& register_memory);
  // Pages of `fd`, shared with whoever maps it.
  static absl::StatusOr<RingMemory> MapShared(int fd, size_t bytes,
                                              const RegisterHostMemory& register_memory);

  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }

 private:
  static absl::StatusOr<RingMemory> Map(int fd, int flags, size_t bytes,
                                        const RegisterHostMemory& register_memory);

  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
  base::Task unregister_;
};

// ResourceExhausted, with both numbers, when `bytes` exceed what is there
// (base/available_memory.h). Taking more would end the process, not fail the call.
absl::Status CheckMemoryAvailable(uint64_t bytes);

}  // namespace layercake::transport
