// The envelope of every receiver's offer: what kind of channel, of which ring and sizes, the secret
// that proves a sender, and a body that only the kind reads.
//
// Thread rule: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/channel.h"

namespace layercake::transport {

using Secret = std::array<std::byte, 16>;

// 128 bits from the kernel.
Secret MakeSecret();
// In a time that does not depend on the contents.
bool SameSecret(const Secret& a, const Secret& b);

struct Offer {
  TransportKind kind = TransportKind::kLocal;
  RingId ring;
  ChannelGeometry geometry;
  Secret secret{};
  std::string body;
};

inline constexpr size_t kMaxOfferBytes = size_t{64} << 10;

// Layout, little-endian: magic u32 "LCO1", version u16, kind u8, zero u8, term u64, epoch u32,
// plan_slots, plan_slot_bytes, activation_slots, activation_slot_bytes u32, secret 16 bytes,
// body_bytes u32, body, crc32c u32 over everything before it. `body` fits kMaxOfferBytes.
std::string EncodeOffer(const Offer& offer);

// DataLoss: short, long, wrong magic or checksum, unknown kind, absurd geometry.
// FailedPrecondition: another version (both are in the message).
absl::StatusOr<Offer> DecodeOffer(absl::string_view bytes);

// Decodes an offer and compares it with what this end was told. InvalidArgument: an offer of
// another kind. FailedPrecondition: another ring or other sizes, with both in the message.
absl::StatusOr<Offer> CheckOffer(absl::string_view bytes, TransportKind kind,
                                 const ChannelOptions& options);

bool SameGeometry(const ChannelGeometry& a, const ChannelGeometry& b);

}  // namespace layercake::transport
