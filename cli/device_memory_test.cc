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

}  // namespace
}  // namespace layercake::cli
