#include "kernels/cuda/hopper_code.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace layercake::kernels::cuda {
namespace {

TEST(HopperCode, RunsOnCapability90OfBuildsThatHaveIt) {
  const bool built = std::string(LAYERCAKE_TEST_ARCHITECTURES).find("90a") != std::string::npos;
  EXPECT_EQ(RunsHopperCode({.compute_major = 9, .compute_minor = 0}), built);
  EXPECT_EQ(LacksHopperCode({.compute_major = 9, .compute_minor = 0}), !built);
}

TEST(HopperCode, RunsOnNoOtherCardAndIsNotMissedThere) {
  for (const auto& [major, minor] : {std::pair(8, 0), {8, 6}, {8, 9}, {10, 0}, {12, 0}}) {
    const Context context = {.compute_major = major, .compute_minor = minor};
    EXPECT_FALSE(RunsHopperCode(context)) << major << "." << minor;
    EXPECT_FALSE(LacksHopperCode(context)) << major << "." << minor;
  }
}

}  // namespace
}  // namespace layercake::kernels::cuda
