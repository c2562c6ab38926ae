#include "kernels/cuda/fixed_point.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/random.h"

namespace layercake::kernels::cuda {
namespace {

FixedScale ScaleOf(float largest) {
  return FixedScaleOf(std::bit_cast<uint32_t>(largest), largest);
}

TEST(FixedPoint, SplitsEveryNumberIntoTwoBytes) {
  for (int x = -32512; x <= 32512; ++x) {
    const int high = FixedHigh(x);
    const int low = FixedLow(x);
    ASSERT_EQ(256 * high + low, x);
    ASSERT_GE(std::min(high, low), -128);
    ASSERT_LE(std::max(high, low), 127);
  }
}

TEST(FixedPoint, IsWithinHalfAStepOfTheLargestMagnitude) {
  base::SeededRandom random(5);
  for (int i = 0; i < 10000; ++i) {
    const float largest = std::ldexp(1.0f + static_cast<float>(random.Unit()),
                                     static_cast<int>(random.Below(200)) - 99);
    const FixedScale scale = ScaleOf(largest);
    const float x = largest * (2 * static_cast<float>(random.Unit()) - 1);
    const double back = static_cast<double>(scale.scale) * FixedValue(x, scale.inverse);
    ASSERT_LE(std::abs(back - x), 0.51 * static_cast<double>(largest) / 32512) << x;
    ASSERT_EQ(FixedValue(largest, scale.inverse), 32512);
    ASSERT_EQ(FixedValue(-largest, scale.inverse), -32512);
  }
}

TEST(FixedPoint, KeepsZerosAndWhatIsNearlySo) {
  for (const float largest : {0.0f, std::numeric_limits<float>::denorm_min(), 0x1p-101f}) {
    EXPECT_EQ(ScaleOf(largest).scale, 0.0f);
    EXPECT_EQ(ScaleOf(largest).inverse, 0.0f);
  }
  EXPECT_GT(ScaleOf(0x1p-100f).scale, 0.0f);
  EXPECT_TRUE(std::isfinite(ScaleOf(0x1p-100f).inverse));
  EXPECT_TRUE(std::isfinite(ScaleOf(std::numeric_limits<float>::max()).inverse));
}

TEST(FixedPoint, ShowsWhatIsNotFinite) {
  for (const float largest :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_TRUE(std::isnan(ScaleOf(largest).scale));
    EXPECT_EQ(ScaleOf(largest).inverse, 0.0f);
  }
}

}  // namespace
}  // namespace layercake::kernels::cuda
