// Puts the checksums on a frame that leaves and tests them on one that came.
//
// Thread rule: pure functions (the tap apart); the thread that owns the slot.
#pragma once

#include <array>
#include <cstddef>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "transport/channel.h"
#include "transport/frame.h"

namespace layercake::transport {

struct SealedFrame {
  std::array<std::byte, kFrameHeaderBytes> header{};
  kernels::Buffer payload;  // header.payload_bytes of the slot, unless a tap shortened it
  FrameTap::Verdict verdict = FrameTap::Verdict::kSend;
};

// `slot` is host memory of at least header.payload_bytes bytes; `tap` may be null.
SealedFrame SealFrame(FrameHeader header, const kernels::Buffer& slot, FrameTap* tap);

// DataLoss, naming the frame, when the payload's checksum is not the header's.
absl::Status CheckPayload(const FrameHeader& header, const kernels::Buffer& payload);

}  // namespace layercake::transport
