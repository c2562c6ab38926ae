// A one-way link between neighbouring stages: a ring of slots owned and registered at start.
//
//   sender                                   receiver
//     Acquire(lane) -> slot                    Poll(lane) -> frame
//     write slot.memory                        read frame.payload
//     Commit(slot, header)   --- frame --->    Release(frame.slot)
//     (credit back)          <-- credit ---
//
// Right: several slots acquired, committed in the order acquired; several frames polled, released
// in any order (the credit of a slot returns when it is released).
// Wrong: touching slot.memory after Commit, or frame.payload after Release.
//
// A long frame may go in parts, so that the receiver takes its start while its end is still being
// written (CommitPart, PollBegun; frame_parts.h says how). Who never asks for parts sees whole
// frames.
//
// Nothing here blocks. `on_ready` (ChannelContext) runs on the executor's thread when a call that
// had no result may have one now: a frame, a credit, the connection, or an error. It may be
// spurious and it may cover several events: call until empty.
// Slots lie in host memory, except the activation slots of cuda_ipc ("device slots"): these lie on
// the receiver's device, hold what follows a payload's sections, and are written and read by copies
// of a device that are complete before Commit and before Release.
//
// The first fatal error is latched: status() keeps it and every later call returns it.
// Thread rule: everything on the executor's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/executor.h"
#include "base/fd_watcher.h"
#include "kernels/device.h"
#include "kernels/peer_memory.h"
#include "transport/frame.h"

namespace layercake::transport {

enum class TransportKind : uint8_t { kLocal = 1, kPinnedHost = 2, kUcx = 3, kCudaIpc = 4 };
// "local", "pinned_host", "ucx", "cuda_ipc".
absl::string_view TransportKindName(TransportKind kind);
absl::StatusOr<TransportKind> ParseTransportKind(absl::string_view name);

// Sizes of a ring; both ends get the same from the coordinator.
struct ChannelGeometry {
  uint32_t plan_slots = 0;
  uint32_t plan_slot_bytes = 0;
  uint32_t activation_slots = 0;
  uint32_t activation_slot_bytes = 0;
};
// InvalidArgument, naming the value, when a number is zero or absurd (a slot over 1 GiB, over 1,024
// slots, a ring over 64 GiB).
absl::Status ValidateGeometry(const ChannelGeometry& geometry);

struct ChannelOptions {
  RingId ring;
  ChannelGeometry geometry;
  std::string peer;  // for messages: "stage 2 (host b, cpu)"
};

// Where the faults of a test enter (faulty_channel.h): sees every frame of a sender after it was
// sealed with its checksums and before it is published. Executor's thread.
class FrameTap {
 public:
  enum class Verdict { kSend, kDrop, kSendTwice };
  virtual ~FrameTap() = default;
  // May change the bytes of header and payload (of a device slot: of the sections). Shortening
  // `payload` shortens what is sent where the kind sends bytes (ucx); elsewhere only the header
  // says how long a payload is.
  virtual Verdict OnFrame(absl::Span<std::byte> header, kernels::Buffer& payload) = 0;
};

// What a channel runs on. Everything outlives the channel.
struct ChannelContext {
  base::Executor* executor = nullptr;
  base::FdWatcher* watcher = nullptr;
  // Never runs inside a call of the channel. It may destroy the channel.
  absl::AnyInvocable<void()> on_ready;
  FrameTap* tap = nullptr;  // null outside tests
};

struct SendSlot {
  Lane lane = Lane::kPlan;
  uint32_t index = 0;
  kernels::Buffer memory;  // the whole slot
  // Of a device slot: host memory for the sections, which then do not stand at memory's start.
  kernels::Buffer section = {};
};

// What the sender says of a frame; the channel fills in ring, sequence and checksum.
struct OutgoingFrame {
  FrameKind kind = FrameKind::kPlan;
  uint64_t step = 0;
  uint32_t section_bytes = 0;
  uint32_t payload_bytes = 0;
  // The low 32 bits of the sender's clock in microseconds, for a receiver on the same host; 0: not
  // said. Passed on as it is.
  uint32_t sent_us = 0;
};

struct ReceivedFrame {
  FrameHeader header;
  uint32_t slot = 0;
  kernels::Buffer payload;  // header.payload_bytes; of a device slot: without the sections
  // Of a device slot alone: header.section_bytes of host memory.
  kernels::Buffer section = {};

