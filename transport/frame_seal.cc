#include "transport/frame_seal.h"

#include "absl/strings/str_format.h"
#include "transport/crc32c.h"

namespace layercake::transport {

SealedFrame SealFrame(FrameHeader header, const kernels::Buffer& checked, FrameTap* tap) {
  header.payload_crc32c = Crc32c(absl::MakeConstSpan(checked.address, checked.bytes));
  SealedFrame sealed;
  sealed.header = EncodeFrameHeader(header);
  sealed.payload = checked;
  sealed.payload_crc32c = header.payload_crc32c;
  if (tap != nullptr) sealed.verdict = tap->OnFrame(absl::MakeSpan(sealed.header), sealed.payload);
  return sealed;
}

absl::Status CheckPayload(const FrameHeader& header, const kernels::Buffer& checked) {
  const uint32_t sum = Crc32c(absl::MakeConstSpan(checked.address, checked.bytes));
  if (sum == header.payload_crc32c) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "refuse frame %d of the %s lane: the checksum of its %d bytes is %#010x, its header says "
      "%#010x",
      header.sequence, LaneName(header.lane), checked.bytes, sum, header.payload_crc32c));
}

}  // namespace layercake::transport
