// Moves rows between a block of a device and the slots of channels, every copy being work of the
// device: what a step does with its activation, and nothing else. For tests and benchmarks.
//
// Thread rule: the channels' executor's thread, where the device's completions come too. Outlives
// the work: destroy it when idle().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "transport/channel.h"
#include "transport/channel_rig.h"

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

// A device on the loop of one end, a block of its memory, and the mover between that and the
// channels of the end. Made and destroyed from the test's thread, before and after the channels'
// use; the rest on the end's.
class MovingEnd {
 public:
  using MakeDevice =
      std::function<absl::StatusOr<std::unique_ptr<kernels::Device>>(base::Executor& on_done)>;

  static absl::StatusOr<std::unique_ptr<MovingEnd>> Create(ChannelEnd& end, const MakeDevice& make,
                                                           uint32_t bytes, bool in_parts);
  ~MovingEnd();  // waits for the copies

  RowsMover& mover() { return *mover_; }
  kernels::Buffer block() const { return memory_->buffer(); }

 private:
  explicit MovingEnd(ChannelEnd& end) : end_(end) {}
  absl::Status Make(const MakeDevice& make, uint32_t bytes, bool in_parts);

  ChannelEnd& end_;
  absl::AnyInvocable<void()> wake_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<kernels::DeviceMemory> memory_;
  std::unique_ptr<RowsMover> mover_;
};

}  // namespace layercake::transport
