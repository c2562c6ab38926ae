#include "transport/frame.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "transport/crc32c.h"
#include "transport/little_endian.h"

namespace layercake::transport {
namespace {

constexpr uint32_t kMagic = 0x3146434c;  // "LCF1"
constexpr uint16_t kVersion = 1;

constexpr size_t kMagicAt = 0;
constexpr size_t kVersionAt = 4;
constexpr size_t kHeaderBytesAt = 6;
constexpr size_t kKindAt = 8;
constexpr size_t kLaneAt = 9;
constexpr size_t kFlagsAt = 10;
constexpr size_t kEpochAt = 12;
constexpr size_t kTermAt = 16;
constexpr size_t kSequenceAt = 24;
constexpr size_t kStepAt = 32;
constexpr size_t kSectionBytesAt = 40;
constexpr size_t kPayloadBytesAt = 44;
constexpr size_t kPayloadCrcAt = 48;
constexpr size_t kFirstPartBytesAt = 52;
constexpr size_t kSentAt = 56;
constexpr size_t kHeaderCrcAt = 60;

absl::Status Refuse(absl::string_view why) {
  return absl::DataLossError(absl::StrCat("refuse a frame header: ", why));
}

}  // namespace

absl::string_view LaneName(Lane lane) { return lane == Lane::kPlan ? "plan" : "activation"; }

std::array<std::byte, kFrameHeaderBytes> EncodeFrameHeader(const FrameHeader& header) {
  std::array<std::byte, kFrameHeaderBytes> bytes{};
  std::byte* const at = bytes.data();
  StoreLittleEndian(at + kMagicAt, kMagic);
  StoreLittleEndian(at + kVersionAt, kVersion);
  StoreLittleEndian(at + kHeaderBytesAt, static_cast<uint16_t>(kFrameHeaderBytes));
  StoreLittleEndian(at + kKindAt, static_cast<uint8_t>(header.kind));
  StoreLittleEndian(at + kLaneAt, static_cast<uint8_t>(header.lane));
  StoreLittleEndian(at + kEpochAt, header.ring.epoch);
  StoreLittleEndian(at + kTermAt, header.ring.term);
  StoreLittleEndian(at + kSequenceAt, header.sequence);
  StoreLittleEndian(at + kStepAt, header.step);
  StoreLittleEndian(at + kSectionBytesAt, header.section_bytes);
  StoreLittleEndian(at + kPayloadBytesAt, header.payload_bytes);
  StoreLittleEndian(at + kPayloadCrcAt, header.payload_crc32c);
  StoreLittleEndian(at + kFirstPartBytesAt, header.first_part_bytes);
  StoreLittleEndian(at + kSentAt, header.sent_us);
  StoreLittleEndian(at + kHeaderCrcAt, Crc32c(absl::MakeSpan(bytes).subspan(0, kHeaderCrcAt)));
  return bytes;
}

absl::StatusOr<FrameHeader> DecodeFrameHeader(absl::Span<const std::byte> bytes) {
  if (bytes.size() < kFrameHeaderBytes) {
    return Refuse(absl::StrCat("it has ", bytes.size(), " bytes of ", kFrameHeaderBytes));
  }
  const std::byte* const at = bytes.data();
  const auto magic = LoadLittleEndian<uint32_t>(at + kMagicAt);
  if (magic != kMagic) return Refuse(absl::StrFormat("its first word is %#010x", magic));
  // Before the checksum: another version may keep its checksum elsewhere.
  const auto version = LoadLittleEndian<uint16_t>(at + kVersionAt);
  if (version != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the peer sends frames of version ", version,
                                                      ", this worker reads version ", kVersion,
                                                      "; run the same release on every host"));
  }
  const auto sum = LoadLittleEndian<uint32_t>(at + kHeaderCrcAt);
  if (sum != Crc32c(bytes.subspan(0, kHeaderCrcAt))) return Refuse("its checksum is wrong");
  const auto header_bytes = LoadLittleEndian<uint16_t>(at + kHeaderBytesAt);
  if (header_bytes != kFrameHeaderBytes) {
    return Refuse(absl::StrCat("it says that it has ", header_bytes, " bytes"));
  }
  const auto kind = LoadLittleEndian<uint8_t>(at + kKindAt);
  if (kind < static_cast<uint8_t>(FrameKind::kPlan) ||
      kind > static_cast<uint8_t>(FrameKind::kFeedback)) {
    return Refuse(absl::StrCat("unknown kind ", kind));
  }
  const auto lane = LoadLittleEndian<uint8_t>(at + kLaneAt);
  if (lane >= kLaneCount) return Refuse(absl::StrCat("unknown lane ", lane));
  if (LoadLittleEndian<uint16_t>(at + kFlagsAt) != 0) return Refuse("a flag is set");
  FrameHeader header;
  header.kind = static_cast<FrameKind>(kind);
  header.lane = static_cast<Lane>(lane);
  header.ring.epoch = LoadLittleEndian<uint32_t>(at + kEpochAt);
  header.ring.term = LoadLittleEndian<uint64_t>(at + kTermAt);
  header.sequence = LoadLittleEndian<uint64_t>(at + kSequenceAt);
  header.step = LoadLittleEndian<uint64_t>(at + kStepAt);
  header.section_bytes = LoadLittleEndian<uint32_t>(at + kSectionBytesAt);
  header.payload_bytes = LoadLittleEndian<uint32_t>(at + kPayloadBytesAt);
  header.payload_crc32c = LoadLittleEndian<uint32_t>(at + kPayloadCrcAt);
  header.first_part_bytes = LoadLittleEndian<uint32_t>(at + kFirstPartBytesAt);
  header.sent_us = LoadLittleEndian<uint32_t>(at + kSentAt);
  if (header.section_bytes > header.payload_bytes) {
    return Refuse(absl::StrCat("its sections have ", header.section_bytes,
                               " bytes, its whole payload ", header.payload_bytes));
  }
  if (header.first_part_bytes != 0 && (header.first_part_bytes >= header.payload_bytes ||
                                       header.first_part_bytes < header.section_bytes)) {
    return Refuse(absl::StrCat("its first part has ", header.first_part_bytes,
                               " bytes, its sections ", header.section_bytes,
                               ", its whole payload ", header.payload_bytes));
  }
  return header;
}

}  // namespace layercake::transport
