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
  kernels::Buffer payload;  // what was checked, unless a tap shortened it
  uint32_t payload_crc32c = 0;
  FrameTap::Verdict verdict = FrameTap::Verdict::kSend;
};

// `checked` is what the checksum covers, in host memory (frame.h); `tap` may be null.
SealedFrame SealFrame(FrameHeader header, const kernels::Buffer& checked, FrameTap* tap);

// DataLoss, naming the frame, when the checksum of `checked` is not the header's.
absl::Status CheckPayload(const FrameHeader& header, const kernels::Buffer& checked);

}  // namespace layercake::transport
