#include "kernels/cuda/unit_work.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/matmul_units.h"

namespace layercake::kernels::cuda {
namespace {

TEST(UnitWork, DealsOutEveryColumnBlockOnce) {
  for (const uint32_t most : {1u, 2u, 7u, 132u}) {
    for (const uint32_t items : {1u, 2u, 5u, 131u, 132u, 133u, 263u, 264u, 265u, 500u, 1500u}) {
      for (const uint32_t blocks : {1u, 3u, 20u, 116u}) {
        SCOPED_TRACE(testing::Message() << most << " " << items << " " << blocks);
        const UnitWork work = DealOutUnits(items, blocks, most);
        ASSERT_GE(work.grid, 1u);
        ASSERT_LE(work.grid, most);
        std::vector<int> times(static_cast<size_t>(items) * blocks, 0);
        uint32_t least = ~0u;
        uint32_t largest = 0;
        for (uint32_t block = 0; block < work.grid; ++block) {
          uint32_t own = 0;
          int continued = 0;
          bool first = true;
          UnitSegments segments(work, block);
          for (UnitSegment s; segments.Next(&s); first = false) {
            ASSERT_LT(s.begin, s.end);
            ASSERT_LE(s.end, blocks);
            // What another block began comes first, and once at most.
            if (s.begin > 0) {
              ++continued;
              EXPECT_TRUE(first);
            }
            for (uint32_t i = s.begin; i < s.end; ++i) ++times[s.item * blocks + i];
            own += s.end - s.begin;
          }
          EXPECT_LE(continued, 1);
          least = std::min(least, own);
          largest = std::max(largest, own);
        }
        for (const int count : times) ASSERT_EQ(count, 1);
        EXPECT_GE(least, 1u);
        EXPECT_LE(largest - least, 1u);
      }
    }
  }
}

TEST(UnitWork, CutsFewItemsOnly) {
  EXPECT_EQ(DealOutUnits(216, 20, 132).rounds, 0u);
  const UnitWork many = DealOutUnits(3456, 20, 132);
  EXPECT_EQ(many.rounds, 25u);
  EXPECT_EQ(many.split_items, 3456u - 25 * 132);
}

TEST(UnitWork, TakesRowsInEqualItemsOfMultiplesOf32) {
  EXPECT_EQ(UnitItemTokens(17), 32);
  EXPECT_EQ(UnitItemTokens(33), 64);
  EXPECT_EQ(UnitItemTokens(65), 96);
  EXPECT_EQ(UnitItemTokens(128), 128);
  EXPECT_EQ(UnitItemTokens(129), 96);
  EXPECT_EQ(UnitItemTokens(2048), 128);
  for (int rows = 1; rows <= 4096; ++rows) {
    const int tokens = UnitItemTokens(rows);
    // The last item reads no rows behind those that the operand has room for.
    EXPECT_LE((rows + tokens - 1) / tokens * tokens, 8 * TileGroups(rows)) << rows;
  }
}

}  // namespace
}  // namespace layercake::kernels::cuda
