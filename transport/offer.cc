#include "transport/offer.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "transport/crc32c.h"
#include "transport/little_endian.h"

namespace layercake::transport {
namespace {

constexpr uint32_t kMagic = 0x314f434c;  // "LCO1"
constexpr uint16_t kVersion = 1;

constexpr size_t kVersionAt = 4;
constexpr size_t kKindAt = 6;
constexpr size_t kTermAt = 8;
constexpr size_t kEpochAt = 16;
constexpr size_t kGeometryAt = 20;
constexpr size_t kSecretAt = 36;
constexpr size_t kBodyBytesAt = 52;
constexpr size_t kBodyAt = 56;
constexpr size_t kCrcBytes = 4;

absl::Span<const std::byte> AsBytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

absl::Status Refuse(absl::string_view why) {
  return absl::DataLossError(absl::StrCat("refuse the offer of a channel: ", why));
}

std::string GeometryName(const ChannelGeometry& g) {
  return absl::StrCat(g.plan_slots, " x ", g.plan_slot_bytes, " + ", g.activation_slots, " x ",
                      g.activation_slot_bytes, " bytes");
}

}  // namespace

Secret MakeSecret() {
  Secret secret;
  StoreLittleEndian(secret.data(), base::EntropySeed());
  StoreLittleEndian(secret.data() + 8, base::EntropySeed());
  return secret;
}

bool SameSecret(const Secret& a, const Secret& b) {
  std::byte difference{};
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{};
}

bool SameGeometry(const ChannelGeometry& a, const ChannelGeometry& b) {
  return a.plan_slots == b.plan_slots && a.plan_slot_bytes == b.plan_slot_bytes &&
         a.activation_slots == b.activation_slots &&
         a.activation_slot_bytes == b.activation_slot_bytes;
}

std::string EncodeOffer(const Offer& offer) {
  std::string text(kBodyAt, '\0');
  auto* const at = reinterpret_cast<std::byte*>(text.data());
  StoreLittleEndian(at, kMagic);
  StoreLittleEndian(at + kVersionAt, kVersion);
  StoreLittleEndian(at + kKindAt, static_cast<uint8_t>(offer.kind));
  StoreLittleEndian(at + kTermAt, offer.ring.term);
  StoreLittleEndian(at + kEpochAt, offer.ring.epoch);
  StoreLittleEndian(at + kGeometryAt, offer.geometry.plan_slots);
  StoreLittleEndian(at + kGeometryAt + 4, offer.geometry.plan_slot_bytes);
  StoreLittleEndian(at + kGeometryAt + 8, offer.geometry.activation_slots);
  StoreLittleEndian(at + kGeometryAt + 12, offer.geometry.activation_slot_bytes);
  std::memcpy(at + kSecretAt, offer.secret.data(), offer.secret.size());
  StoreLittleEndian(at + kBodyBytesAt, static_cast<uint32_t>(offer.body.size()));
  text += offer.body;
  std::array<std::byte, kCrcBytes> sum;
  StoreLittleEndian(sum.data(), Crc32c(AsBytes(text)));
  text.append(reinterpret_cast<const char*>(sum.data()), sum.size());
  return text;
}

absl::StatusOr<Offer> DecodeOffer(absl::string_view bytes) {
  if (bytes.size() < kBodyAt + kCrcBytes || bytes.size() > kMaxOfferBytes) {
    return Refuse(absl::StrCat("it has ", bytes.size(), " bytes"));
  }
  const std::byte* const at = AsBytes(bytes).data();
  if (LoadLittleEndian<uint32_t>(at) != kMagic) return Refuse("it is not one");
  const auto version = LoadLittleEndian<uint16_t>(at + kVersionAt);
  if (version != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the peer offers a channel of version ",
                                                      version, ", this worker knows ", kVersion,
                                                      "; run the same release on every host"));
  }
  const size_t summed = bytes.size() - kCrcBytes;
  if (LoadLittleEndian<uint32_t>(at + summed) != Crc32c(AsBytes(bytes.substr(0, summed)))) {
    return Refuse("its checksum is wrong");
  }
  const auto kind = LoadLittleEndian<uint8_t>(at + kKindAt);
  if (kind < static_cast<uint8_t>(TransportKind::kLocal) ||
      kind > static_cast<uint8_t>(TransportKind::kCudaIpc)) {
    return Refuse(absl::StrCat("unknown kind ", kind));
  }
  if (LoadLittleEndian<uint32_t>(at + kBodyBytesAt) != summed - kBodyAt) {
    return Refuse("the length of its body is wrong");
  }
  Offer offer;
  offer.kind = static_cast<TransportKind>(kind);
  offer.ring.term = LoadLittleEndian<uint64_t>(at + kTermAt);
  offer.ring.epoch = LoadLittleEndian<uint32_t>(at + kEpochAt);
  offer.geometry.plan_slots = LoadLittleEndian<uint32_t>(at + kGeometryAt);
  offer.geometry.plan_slot_bytes = LoadLittleEndian<uint32_t>(at + kGeometryAt + 4);
  offer.geometry.activation_slots = LoadLittleEndian<uint32_t>(at + kGeometryAt + 8);
  offer.geometry.activation_slot_bytes = LoadLittleEndian<uint32_t>(at + kGeometryAt + 12);
  if (const absl::Status valid = ValidateGeometry(offer.geometry); !valid.ok()) {
    return Refuse(valid.message());
  }
  std::memcpy(offer.secret.data(), at + kSecretAt, offer.secret.size());
  offer.body = std::string(bytes.substr(kBodyAt, summed - kBodyAt));
  return offer;
}

absl::StatusOr<Offer> CheckOffer(absl::string_view bytes, TransportKind kind,
                                 const ChannelOptions& options) {
  LC_ASSIGN_OR_RETURN(Offer offer, DecodeOffer(bytes));
  if (offer.kind != kind) {
    return absl::InvalidArgumentError(
        absl::StrCat("connect to ", options.peer, ": its offer is of ",
                     TransportKindName(offer.kind), ", not of ", TransportKindName(kind)));
  }
  if (offer.ring != options.ring) {
    return absl::FailedPreconditionError(
        absl::StrCat("connect to ", options.peer, ": its offer is of term ", offer.ring.term,
                     " epoch ", offer.ring.epoch, ", this end is at term ", options.ring.term,
                     " epoch ", options.ring.epoch));
  }
  if (!SameGeometry(offer.geometry, options.geometry)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "connect to ", options.peer, ": its ring has slots of ", GeometryName(offer.geometry),
        ", this end expects ", GeometryName(options.geometry)));
  }
  return offer;
}

}  // namespace layercake::transport
