#include "cli/chain_flags.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ChainOptions Make(const ChainFlags& flags, int cores = 8) {
  auto options = MakeChainOptions(flags, "m.gguf", cores);
  EXPECT_TRUE(options.ok()) << options.status();
  return options.ok() ? *options : ChainOptions{};
}

std::string Refusal(const ChainFlags& flags) {
  const auto options = MakeChainOptions(flags, "m.gguf", 8);
  EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(options.status().message());
}

TEST(ChainFlags, OneStageOnOneCpuByDefault) {
  const ChainOptions options = Make({});
  EXPECT_EQ(options.coordinator.model_path, "m.gguf");
  EXPECT_EQ(options.coordinator.stages, 1);
  EXPECT_THAT(options.devices, ElementsAre("cpu"));
  EXPECT_EQ(options.threads, 8);
}

TEST(ChainFlags, TakesTheNumberOfStagesFromWhatIsGiven) {
  ChainFlags flags;
  flags.devices = {"cpu", "cpu", "cpu"};
  EXPECT_EQ(Make(flags).coordinator.stages, 3);
  flags.devices.clear();
  flags.coordinator.layers = "0-3,4-9";
  EXPECT_EQ(Make(flags).coordinator.stages, 2);
  flags.devices = {"cpu:1"};
  EXPECT_THAT(Make(flags).devices, ElementsAre("cpu:1", "cpu:1"));
  flags.stages = 2;
  EXPECT_EQ(Make(flags).coordinator.stages, 2);
}

TEST(ChainFlags, TellsOwnWorkersToBeDeterministic) {
  ChainFlags flags;
  EXPECT_FALSE(Make(flags).deterministic);
  flags.deterministic = true;
  EXPECT_TRUE(Make(flags).deterministic);
}

TEST(ChainFlags, SharesTheCoresOut) {
  ChainFlags flags;
  flags.stages = 3;
  EXPECT_EQ(Make(flags, 8).threads, 6);
  EXPECT_EQ(Make(flags, 2).threads, 2);
  EXPECT_EQ(Make(flags, 1).threads, 1);
  flags.threads = 5;
  EXPECT_EQ(Make(flags, 2).threads, 5);
}

TEST(ChainFlags, KeepsNoMoreMicroBatchesInFlightThanCoresCompute) {
  ChainFlags flags;
  flags.stages = 3;
  EXPECT_EQ(Make(flags, 8).coordinator.max_in_flight, 0);  // the coordinator decides
  EXPECT_EQ(Make(flags, 2).coordinator.max_in_flight, 2);
  flags.devices = {"cuda:0"};
  EXPECT_EQ(Make(flags, 2).coordinator.max_in_flight, 0);
  flags.devices = {"cpu"};
  flags.coordinator.max_in_flight = 4;
  EXPECT_EQ(Make(flags, 2).coordinator.max_in_flight, 4);
}

TEST(ChainFlags, NamesTheFlagsThatDisagree) {
  ChainFlags flags;
  flags.stages = 3;
  flags.coordinator.layers = "0-3,4-9";
  EXPECT_THAT(Refusal(flags), HasSubstr("--layers 0-3,4-9 gives 2 stages"));
  flags.coordinator.layers = "";
  flags.devices = {"cpu", "cpu"};
  EXPECT_THAT(Refusal(flags), HasSubstr("--devices names 2 devices for 3 stages"));
  flags.devices = {};
  flags.coordinator.transport = "local";
  EXPECT_THAT(Refusal(flags), HasSubstr("--transport local"));
  flags.stages = 1;
  EXPECT_EQ(Make(flags).coordinator.transport, "local");
}

TEST(ChainFlags, CountsAtLeastOneCore) { EXPECT_GE(UsableCores(), 1); }

}  // namespace
}  // namespace layercake::cli
