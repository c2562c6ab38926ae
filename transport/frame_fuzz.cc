// libFuzzer target: everything that a peer's bytes reach before they are trusted. Each input is
// tried as it is, and again with its checksum made right, so that the checks behind the checksum
// are reached too.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "transport/crc32c.h"
#include "transport/frame.h"
#include "transport/little_endian.h"
#include "transport/offer.h"
#include "transport/pinned_host_socket.h"
#include "transport/slot_ring.h"

namespace layercake::transport {
namespace {

constexpr size_t kSumBytes = 4;

void Require(bool condition) {
  if (!condition) std::abort();
}

// The last four of the first `bytes` bytes become the sum of those before them.
std::string WithSum(absl::string_view input, size_t bytes) {
  std::string text(input.substr(0, bytes));
  if (text.size() < kSumBytes) return text;
  auto* const at = reinterpret_cast<std::byte*>(text.data());
  const size_t summed = text.size() - kSumBytes;
  StoreLittleEndian(at + summed, Crc32c(absl::MakeConstSpan(at, summed)));
  return text;
}

void TryFrame(absl::string_view input) {
  const auto* const at = reinterpret_cast<const std::byte*>(input.data());
  const absl::StatusOr<FrameHeader> header =
      DecodeFrameHeader(absl::MakeConstSpan(at, input.size()));
  if (!header.ok()) return;
  const auto again = EncodeFrameHeader(*header);
  Require(std::equal(again.begin(), again.end(), at));
  const ChannelGeometry geometry = {.plan_slots = 2,
                                    .plan_slot_bytes = 4096,
                                    .activation_slots = 2,
                                    .activation_slot_bytes = 1 << 20};
  ReceiverRing ring(header->ring, geometry);
  const absl::Status accepted =
      ring.Accept(header->lane, static_cast<uint32_t>(header->step), *header);
  if (accepted.ok()) {
    Require(header->sequence == 0);
    Require(header->payload_bytes <= LaneSlotBytes(geometry, header->lane));
  }
}

void TryOffer(absl::string_view input) {
  const absl::StatusOr<Offer> offer = DecodeOffer(input);
  if (!offer.ok()) return;
  Require(ValidateGeometry(offer->geometry).ok());
  // The unused byte behind the kind alone may differ.
  const absl::StatusOr<Offer> again = DecodeOffer(EncodeOffer(*offer));
  Require(again.ok() && again->body == offer->body && again->ring == offer->ring);
}

void TryHandshake(absl::string_view input) {
  const absl::StatusOr<PinnedHello> hello = DecodePinnedHello(input);
  if (hello.ok()) Require(EncodePinnedHello(*hello) == input);
  const absl::StatusOr<PinnedAnswer> answer = DecodePinnedAnswer(input);
  if (answer.ok()) Require(answer->reason.size() <= input.size());
}

}  // namespace
}  // namespace layercake::transport

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace layercake::transport;  // NOLINT: a C entry point
  const absl::string_view input(reinterpret_cast<const char*>(bytes), size);
  TryFrame(input);
  TryFrame(WithSum(input, kFrameHeaderBytes));
  TryOffer(input);
  TryOffer(WithSum(input, input.size()));
  TryHandshake(input);
  return 0;
}
