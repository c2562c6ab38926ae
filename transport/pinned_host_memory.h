// The shared memory of one pinned_host channel: a sealed memfd with the control words and slots of
// both lanes, the two queues per lane that move in it (frames one way, credits the other), and a
// word per activation slot for frames in parts (frame_parts.h).
//
// Each queue has one writer and one reader, in different processes. Every word that the peer writes
// is copied before it is checked and is checked before it is used.
// Thread rule: one end, one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/unique_fd.h"
#include "transport/frame.h"
#include "transport/frame_parts.h"
#include "transport/ring_memory.h"

namespace layercake::transport {

class PinnedHostMemory {
 public:
  struct Frame {
    std::array<std::byte, kFrameHeaderBytes> header{};  // as it came, unchecked
    uint32_t slot = 0;                                  // unchecked
  };

  // For the receiver. ResourceExhausted, naming the bytes, when the memory is not there; every page
  // is taken now, so that none is missing later.
  static absl::StatusOr<PinnedHostMemory> Create(const ChannelGeometry& geometry,
                                                 const RegisterHostMemory& register_memory);
  // For the sender. FailedPrecondition when the memfd is not sealed or has another size.
  static absl::StatusOr<PinnedHostMemory> Open(base::UniqueFd memory_fd,
                                               const ChannelGeometry& geometry,
                                               const RegisterHostMemory& register_memory);

  int fd() const { return memory_fd_.get(); }
  kernels::Buffer Slot(Lane lane, uint32_t slot) const;

  // Sender. True: the receiver asked for the doorbell.
  [[nodiscard]] bool PushFrame(Lane lane, absl::Span<const std::byte> header, uint32_t slot);
  // nullopt: none, and the doorbell is asked for. DataLoss: the receiver's counter is absurd.
  absl::StatusOr<std::optional<uint32_t>> PopCredit(Lane lane);
  // The word of an activation slot. Before PushFrame for a frame's first part.
  [[nodiscard]] bool PushProgress(uint32_t slot, const PartProgress& progress);

  // Receiver, likewise.
  absl::StatusOr<std::optional<Frame>> PopFrame(Lane lane);
  [[nodiscard]] bool PushCredit(Lane lane, uint32_t slot);
  // As it came. When it says no more than `seen_bytes`, the doorbell is asked for.
  PartProgress ReadProgress(uint32_t slot, uint32_t seen_bytes);

 private:
  struct Counters;
  struct SlotProgress;
  struct FrameEntry;
  // Where a lane's words lie, and how far this end has come in them.
  struct LaneView {
    uint32_t slots = 0;
    Counters* counters = nullptr;
    FrameEntry* frames = nullptr;  // (slots)
    uint32_t* credits = nullptr;   // (slots)
    uint64_t pushed = 0;
    uint64_t popped = 0;
  };

  PinnedHostMemory(base::UniqueFd memory_fd, const RingLayout& layout, RingMemory memory,
                   const ChannelGeometry& geometry);
  static size_t ControlBytes(const ChannelGeometry& geometry);
  LaneView& view(Lane lane) { return views_[static_cast<size_t>(lane)]; }

  base::UniqueFd memory_fd_;
  RingLayout layout_;
  RingMemory memory_;
  std::array<LaneView, kLaneCount> views_;
  SlotProgress* progress_ = nullptr;  // (activation slots)
};

}  // namespace layercake::transport
