#include "stage_worker/activation_parts.h"

#include <gtest/gtest.h>

#include "stage_worker/activation_frame.h"

namespace layercake::stage_worker {
namespace {

constexpr uint32_t kPart = 4096;

TEST(ActivationParts, LeaveShortFramesAndDeviceSlotsWhole) {
  transport::SendSlot slot;
  EXPECT_EQ(ActivationParts().count(), 1);
  EXPECT_EQ(ActivationParts(slot, 0, 1000, 1000).count(), 1);
  EXPECT_EQ(ActivationParts(slot, kPart, 0, 1024).count(), 1);
  EXPECT_EQ(ActivationParts(slot, kPart, 1, 1024).count(), 1);
  const ActivationParts whole(slot, kPart, 1, 2047);
  EXPECT_EQ(whole.count(), 1);
  EXPECT_EQ(whole.first_part_bytes(), 0u);
  EXPECT_EQ(whole.End(0, 9000), 9000u);
  EXPECT_GT(ActivationParts(slot, kPart, 2, 1024).count(), 1);
  slot.memory.space = kernels::MemorySpace::kDevice;
  EXPECT_EQ(ActivationParts(slot, kPart, 1000, 1024).count(), 1);
}

// Every length of section: the parts follow one another to the end, none longer than asked for.
TEST(ActivationParts, CoverEveryPayloadOnce) {
  for (const int rows : {2, 3, 17, 512}) {
    const uint32_t hidden = 1280;
    const ActivationParts parts(transport::SendSlot{}, kPart, rows, hidden);
    const auto row_bytes = static_cast<uint32_t>(rows) * hidden * 4;
    const auto longest = static_cast<uint32_t>(MaxActivationSectionBytes(rows));
    for (uint32_t section = 4; section <= longest; ++section) {
      const uint32_t payload = row_bytes + section;
      uint32_t first = 0;
      for (int i = 0; i < parts.count(); ++i) {
        const uint32_t end = parts.End(i, payload);
        ASSERT_GE(end, first);
        ASSERT_LE(end - first, kPart) << rows << " rows, section of " << section;
        first = end;
      }
      ASSERT_EQ(first, payload);
    }
    EXPECT_EQ(parts.first_part_bytes(), kPart);
    EXPECT_EQ(parts.End(0, row_bytes), kPart);
  }
}

}  // namespace
}  // namespace layercake::stage_worker
