// Moves rows between a block of a device and the slots of channels, every copy being work of the
// device: what a step does with its activation, and nothing else. For tests and benchmarks.
//
// Thread rule: the channels' executor's thread, where the device's completions come too. Outlives
// the work: destroy it when idle().
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "transport/channel.h"

namespace layercake::transport {

class RowsMover {
 public:
  // `block` is memory of `device`. `in_parts`: as far as the channel takes parts. `wake` runs when
  // a copy ended.
  RowsMover(kernels::Device& device, kernels::Buffer block, bool in_parts,
            std::function<void()> wake)
      : device_(device), block_(block), in_parts_(in_parts), wake_(std::move(wake)) {}

  // Begins to send the first `bytes` bytes of the block. ResourceExhausted: no slot is free.
  absl::Status Send(ChannelSender& sender, uint32_t bytes);
  // Takes what is there of the next frame. True when all of it lies in the block and its slot was
  // released.
  absl::StatusOr<bool> Receive(ChannelReceiver& receiver);

  bool idle() const { return copies_ == 0; }
  // Of the copies and of what was committed after them.
  const absl::Status& status() const { return status_; }

 private:
  void CopyOut(ChannelSender& sender, const SendSlot& slot, uint32_t first, uint32_t end,
               uint32_t all);
  void CopyIn(uint32_t first, uint32_t end);
  void OnCopied(const absl::Status& status);

  kernels::Device& device_;
  const kernels::Buffer block_;
  const bool in_parts_;
  const std::function<void()> wake_;
  absl::Status status_;
  int copies_ = 0;  // under way
  int copies_in_ = 0;
  std::optional<ReceivedFrame> frame_;
  uint32_t read_bytes_ = 0;
  bool whole_ = false;
};

}  // namespace layercake::transport
