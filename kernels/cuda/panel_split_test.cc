#include "kernels/cuda/panel_split.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace layercake::kernels::cuda {
namespace {

TEST(PanelSplit, AMatrixThatFitsIsOnePanel) {
  EXPECT_EQ(PanelRows(7168, 5120, kMaxPanelBytes), 7168);
  EXPECT_EQ(PanelRows(17, 896, PanelBytes(17 * 896)), 17);
}

TEST(PanelSplit, PanelsOfALargeMatrixAreAboutEqual) {
  // 27,648 x 5,120 takes 283 MB: two panels.
  EXPECT_EQ(PanelRows(27648, 5120, kMaxPanelBytes), 13824);
  // 152,064 x 5,120: six of at most 26,112 rows.
  EXPECT_EQ(PanelRows(152064, 5120, kMaxPanelBytes), 25344);
}

TEST(PanelSplit, APanelThatHoldsNoStepIsRefused) {
  EXPECT_EQ(PanelRows(1000, 1024, 2 * 127 * 1024), 0);
  EXPECT_EQ(PanelRows(1000, 1024, 0), 0);
}

TEST(PanelSplit, EveryPanelFitsAndBeginsAtAStepInRandomCases) {
  constexpr uint64_t kSeed = 5;
  base::SeededRandom random(kSeed);
  for (int i = 0; i < 10000; ++i) {
    const auto n = static_cast<int64_t>(1 + random.Below(200000));
    const auto k = static_cast<int64_t>(32 * (1 + random.Below(1000)));
    const auto max_weights = n * k + static_cast<int64_t>(random.Below(1000000));
    const int64_t bytes = PanelBytes(max_weights);
    ASSERT_LE(bytes, kMaxPanelBytes);
    const int64_t rows = PanelRows(n, k, bytes);
    ASSERT_GT(rows, 0) << "seed " << kSeed << " n " << n << " k " << k;
    ASSERT_LE(2 * rows * k, bytes) << "seed " << kSeed << " n " << n << " k " << k;
    ASSERT_TRUE(rows == n || rows % kPanelRowStep == 0) << n << " x " << k;
  }
}

}  // namespace
}  // namespace layercake::kernels::cuda
