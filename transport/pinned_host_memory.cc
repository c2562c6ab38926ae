#include "transport/pinned_host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/posix_error.h"
#include "base/status_macros.h"
#include "transport/slot_ring.h"

namespace layercake::transport {

// A count is the number of entries ever pushed; entry n lies at n modulo slots. `waiting` says that
// the reader found nothing and wants the doorbell; it starts set, for a reader that never looked.
//
// Writer: publish the count, then look at `waiting`. Reader: set `waiting`, then look at the count.
// All four are sequentially consistent: one of the two always sees the other.
struct alignas(64) PinnedHostMemory::Counters {
  struct alignas(64) Queue {
    std::atomic<uint64_t> count;
    alignas(64) std::atomic<uint32_t> waiting;
  };
  Queue frames;
  Queue credits;
};

struct alignas(64) PinnedHostMemory::FrameEntry {
  std::array<std::byte, kFrameHeaderBytes> header;
  uint32_t slot;
};

// `waiting` as above.
struct alignas(64) PinnedHostMemory::SlotProgress {
  std::atomic<uint64_t> word;  // bytes in the low half, checksum in the high
  alignas(64) std::atomic<uint32_t> waiting;
};

namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");
static_assert(std::atomic<uint32_t>::is_always_lock_free, "shared between processes");

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

size_t CreditBytes(uint32_t slots) { return (slots * sizeof(uint32_t) + 63) / 64 * 64; }

// After the store of what the reader looks at.
bool TakeWaiting(std::atomic<uint32_t>& waiting) {
  if (waiting.load(std::memory_order_seq_cst) == 0) return false;
  return waiting.exchange(0, std::memory_order_seq_cst) != 0;
}

template <typename Queue>
bool Publish(Queue& queue, uint64_t count) {
  queue.count.store(count, std::memory_order_seq_cst);
  return TakeWaiting(queue.waiting);
}

PartProgress UnpackProgress(uint64_t word) {
  return {.bytes = static_cast<uint32_t>(word), .crc32c = static_cast<uint32_t>(word >> 32)};
}

// True when an entry after `popped` is there. DataLoss when more are than the queue can hold.
template <typename Queue>
absl::StatusOr<bool> LookOrWait(Queue& queue, uint64_t popped, uint32_t slots) {
  uint64_t count = queue.count.load(std::memory_order_seq_cst);
  if (count == popped) {
    queue.waiting.store(1, std::memory_order_seq_cst);
    count = queue.count.load(std::memory_order_seq_cst);
    if (count == popped) return false;
  }
  if (count - popped > slots) {
    return absl::DataLossError(absl::StrCat("the peer's counter stands at ", count,
                                            ", this end's at ", popped, ", with ", slots,
                                            " slots between them"));
  }
  return true;
}

}  // namespace

size_t PinnedHostMemory::ControlBytes(const ChannelGeometry& geometry) {
  size_t bytes = 0;  // at most 1,024 slots a lane: nothing wraps
  for (const Lane lane : {Lane::kPlan, Lane::kActivation}) {
    const uint32_t slots = LaneSlots(geometry, lane);
    bytes += sizeof(Counters) + slots * sizeof(FrameEntry) + CreditBytes(slots);
  }
  bytes += LaneSlots(geometry, Lane::kActivation) * sizeof(SlotProgress);
  return bytes;
}

PinnedHostMemory::PinnedHostMemory(base::UniqueFd memory_fd, const RingLayout& layout,
                                   RingMemory memory, const ChannelGeometry& geometry)
    : memory_fd_(std::move(memory_fd)), layout_(layout), memory_(std::move(memory)) {
  std::byte* at = memory_.base();
  for (const Lane lane : {Lane::kPlan, Lane::kActivation}) {
    LaneView& lane_view = view(lane);
    lane_view.slots = LaneSlots(geometry, lane);
    lane_view.counters = reinterpret_cast<Counters*>(at);
    at += sizeof(Counters);
    lane_view.frames = reinterpret_cast<FrameEntry*>(at);
    at += lane_view.slots * sizeof(FrameEntry);
    lane_view.credits = reinterpret_cast<uint32_t*>(at);
    at += CreditBytes(lane_view.slots);
  }
  progress_ = reinterpret_cast<SlotProgress*>(at);
}