  // The sections, in host memory, and what follows them: of any slot.
  kernels::Buffer sections() const;
  kernels::Buffer body() const;
};

class ChannelSender {
 public:
  virtual ~ChannelSender() = default;
  virtual TransportKind kind() const = 0;
  // True once the receiver has accepted the connection; Acquire gives slots from then on.
  virtual bool connected() const = 0;
  // OK while usable. Unavailable: peer gone. DataLoss, FailedPrecondition: see frame.h.
  virtual absl::Status status() const = 0;
  // nullopt: not connected yet, or no credit.
  virtual absl::StatusOr<std::optional<SendSlot>> Acquire(Lane lane) = 0;
  // InvalidArgument when frame.payload_bytes does not fit the slot. Slots of one lane are
  // committed in the order acquired.
  virtual absl::Status Commit(const SendSlot& slot, const OutgoingFrame& frame) = 0;

  // How long the parts of a frame should be on activation slots; 0: parts are of no use here.
  virtual uint32_t part_bytes() const { return 0; }
  // The first `bytes` bytes of the payload are there, the sections among them. The first call
  // stands for Commit; each later call of the frame says more bytes, the last one
  // frame.payload_bytes. No other slot of the lane is committed in between. Channels of whole
  // frames wait for the last.
  virtual absl::Status CommitPart(const SendSlot& slot, const OutgoingFrame& frame,
                                  uint32_t bytes) {
    return bytes < frame.payload_bytes ? absl::OkStatus() : Commit(slot, frame);
  }
};

class ChannelReceiver {
 public:
  virtual ~ChannelReceiver() = default;
  virtual TransportKind kind() const = 0;
  // What the sender needs to connect. Contains a secret: control path only.
  virtual std::string offer() const = 0;
  virtual bool connected() const = 0;
  virtual absl::Status status() const = 0;
  // The next frame of the lane in order, or nullopt.
  virtual absl::StatusOr<std::optional<ReceivedFrame>> Poll(Lane lane) = 0;

  // As Poll, but a frame in parts comes as soon as its first part is there, which is checked. The
  // next frame comes when all of this one was there and checked, and so does its Release.
  virtual absl::StatusOr<std::optional<ReceivedFrame>> PollBegun(Lane lane) { return Poll(lane); }
  // How many bytes of such a frame's payload are there, from its start; on_ready runs when there
  // are more than a call said that said nothing new. They may be read, and nothing that was made of
  // them may be used before CheckArrived.
  virtual absl::StatusOr<uint32_t> Arrived(const ReceivedFrame& frame) {
    return frame.header.payload_bytes;
  }
  // Checks all bytes that Arrived spoke of. DataLoss: they are not what the sender wrote.
  virtual absl::Status CheckArrived(const ReceivedFrame& frame) {
    static_cast<void>(frame);
    return absl::OkStatus();
  }

  virtual absl::Status Release(Lane lane, uint32_t slot) = 0;
};

// One process's means to make channels of one kind.
class ChannelFactory {
 public:
  virtual ~ChannelFactory() = default;
  virtual TransportKind kind() const = 0;
  // What moves bytes in and out of device slots; null for kinds without.
  virtual kernels::PeerMemory* peer_memory() const { return nullptr; }
  virtual absl::StatusOr<std::unique_ptr<ChannelReceiver>> CreateReceiver(
      const ChannelOptions& options, ChannelContext context) = 0;
  // `offer` came over the wire: it is checked. Returns at once; connected() says when it is done,
  // status() when it failed. The caller owns the deadline.
  virtual absl::StatusOr<std::unique_ptr<ChannelSender>> Connect(absl::string_view offer,
                                                                 const ChannelOptions& options,
                                                                 ChannelContext context) = 0;
};

}  // namespace layercake::transport
