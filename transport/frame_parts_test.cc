#include "transport/frame_parts.h"

#include <string>

#include "absl/types/span.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "transport/crc32c.h"

namespace layercake::transport {
namespace {

constexpr uint32_t kBytes = 1000;
constexpr uint32_t kFirst = 100;

// A payload in a slot, as the header of its first part has it.
class FrameParts : public ::testing::Test {
 protected:
  FrameParts() {
    base::SeededRandom random(1);
    for (std::byte& b : payload_) b = static_cast<std::byte>(random.Below(256));
    header_.lane = Lane::kActivation;
    header_.payload_bytes = kBytes;
    header_.first_part_bytes = kFirst;
    header_.payload_crc32c = Sum(kFirst);
  }
  uint32_t Sum(size_t bytes) const { return Crc32c(absl::MakeConstSpan(payload_).first(bytes)); }
  DepartingFrame Departing() const {
    return DepartingFrame(1, header_, payload_.data(), {kFirst, header_.payload_crc32c});
  }

  std::array<std::byte, kBytes> payload_{};
  FrameHeader header_;
};

TEST_F(FrameParts, SayTheSumOfEverythingSoFar) {
  DepartingFrame out = Departing();
  ArrivingFrame in(header_, payload_.data());
  for (const uint32_t bytes : {101u, 640u, 999u, kBytes}) {
    EXPECT_FALSE(out.whole());
    ASSERT_TRUE(out.Advance(bytes).ok());
    EXPECT_EQ(out.progress(), (PartProgress{bytes, Sum(bytes)}));
    ASSERT_TRUE(in.Advance(out.progress()).ok());
    EXPECT_EQ(in.arrived(), bytes);
    EXPECT_FALSE(in.whole());
    if (bytes != 640) {  // two parts may be checked as one
      ASSERT_TRUE(in.Check().ok());
    }
  }
  EXPECT_TRUE(out.whole());
  EXPECT_TRUE(in.whole());
}

TEST_F(FrameParts, GoForwardAndNotBeyondTheEnd) {
  DepartingFrame out = Departing();
  for (const uint32_t bytes : {0u, 99u, kFirst, kBytes + 1}) {
    EXPECT_TRUE(absl::IsInvalidArgument(out.Advance(bytes))) << bytes;
  }
  ASSERT_TRUE(out.Advance(500).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(out.Advance(500)));
}

TEST_F(FrameParts, AreRefusedFromAWordThatShrinksOrLeadsBeyondTheEnd) {
  ArrivingFrame in(header_, payload_.data());
  EXPECT_TRUE(absl::IsDataLoss(in.Advance({kFirst - 1, Sum(kFirst - 1)})));
  EXPECT_TRUE(absl::IsDataLoss(in.Advance({kBytes + 1, 0})));
  EXPECT_TRUE(absl::IsDataLoss(in.Advance({0xffffffff, 0})));
  ASSERT_TRUE(in.Advance({600, Sum(600)}).ok());
  EXPECT_TRUE(absl::IsDataLoss(in.Advance({599, Sum(599)})));
}

TEST_F(FrameParts, AreRefusedWhenTheBytesAreNotThoseOfTheWord) {
  for (const size_t at : {size_t{kFirst}, size_t{599}}) {
    ArrivingFrame in(header_, payload_.data());
    ASSERT_TRUE(in.Advance({600, Sum(600)}).ok());
    payload_[at] ^= std::byte{4};
    EXPECT_TRUE(absl::IsDataLoss(in.Check())) << at;
    payload_[at] ^= std::byte{4};
    EXPECT_TRUE(in.Check().ok());
  }
  // The word runs ahead of the bytes.
  ArrivingFrame early(header_, payload_.data());
  const uint32_t sum = Sum(kBytes);
  payload_[kBytes - 1] ^= std::byte{1};
  ASSERT_TRUE(early.Advance({kBytes, sum}).ok());
  EXPECT_TRUE(absl::IsDataLoss(early.Check()));
  EXPECT_FALSE(early.whole());
}

}  // namespace
}  // namespace layercake::transport