absl::StatusOr<PinnedHostMemory> PinnedHostMemory::Create(
    const ChannelGeometry& geometry, const RegisterHostMemory& register_memory) {
  LC_ASSIGN_OR_RETURN(const RingLayout layout,
                      RingLayout::Create(geometry, ControlBytes(geometry)));
  const size_t bytes = layout.total_bytes();
  LC_RETURN_IF_ERROR(CheckMemoryAvailable(bytes));
  base::UniqueFd fd(memfd_create("layercake-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return base::PosixError("create shared memory for a ring", errno);
  if (fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    return absl::ResourceExhaustedError(absl::StrCat(
        base::PosixError(absl::StrCat("take ", bytes, " bytes of shared memory for a ring"), error)
            .message(),
        "; raise the memory or file-size limit of this process, or use fewer or smaller slots"));
  }
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return base::PosixError("seal the shared memory of a ring", errno);
  }
  LC_ASSIGN_OR_RETURN(RingMemory memory, RingMemory::MapShared(fd.get(), bytes, register_memory));
  PinnedHostMemory ring(std::move(fd), layout, std::move(memory), geometry);
  for (LaneView& lane_view : ring.views_) {
    new (lane_view.counters) Counters{};
    lane_view.counters->frames.waiting.store(1, std::memory_order_relaxed);
    lane_view.counters->credits.waiting.store(1, std::memory_order_relaxed);
  }
  for (uint32_t slot = 0; slot < geometry.activation_slots; ++slot) {
    new (&ring.progress_[slot]) SlotProgress{};
  }
  return ring;
}

absl::StatusOr<PinnedHostMemory> PinnedHostMemory::Open(base::UniqueFd memory_fd,
                                                        const ChannelGeometry& geometry,
                                                        const RegisterHostMemory& register_memory) {
  LC_ASSIGN_OR_RETURN(const RingLayout layout,
                      RingLayout::Create(geometry, ControlBytes(geometry)));
  const int seals = fcntl(memory_fd.get(), F_GET_SEALS);
  if (seals < 0) return base::PosixError("read the seals of a ring's shared memory", errno);
  if ((seals & kSeals) != kSeals) {
    return absl::FailedPreconditionError("the shared memory of a ring is not sealed");
  }
  struct stat found {};
  if (fstat(memory_fd.get(), &found) != 0) {
    return base::PosixError("read the size of a ring's shared memory", errno);
  }
  if (found.st_size < 0 || static_cast<size_t>(found.st_size) != layout.total_bytes()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the shared memory of a ring has ", found.st_size, " bytes, not ", layout.total_bytes()));
  }
  LC_ASSIGN_OR_RETURN(
      RingMemory memory,
      RingMemory::MapShared(memory_fd.get(), layout.total_bytes(), register_memory));
  return PinnedHostMemory(std::move(memory_fd), layout, std::move(memory), geometry);
}

kernels::Buffer PinnedHostMemory::Slot(Lane lane, uint32_t slot) const {
  return layout_.Slot(memory_.base(), lane, slot);
}

bool PinnedHostMemory::PushFrame(Lane lane, absl::Span<const std::byte> header, uint32_t slot) {
  LaneView& lane_view = view(lane);
  FrameEntry& entry = lane_view.frames[lane_view.pushed % lane_view.slots];
  std::memcpy(entry.header.data(), header.data(), entry.header.size());
  entry.slot = slot;
  return Publish(lane_view.counters->frames, ++lane_view.pushed);
}

absl::StatusOr<std::optional<PinnedHostMemory::Frame>> PinnedHostMemory::PopFrame(Lane lane) {
  LaneView& lane_view = view(lane);
  LC_ASSIGN_OR_RETURN(const bool there,
                      LookOrWait(lane_view.counters->frames, lane_view.popped, lane_view.slots));
  if (!there) return std::nullopt;
  const FrameEntry& entry = lane_view.frames[lane_view.popped++ % lane_view.slots];
  Frame frame;
  std::memcpy(frame.header.data(), entry.header.data(), frame.header.size());
  std::memcpy(&frame.slot, &entry.slot, sizeof(frame.slot));
  return frame;
}

bool PinnedHostMemory::PushProgress(uint32_t slot, const PartProgress& progress) {
  SlotProgress& shared = progress_[slot];
  shared.word.store(uint64_t{progress.crc32c} << 32 | progress.bytes, std::memory_order_seq_cst);
  return TakeWaiting(shared.waiting);
}

PartProgress PinnedHostMemory::ReadProgress(uint32_t slot, uint32_t seen_bytes) {
  SlotProgress& shared = progress_[slot];
  const PartProgress progress = UnpackProgress(shared.word.load(std::memory_order_seq_cst));
  if (progress.bytes > seen_bytes) return progress;
  shared.waiting.store(1, std::memory_order_seq_cst);
  return UnpackProgress(shared.word.load(std::memory_order_seq_cst));
}

bool PinnedHostMemory::PushCredit(Lane lane, uint32_t slot) {
  LaneView& lane_view = view(lane);
  lane_view.credits[lane_view.pushed % lane_view.slots] = slot;
  return Publish(lane_view.counters->credits, ++lane_view.pushed);
}

absl::StatusOr<std::optional<uint32_t>> PinnedHostMemory::PopCredit(Lane lane) {
  LaneView& lane_view = view(lane);
  LC_ASSIGN_OR_RETURN(const bool there,
                      LookOrWait(lane_view.counters->credits, lane_view.popped, lane_view.slots));
  if (!there) return std::nullopt;
  uint32_t slot = 0;
  std::memcpy(&slot, &lane_view.credits[lane_view.popped++ % lane_view.slots], sizeof(slot));
  return slot;
}

}  // namespace layercake::transport
