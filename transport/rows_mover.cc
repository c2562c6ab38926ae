#include "transport/rows_mover.h"

#include <algorithm>

#include "base/status_macros.h"

namespace layercake::transport {
namespace {

constexpr Lane kLane = Lane::kActivation;

}  // namespace

absl::Status RowsMover::Send(ChannelSender& sender, uint32_t bytes) {
  LC_ASSIGN_OR_RETURN(const std::optional<SendSlot> slot, sender.Acquire(kLane));
  if (!slot.has_value()) return absl::ResourceExhaustedError("no slot is free");
  const uint32_t part = in_parts_ && sender.part_bytes() > 0 ? sender.part_bytes() : bytes;
  uint32_t first = 0;
  // Short frames stay whole, as in a step.
  while (bytes >= 2 * part && first + part < bytes) {
    CopyOut(sender, *slot, first, first + part, bytes);
    first += part;
  }
  CopyOut(sender, *slot, first, bytes, bytes);
  return absl::OkStatus();
}

void RowsMover::CopyOut(ChannelSender& sender, const SendSlot& slot, uint32_t first, uint32_t end,
                        uint32_t all) {
  ++copies_;
  const kernels::Buffer from = {block_.address + first, end - first, block_.space};
  device_.Submit(
      [this, from, to = slot.memory.address + first] {
        return device_.CopyOut(from, to, from.bytes);
      },
      [this, &sender, slot, first, end, all](absl::Status status) {
        --copies_;
        const OutgoingFrame frame = {.kind = FrameKind::kActivation, .payload_bytes = all};
        if (status.ok()) {
          status = first == 0 && end == all ? sender.Commit(slot, frame)
                                            : sender.CommitPart(slot, frame, end);
        }
        OnCopied(status);
      });
}

absl::StatusOr<bool> RowsMover::Receive(ChannelReceiver& receiver) {
  LC_RETURN_IF_ERROR(status_);
  if (!frame_.has_value()) {
    LC_ASSIGN_OR_RETURN(frame_, in_parts_ ? receiver.PollBegun(kLane) : receiver.Poll(kLane));
    if (!frame_.has_value()) return false;
    read_bytes_ = 0;
    whole_ = false;
  }
  while (!whole_) {
    LC_ASSIGN_OR_RETURN(const uint32_t there, receiver.Arrived(*frame_));
    if (there > read_bytes_) CopyIn(read_bytes_, there);
    LC_RETURN_IF_ERROR(receiver.CheckArrived(*frame_));
    whole_ = there == frame_->header.payload_bytes;
    if (there == std::exchange(read_bytes_, there) && !whole_) return false;
  }
  if (copies_in_ > 0) return false;
  LC_RETURN_IF_ERROR(receiver.Release(kLane, frame_->slot));
  frame_.reset();
  return true;
}

void RowsMover::CopyIn(uint32_t first, uint32_t end) {
  ++copies_;
  ++copies_in_;
  const kernels::Buffer to = {block_.address + first, end - first, block_.space};
  device_.Submit(
      [this, to, from = frame_->payload.address + first] {
        return device_.CopyIn(from, to, to.bytes);
      },
      [this](absl::Status status) {
        --copies_;
        --copies_in_;
        OnCopied(status);
      });
}

void RowsMover::OnCopied(const absl::Status& status) {
  status_.Update(status);
  wake_();
}

absl::StatusOr<std::unique_ptr<MovingEnd>> MovingEnd::Create(ChannelEnd& end,
                                                             const MakeDevice& make, uint32_t bytes,
                                                             bool in_parts) {
  std::unique_ptr<MovingEnd> moving(new MovingEnd(end));
  absl::Status made;
  end.Run([&] { made = moving->Make(make, bytes, in_parts); });
  if (!made.ok()) return made;
  return moving;
}

absl::Status MovingEnd::Make(const MakeDevice& make, uint32_t bytes, bool in_parts) {
  ChannelContext context = end_.context();
  wake_ = std::move(context.on_ready);
  LC_ASSIGN_OR_RETURN(device_, make(*context.executor));
  LC_ASSIGN_OR_RETURN(memory_, device_->Allocate(bytes));
  mover_ = std::make_unique<RowsMover>(*device_, memory_->buffer(), in_parts, [this] { wake_(); });
  return absl::OkStatus();
}

MovingEnd::~MovingEnd() {
  if (mover_ != nullptr) end_.Await([&] { return mover_->idle(); });
  end_.Run([&] {
    mover_.reset();
    memory_.reset();
    device_.reset();
  });
}

}  // namespace layercake::transport
