#include "transport/crc32c.h"

#include <vector>

#include "absl/strings/string_view.h"
#include "base/random.h"
#include "gtest/gtest.h"

namespace layercake::transport {
namespace {

absl::Span<const std::byte> AsBytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// RFC 3720, appendix B.4, and the check value of the CRC catalogue.
TEST(Crc32c, GivesTheKnownValues) {
  EXPECT_EQ(Crc32c({}), 0u);
  EXPECT_EQ(Crc32c(AsBytes("123456789")), 0xe3069283u);
  std::vector<std::byte> bytes(32);
  EXPECT_EQ(Crc32c(bytes), 0x8a9136aau);
  bytes.assign(32, std::byte{0xff});
  EXPECT_EQ(Crc32c(bytes), 0x62a8ab43u);
  for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(i);
  EXPECT_EQ(Crc32c(bytes), 0x46dd794eu);
  for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(31 - i);
  EXPECT_EQ(Crc32c(bytes), 0x113fdb5cu);
}

TEST(Crc32c, IsTheSameEveryWayAtEveryLengthAndStart) {
  base::SeededRandom random(3);
  std::vector<std::byte> bytes(40'000);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.Next());
  const absl::Span<const std::byte> all(bytes);
  const auto agree = [](absl::Span<const std::byte> part, uint32_t before) {
    const uint32_t sum = ExtendCrc32cByTable(before, part);
    EXPECT_EQ(ExtendCrc32c(before, part), sum) << part.size();
    for (const Crc32cWay& way : Crc32cWays()) {
      EXPECT_EQ(way.extend(before, part), sum) << way.name << ", " << part.size() << " bytes";
    }
  };
  for (size_t length = 0; length < 1700; ++length) agree(all.subspan(length % 9, length), 0);
  for (int i = 0; i < 100; ++i) {
    agree(all.subspan(random.Below(2000), random.Below(38'000)),
          static_cast<uint32_t>(random.Next()));
  }
}

TEST(Crc32c, ExtendsAFormerSum) {
  base::SeededRandom random(4);
  std::vector<std::byte> bytes(30'000);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.Next());
  const absl::Span<const std::byte> all(bytes);
  for (int i = 0; i < 50; ++i) {
    const size_t cut = random.Below(bytes.size());
    EXPECT_EQ(ExtendCrc32c(Crc32c(all.first(cut)), all.subspan(cut)), Crc32c(all)) << cut;
  }
}

}  // namespace
}  // namespace layercake::transport
