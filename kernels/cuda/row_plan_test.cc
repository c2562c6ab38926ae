#include "kernels/cuda/row_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace layercake::kernels::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kBlocksEach = 200;

// Rows of sequences, each of `counts[i]` rows that end at position `ends[i]`.
struct Rows {
  std::vector<int32_t> positions;
  std::vector<int32_t> index;
  std::vector<std::vector<int32_t>> tables;
  std::vector<absl::Span<const int32_t>> table_views;

  Rows(const std::vector<int>& counts, const std::vector<int>& ends) {
    for (size_t s = 0; s < counts.size(); ++s) {
      for (int i = 0; i < counts[s]; ++i) {
        positions.push_back(ends[s] - counts[s] + 1 + i);
        index.push_back(static_cast<int32_t>(s));
      }
      // Blocks of 7 tokens or more, of its own.
      auto& table = tables.emplace_back();
      for (int b = 0; b <= ends[s] / 7; ++b) table.push_back(kBlocksEach * static_cast<int>(s) + b);
    }
    for (const auto& table : tables) table_views.push_back(table);
  }
  StepRows view() const {
    return {static_cast<int>(positions.size()), positions, positions, index, table_views};
  }
};

TEST(SplitBucket, GrowsAndWastesAQuarterAtMost) {
  int last = 0;
  for (int splits = 1; splits < 5000; ++splits) {
    const int bucket = SplitBucket(splits);
    EXPECT_GE(bucket, splits);
    EXPECT_GE(bucket, last);
    EXPECT_LE(bucket, splits + (splits <= 8 ? 0 : splits / 4)) << splits;
    EXPECT_EQ(SplitBucket(bucket), bucket);
    last = bucket;
  }
  EXPECT_EQ(SplitBucket(0), 1);
}

TEST(RowPlan, SendsShortRunsToTheDecodeKernelAndPromptsToTiles) {
  const Rows rows({1, 40, 16, 17}, {300, 39, 15, 1000});
  const RowPlan plan = PlanRows(rows.view(), 4 * kBlocksEach, 16, 12);
  std::vector<int32_t> decode(17);
  decode[0] = 0;
  std::iota(decode.begin() + 1, decode.end(), 41);
  EXPECT_EQ(plan.decode_rows, decode);
  std::vector<std::pair<int, int>> tiles;
  for (const RowTile& tile : plan.tiles) tiles.emplace_back(tile.first_row, tile.row_count);
  EXPECT_THAT(tiles, ElementsAre(std::pair(1, 12), std::pair(13, 12), std::pair(25, 12),
                                 std::pair(37, 4), std::pair(57, 12), std::pair(69, 5)));
  EXPECT_EQ(plan.splits, 4);
  EXPECT_EQ(plan.table_stride, 64);
}

TEST(RowPlan, SendsAllRowsToTheDecodeKernelWhereTilesDoNotFit) {
  const Rows rows({40}, {39});
  const RowPlan plan = PlanRows(rows.view(), kBlocksEach, 7, 0);
  EXPECT_EQ(plan.decode_rows.size(), 40u);
  EXPECT_THAT(plan.tiles, IsEmpty());
  EXPECT_EQ(plan.table_stride, 37);  // 256 tokens in blocks of 7
}

TEST(RowPlan, EndsARunWherePositionsJump) {
  Rows rows({20, 20}, {19, 59});
  for (int32_t& index : rows.index) index = 0;
  rows.table_views[0] = rows.tables[1];  // long enough for both runs
  const RowPlan plan = PlanRows(rows.view(), 2 * kBlocksEach, 16, 64);
  ASSERT_EQ(plan.tiles.size(), 2u);
  EXPECT_EQ(plan.tiles[1].first_row, 20);
}

TEST(RowPlan, TellsOldPositionsByTheBlocksThatAreWritten) {
  Rows rows({1, 2, 1}, {35, 64, 90});
  // The third sequence shares the block that the second one writes at position 63.
  rows.tables[2][1] = rows.tables[1][3];
  const RowPlan plan = PlanRows(rows.view(), 3 * kBlocksEach, 16, 0);
  EXPECT_THAT(plan.old_positions, ElementsAre(32, 48, 48, 16));
}

}  // namespace
}  // namespace layercake::kernels::cuda
