#include "kernels/cuda/unit_range.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace layercake::kernels::cuda {
namespace {

constexpr float kCode = 16777216.0f;  // 2^24

TEST(UnitRange, TheScaleIsTheLargestPowerOfTwoThatKeepsScalesAndMinimaFinite) {
  for (const float scale : {1e-9f, 0.0009765625f, 0.001f, 0.02f, 1.0f, 37.0f, 6e4f}) {
    for (const float minimum : {0.0f, 1e-8f, 0.016f, 1.0f, 3e4f, 1e9f}) {
      const float s = UnitWeightScale({scale, minimum, 1});
      int exponent = 0;
      EXPECT_EQ(std::frexp(s, &exponent), 0.5f) << s;
      EXPECT_LE(scale * s * kCode, 32768.0f) << scale << " " << minimum;
      EXPECT_LE(minimum * s, 32768.0f) << scale << " " << minimum;
      EXPECT_TRUE(2 * scale * s * kCode > 32768.0f || 2 * minimum * s > 32768.0f)
          << scale << " " << minimum << ": " << s << " could be larger";
    }
  }
}

TEST(UnitRange, AMatrixOfZerosOrOfOneValueHasAScale) {
  EXPECT_EQ(UnitWeightScale({}), 1.0f);
  EXPECT_EQ(UnitWeightScale({0, 0.5f, 1}), 65536.0f);
}

TEST(UnitRange, ExtremeScalesStayWithinTheirBounds) {
  constexpr float kSmallest = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(UnitWeightScale({kSmallest, 0, 1}), std::ldexp(1.0f, 100));
  EXPECT_EQ(UnitWeightScale({std::numeric_limits<float>::max(), 0, 1}), std::ldexp(1.0f, -100));
}

}  // namespace
}  // namespace layercake::kernels::cuda
