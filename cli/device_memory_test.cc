#include "cli/device_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace layercake::cli {
namespace {

using ::testing::ElementsAre;

TEST(DeviceMemory, IsSharedByTheStagesOnOneCard) {
  std::vector<kernels::CudaDeviceFacts> cards(2);
  cards[0].total_bytes = 1000;
  cards[0].uuid = "GPU-aa";
  cards[1].index = 1;
  cards[1].total_bytes = 500;
  cards[1].uuid = "GPU-bb";
  const auto share = [&](std::vector<std::string> devices) {
    return StageMemoryBytes(devices, cards);
  };
  EXPECT_THAT(share({"cuda:0", "cuda:GPU-aa", "cpu"}), ElementsAre(450, 450, 0));
  EXPECT_THAT(share({"auto", "auto"}), ElementsAre(900, 450));
  EXPECT_THAT(share({"cuda:7", "cuda:1"}), ElementsAre(0, 450));
  EXPECT_THAT(StageMemoryBytes(std::vector<std::string>{"cuda:0"}, {}), ElementsAre(0));
}

}  // namespace
}  // namespace layercake::cli
