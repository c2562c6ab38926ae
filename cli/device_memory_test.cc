#include "cli/device_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace layercake::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class DeviceMemory : public testing::Test {
 protected:
  DeviceMemory() : cards_(2) {
    cards_[0].uuid = "GPU-aa";
    cards_[1].index = 1;
    cards_[1].uuid = "GPU-bb";
  }
  std::vector<uint64_t> Shares(const std::vector<std::string>& devices) {
    asked_.clear();
    return StageMemoryBytes(devices, cards_, [this](const kernels::CudaDeviceFacts& card) {
      asked_.push_back(card.index);
      return uint64_t{card.index == 0 ? 1000u : 500u};
    });
  }

  std::vector<kernels::CudaDeviceFacts> cards_;
  std::vector<int> asked_;
};

TEST_F(DeviceMemory, IsSharedByTheStagesOnOneCard) {
  EXPECT_THAT(Shares({"cuda:0", "cuda:GPU-aa", "cpu"}), ElementsAre(500, 500, 0));
  EXPECT_THAT(Shares({"auto", "auto"}), ElementsAre(1000, 500));
  EXPECT_THAT(Shares({"cuda:7", "cuda:1"}), ElementsAre(0, 500));
}

TEST_F(DeviceMemory, IsAskedOfTheCardsThatStagesGetAndOnceEach) {
  Shares({"cuda:1", "cuda:1", "cpu"});
  EXPECT_THAT(asked_, ElementsAre(1));
  cards_.clear();
  EXPECT_THAT(Shares({"cuda:0"}), ElementsAre(0));
  EXPECT_THAT(asked_, IsEmpty());
}

class Returning : public testing::Test {
 protected:
  static constexpr uint64_t kGiB = uint64_t{1} << 30;
  bool AskAgain(uint64_t free_gib, double seconds) {
    return memory_.AskAgain(free_gib * kGiB, base::Instant::FromStart(absl::Seconds(seconds)));
  }

  ReturningMemory memory_{140 * kGiB};
};

TEST_F(Returning, IsBelievedAtOnceWhenAlmostAllIsFree) { EXPECT_FALSE(AskAgain(138, 5)); }

TEST_F(Returning, IsAwaitedUntilAlmostAllIsFree) {
  EXPECT_TRUE(AskAgain(12, 5));
  EXPECT_TRUE(AskAgain(12, 6.9));
  EXPECT_TRUE(AskAgain(60, 7.1));  // once it grows it has as long again
  EXPECT_TRUE(AskAgain(60, 9));
  EXPECT_FALSE(AskAgain(139, 9.1));
}

TEST_F(Returning, IsNotAwaitedFromWhoeverKeepsIt) {
  EXPECT_TRUE(AskAgain(12, 5));
  EXPECT_TRUE(AskAgain(12, 6.9));
  EXPECT_FALSE(AskAgain(12, 7.1));
}

TEST_F(Returning, IsAwaitedWithABound) {
  uint64_t free_gib = 1;
  for (double seconds = 5; seconds < 20; ++seconds) EXPECT_TRUE(AskAgain(++free_gib, seconds));
  EXPECT_FALSE(AskAgain(++free_gib, 20));
}

}  // namespace
}  // namespace layercake::cli
