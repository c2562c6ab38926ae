// The activation slots of a cuda_ipc channel: a ring in the receiver's device memory that the
// sender maps, and what the receiver says of it over the control path.
//
// The ring ends in a stamp, random per ring, which the sender reads back through its mapping: a
// driver that answers for a freed block with an older mapping is found out before a row is sent.
// Thread rule: one end, one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/peer_memory.h"
#include "transport/channel.h"
#include "transport/offer.h"

namespace layercake::transport {

class DeviceSlots {
 public:
  static constexpr size_t kAlignment = 256;

  // Host memory for the sections of one slot, at the side of each device slot: whole pages that
  // hold the sections of every activation of 48 floats a row and more (6 bytes a row,
  // stage_worker/activation_frame.h).
  static uint32_t SectionBytes(uint32_t activation_slot_bytes);
  // The geometry of the host memory beside a ring of `geometry`.
  static ChannelGeometry HostGeometry(const ChannelGeometry& geometry);

  // For the receiver. `memory` outlives the slots; `geometry` is valid (ValidateGeometry).
  static absl::StatusOr<DeviceSlots> Create(kernels::PeerMemory& memory,
                                            const ChannelGeometry& geometry);
  // For the sender. `description` came over a socket. DataLoss: it is none. FailedPrecondition: a
  // ring of another size, or a mapping of another ring. Else PeerMemory's error, with the device.
  static absl::StatusOr<DeviceSlots> Open(kernels::PeerMemory& memory,
                                          const ChannelGeometry& geometry,
                                          absl::string_view description);

  // For the sender alone: it opens the ring. At most 1,000 bytes.
  const std::string& description() const { return description_; }
  // `slot` is below activation_slots.
  kernels::Buffer Slot(uint32_t slot) const;

 private:
  DeviceSlots() = default;

  std::unique_ptr<kernels::DeviceMemory> memory_;
  std::string description_;
  size_t stride_ = 0;
  size_t slot_bytes_ = 0;
};

}  // namespace layercake::transport
