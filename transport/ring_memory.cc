#include "transport/ring_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/available_memory.h"
#include "base/checked_math.h"
#include "base/posix_error.h"
#include "base/status_macros.h"
#include "transport/slot_ring.h"

namespace layercake::transport {

absl::StatusOr<RingLayout> RingLayout::Create(const ChannelGeometry& geometry,
                                              size_t control_bytes) {
  LC_RETURN_IF_ERROR(ValidateGeometry(geometry));
  RingLayout layout;
  std::optional<uint64_t> end = base::CheckedAlignUp(control_bytes, kPageBytes);
  for (const Lane lane : {Lane::kPlan, Lane::kActivation}) {
    LaneLayout& lane_layout = layout.lanes_[static_cast<size_t>(lane)];
    const auto stride = base::CheckedAlignUp(LaneSlotBytes(geometry, lane), kPageBytes);
    const auto lane_bytes =
        stride ? base::CheckedMul(*stride, LaneSlots(geometry, lane)) : std::nullopt;
    if (!end || !lane_bytes) return absl::InvalidArgumentError("the size of a ring wraps");
    lane_layout = {.offset = *end, .stride = *stride, .slot_bytes = LaneSlotBytes(geometry, lane)};
    end = base::CheckedAdd(*end, *lane_bytes);
  }
  if (!end) return absl::InvalidArgumentError("the size of a ring wraps");
  layout.total_bytes_ = *end;
  return layout;
}

kernels::Buffer RingLayout::Slot(std::byte* base, Lane lane, uint32_t slot) const {
  const LaneLayout& layout = lanes_[static_cast<size_t>(lane)];
  return {.address = base + layout.offset + slot * layout.stride,
          .bytes = layout.slot_bytes,
          .space = kernels::MemorySpace::kHost};
}

RingMemory& RingMemory::operator=(RingMemory&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(unregister_, other.unregister_);
  return *this;
}

RingMemory::~RingMemory() {
  if (base_ == nullptr) return;
  if (unregister_) unregister_();
  munmap(base_, bytes_);
}

absl::StatusOr<RingMemory> RingMemory::Map(int fd, int flags, size_t bytes,
                                           const RegisterHostMemory& register_memory) {
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (base == MAP_FAILED) {
    return base::PosixError(absl::StrCat("map a ring of ", bytes, " bytes"), errno);
  }
  RingMemory memory;
  memory.base_ = static_cast<std::byte*>(base);
  memory.bytes_ = bytes;
  if (register_memory) {
    LC_ASSIGN_OR_RETURN(memory.unregister_,
                        register_memory(absl::MakeSpan(memory.base_, memory.bytes_)));
  }
  return memory;
}

absl::StatusOr<RingMemory> RingMemory::Allocate(size_t bytes,
                                                const RegisterHostMemory& register_memory) {
  LC_RETURN_IF_ERROR(CheckMemoryAvailable(bytes));
  return Map(-1, MAP_PRIVATE | MAP_ANONYMOUS, bytes, register_memory);
}

absl::StatusOr<RingMemory> RingMemory::MapShared(int fd, size_t bytes,
                                                 const RegisterHostMemory& register_memory) {
  return Map(fd, MAP_SHARED, bytes, register_memory);
}

absl::Status CheckMemoryAvailable(uint64_t bytes) {
  const std::optional<uint64_t> available = base::AvailableMemoryBytes();
  if (!available || bytes <= *available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("a ring of ", bytes, " bytes does not fit the ", *available,
                   " bytes of memory that are free; use fewer or smaller slots"));
}

}  // namespace layercake::transport
