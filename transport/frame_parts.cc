#include "transport/frame_parts.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "transport/crc32c.h"

namespace layercake::transport {
namespace {

uint32_t Extend(const PartProgress& from, const std::byte* payload, uint32_t to) {
  return ExtendCrc32c(from.crc32c,
                      absl::MakeConstSpan(payload + from.bytes, size_t{to} - from.bytes));
}

}  // namespace

DepartingFrame::DepartingFrame(uint32_t slot, const FrameHeader& header, const std::byte* payload,
                               const PartProgress& first)
    : slot_(slot), payload_bytes_(header.payload_bytes), payload_(payload), progress_(first) {}

absl::Status DepartingFrame::Advance(uint32_t bytes) {
  if (bytes <= progress_.bytes || bytes > payload_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat("commit the first ", bytes,
                                                   " bytes of a payload of ", payload_bytes_,
                                                   ", of which ", progress_.bytes, " were sent"));
  }
  progress_ = {.bytes = bytes, .crc32c = Extend(progress_, payload_, bytes)};
  return absl::OkStatus();
}

ArrivingFrame::ArrivingFrame(const FrameHeader& header, const std::byte* payload)
    : header_(header),
      payload_(payload),
      arrived_{.bytes = header.first_part_bytes, .crc32c = header.payload_crc32c},
      checked_(arrived_) {}

absl::Status ArrivingFrame::Advance(const PartProgress& progress) {
  if (progress.bytes < arrived_.bytes || progress.bytes > header_.payload_bytes) {
    return absl::DataLossError(absl::StrCat("refuse frame ", header_.sequence, " of the ",
                                            LaneName(header_.lane), " lane: of its ",
                                            header_.payload_bytes, " bytes ", arrived_.bytes,
                                            " were there, now the sender says ", progress.bytes));
  }
  arrived_ = progress;
  return absl::OkStatus();
}

absl::Status ArrivingFrame::Check() {
  const uint32_t sum = Extend(checked_, payload_, arrived_.bytes);
  if (sum != arrived_.crc32c) {
    return absl::DataLossError(absl::StrFormat(
        "refuse frame %d of the %s lane: the checksum of its first %d bytes is %#010x, the sender "
        "says %#010x",
        header_.sequence, LaneName(header_.lane), arrived_.bytes, sum, arrived_.crc32c));
  }
  checked_ = arrived_;
  return absl::OkStatus();
}

}  // namespace layercake::transport
