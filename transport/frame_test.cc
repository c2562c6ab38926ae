#include "transport/frame.h"

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/crc32c.h"
#include "transport/little_endian.h"

namespace layercake::transport {
namespace {

using ::testing::HasSubstr;

constexpr size_t kCrcAt = 60;

FrameHeader Example() {
  return {.kind = FrameKind::kActivation,
          .lane = Lane::kActivation,
          .ring = {.term = 0x1122334455667788, .epoch = 0x99aabbcc},
          .sequence = 41,
          .step = 77,
          .section_bytes = 10,
          .payload_bytes = 1000,
          .payload_crc32c = 0xdeadbeef,
          .first_part_bytes = 0,
          .sent_us = 0x01020304};
}

using Bytes = std::array<std::byte, kFrameHeaderBytes>;

// With the checksum made right again.
Bytes Sealed(Bytes bytes) {
  StoreLittleEndian(bytes.data() + kCrcAt, Crc32c(absl::MakeSpan(bytes).first(kCrcAt)));
  return bytes;
}

TEST(Frame, SurvivesEncodingAndDecoding) {
  const FrameHeader in = Example();
  const absl::StatusOr<FrameHeader> out = DecodeFrameHeader(EncodeFrameHeader(in));
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ(out->kind, in.kind);
  EXPECT_EQ(out->lane, in.lane);
  EXPECT_EQ(out->ring, in.ring);
  EXPECT_EQ(out->sequence, in.sequence);
  EXPECT_EQ(out->step, in.step);
  EXPECT_EQ(out->section_bytes, in.section_bytes);
  EXPECT_EQ(out->payload_bytes, in.payload_bytes);
  EXPECT_EQ(out->payload_crc32c, in.payload_crc32c);
  EXPECT_EQ(out->first_part_bytes, in.first_part_bytes);
  EXPECT_EQ(out->sent_us, in.sent_us);
  FrameHeader in_parts = in;
  in_parts.first_part_bytes = 999;
  EXPECT_EQ(DecodeFrameHeader(EncodeFrameHeader(in_parts))->first_part_bytes, 999u);
}

TEST(Frame, KeepsItsLayout) {
  const Bytes bytes = EncodeFrameHeader(Example());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), 4), "LCF1");
  EXPECT_EQ(LoadLittleEndian<uint16_t>(bytes.data() + 4), 1);
  EXPECT_EQ(LoadLittleEndian<uint16_t>(bytes.data() + 6), 64);
  EXPECT_EQ(bytes[8], std::byte{2});
  EXPECT_EQ(bytes[9], std::byte{1});
  EXPECT_EQ(LoadLittleEndian<uint32_t>(bytes.data() + 12), 0x99aabbccu);
  EXPECT_EQ(LoadLittleEndian<uint64_t>(bytes.data() + 16), 0x1122334455667788u);
  EXPECT_EQ(LoadLittleEndian<uint64_t>(bytes.data() + 24), 41u);
  EXPECT_EQ(LoadLittleEndian<uint64_t>(bytes.data() + 32), 77u);
  EXPECT_EQ(LoadLittleEndian<uint32_t>(bytes.data() + 40), 10u);
  EXPECT_EQ(LoadLittleEndian<uint32_t>(bytes.data() + 44), 1000u);
  EXPECT_EQ(LoadLittleEndian<uint32_t>(bytes.data() + 48), 0xdeadbeefu);
  EXPECT_EQ(LoadLittleEndian<uint32_t>(bytes.data() + 52), 0u);
  EXPECT_EQ(LoadLittleEndian<uint32_t>(bytes.data() + 56), 0x01020304u);
}

TEST(Frame, RefusesEveryFlippedBitAndEveryShortHeader) {
  const Bytes good = EncodeFrameHeader(Example());
  for (size_t bit = 0; bit < 8 * kFrameHeaderBytes; ++bit) {
    Bytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    const absl::Status status = DecodeFrameHeader(bad).status();
    const bool in_version = bit / 8 == 4 || bit / 8 == 5;
    EXPECT_EQ(status.code(),
              in_version ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kDataLoss)
        << bit;
  }
  for (size_t bytes = 0; bytes < kFrameHeaderBytes; ++bytes) {
    EXPECT_TRUE(
        absl::IsDataLoss(DecodeFrameHeader(absl::MakeConstSpan(good).first(bytes)).status()));
  }
}

TEST(Frame, RefusesWellSummedNonsense) {
  struct Case {
    const char* name;
    size_t at;
    uint8_t value;
  };
  for (const Case& c : {Case{"kind 0", 8, 0}, Case{"kind 5", 8, 5}, Case{"lane 2", 9, 2},
                        Case{"a flag", 10, 1}, Case{"a first part longer than all", 55, 1},
                        Case{"a first part within the sections", 52, 9},
                        Case{"header length", 6, 65}, Case{"sections longer than all", 41, 9}}) {
    Bytes bytes = EncodeFrameHeader(Example());
    bytes[c.at] = static_cast<std::byte>(c.value);
    EXPECT_TRUE(absl::IsDataLoss(DecodeFrameHeader(Sealed(bytes)).status())) << c.name;
  }
}

TEST(Frame, NamesBothVersionsWhenTheyDiffer) {
  Bytes bytes = EncodeFrameHeader(Example());
  bytes[4] = std::byte{9};
  const absl::Status status = DecodeFrameHeader(Sealed(bytes)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(status.message(), HasSubstr("version 9"));
  EXPECT_THAT(status.message(), HasSubstr("version 1"));
}

}  // namespace
}  // namespace layercake::transport
