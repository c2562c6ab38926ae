#include "coordinator/warm_up.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace layercake::coordinator {
namespace {

using testing::ElementsAre;

// The sizes that run where a step takes `fixed` + `per_row` for each row, the first one `cold`
// more; and how long all but the first take.
std::vector<int> Sizes(WarmUp warm_up, absl::Duration fixed, absl::Duration per_row,
                       absl::Duration cold, absl::Duration* sum = nullptr) {
  std::vector<int> sizes;
  for (int rows = warm_up.rows(); rows > 0;) {
    sizes.push_back(rows);
    const absl::Duration took =
        fixed + per_row * rows + (sizes.size() == 1 ? cold : absl::ZeroDuration());
    if (sum != nullptr && sizes.size() > 1) *sum += took;
    rows = warm_up.Next(took);
  }
  return sizes;
}

TEST(WarmUp, WithoutABudgetOneRowIsAll) {
  WarmUp warm_up(512, absl::ZeroDuration());
  EXPECT_EQ(warm_up.rows(), 1);
  EXPECT_EQ(warm_up.Next(absl::Milliseconds(5)), 0);
}

TEST(WarmUp, FastStagesGoUpToTheLargestStep) {
  EXPECT_THAT(Sizes(WarmUp(512, absl::Seconds(1)), absl::Milliseconds(6), absl::Microseconds(110),
                    absl::Milliseconds(300)),
              ElementsAre(1, 1, 8, 16, 32, 64, 128, 256, 512));
  EXPECT_THAT(Sizes(WarmUp(100, absl::Seconds(1)), absl::Milliseconds(1), absl::ZeroDuration(),
                    absl::ZeroDuration()),
              ElementsAre(1, 1, 8, 16, 32, 64, 100));
}

TEST(WarmUp, SmallStepsAreNoReasonForLargeOnes) {
  EXPECT_THAT(Sizes(WarmUp(1, absl::Seconds(1)), absl::Milliseconds(1), absl::ZeroDuration(),
                    absl::ZeroDuration()),
              ElementsAre(1, 1));
  EXPECT_THAT(Sizes(WarmUp(8, absl::Seconds(1)), absl::Milliseconds(1), absl::ZeroDuration(),
                    absl::ZeroDuration()),
              ElementsAre(1, 1, 8));
}

TEST(WarmUp, SlowStagesStopInTime) {
  // A large model on a CPU: as long as it takes to read the weights once more.
  EXPECT_THAT(Sizes(WarmUp(512, absl::Seconds(1)), absl::Seconds(3), absl::Milliseconds(100),
                    absl::ZeroDuration()),
              ElementsAre(1, 1));
  // Rows cost what the guess does not know of.
  for (const absl::Duration per_row :
       {absl::Milliseconds(1), absl::Milliseconds(5), absl::Milliseconds(30)}) {
    absl::Duration sum;
    const std::vector<int> sizes = Sizes(WarmUp(512, absl::Seconds(1)), absl::Milliseconds(20),
                                         per_row, absl::Milliseconds(100), &sum);
    EXPECT_LT(sizes.back(), 512);
    EXPECT_LT(sum, absl::Milliseconds(1500)) << per_row;
  }
}

TEST(WarmUp, TheFirstStepDoesNotCount) {
  EXPECT_THAT(Sizes(WarmUp(16, absl::Seconds(1)), absl::Milliseconds(6), absl::ZeroDuration(),
                    absl::Seconds(20)),
              ElementsAre(1, 1, 8, 16));
}

}  // namespace
}  // namespace layercake::coordinator
