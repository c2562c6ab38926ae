#include "kernels/device_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace layercake::kernels {
namespace {

using ::testing::HasSubstr;

CudaDeviceFacts Card(int index, std::string uuid, std::string name) {
  CudaDeviceFacts facts;
  facts.index = index;
  facts.uuid = std::move(uuid);
  facts.name = std::move(name);
  return facts;
}

std::vector<CudaDeviceFacts> TwoDevices() {
  return {Card(0, "GPU-1a2b3c4d", "A"), Card(1, "GPU-1a99ffff", "B")};
}

TEST(DeviceChoice, KnowsTheKindsOfNames) {
  EXPECT_EQ(*ParseDeviceKind("cpu"), DeviceKind::kCpu);
  EXPECT_EQ(*ParseDeviceKind("auto"), DeviceKind::kAuto);
  for (const char* name : {"cuda", "cuda:0", "cuda:17", "cuda:GPU-1a2b"}) {
    EXPECT_EQ(*ParseDeviceKind(name), DeviceKind::kCuda) << name;
  }
  for (const char* name :
       {"", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda0", "cuda:GPU-", "cpu:0", "CUDA:0"}) {
    EXPECT_EQ(ParseDeviceKind(name).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

TEST(DeviceChoice, FindsADeviceByIndexAndByTheBeginningOfItsUuid) {
  const std::vector<CudaDeviceFacts> devices = TwoDevices();
  EXPECT_EQ(ChooseCudaDevice("cuda:1", 0, devices)->name, "B");
  EXPECT_EQ(ChooseCudaDevice("cuda:GPU-1a2b3c4d", 5, devices)->name, "A");
  EXPECT_EQ(ChooseCudaDevice("cuda:GPU-1a9", 0, devices)->name, "B");
}

TEST(DeviceChoice, SharesDevicesOutToStagesThatNameNone) {
  const std::vector<CudaDeviceFacts> devices = TwoDevices();
  EXPECT_EQ(ChooseCudaDevice("cuda", 0, devices)->name, "A");
  EXPECT_EQ(ChooseCudaDevice("auto", 3, devices)->name, "B");
}

TEST(DeviceChoice, RefusesNamesThatFitNoneOrTwo) {
  const std::vector<CudaDeviceFacts> devices = TwoDevices();
  const absl::Status none = ChooseCudaDevice("cuda:2", 0, devices).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(none.message(), HasSubstr("cuda:1 (B, GPU-1a99ffff)"));
  EXPECT_EQ(ChooseCudaDevice("cuda:GPU-1a", 0, devices).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ChooseCudaDevice("cuda", 0, {}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace layercake::kernels
