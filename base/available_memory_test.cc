#include "base/available_memory.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::base {
namespace {

using ::testing::Optional;

class AvailableMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "layercake_memory_XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    files_ = {.meminfo = folder + "/meminfo", .control_group = folder};
  }
  void TearDown() override { std::filesystem::remove_all(files_.control_group); }

  void Machine(const std::string& text) { std::ofstream(files_.meminfo) << text; }
  void Group(const std::string& file, const std::string& text) {
    std::ofstream(files_.control_group + "/" + file) << text;
  }

  MemoryFiles files_;
};

constexpr char kMeminfo[] = "MemTotal:  2000 kB\nMemFree:  10 kB\nMemAvailable:   1500 kB\n";

TEST_F(AvailableMemory, IsUnknownWhereNothingSaysIt) {
  EXPECT_EQ(AvailableMemoryBytes(files_), std::nullopt);
  Machine("MemTotal: 2000 kB\n");
  Group("memory.max", "max\n");
  Group("memory.current", "4096\n");
  EXPECT_EQ(AvailableMemoryBytes(files_), std::nullopt);
}

TEST_F(AvailableMemory, IsTheMachinesWithoutALimitOfTheGroup) {
  Machine(kMeminfo);
  EXPECT_THAT(AvailableMemoryBytes(files_), Optional(1500 * 1024));
  Group("memory.max", "max\n");
  Group("memory.current", "4096\n");
  EXPECT_THAT(AvailableMemoryBytes(files_), Optional(1500 * 1024));
}

TEST_F(AvailableMemory, IsWhatTheGroupLeavesWhereThatIsLess) {
  Machine(kMeminfo);
  Group("memory.max", "1000000\n");
  Group("memory.current", "900000\n");
  EXPECT_THAT(AvailableMemoryBytes(files_), Optional(100'000));
  // A model file that was read and copied counts to the group until somebody needs the memory.
  Group("memory.stat", "anon 200000\nfile 700000\ninactive_file 650000\n");
  EXPECT_THAT(AvailableMemoryBytes(files_), Optional(750'000));
  Group("memory.max", "9000000\n");
  EXPECT_THAT(AvailableMemoryBytes(files_), Optional(1500 * 1024));
  Group("memory.max", "100000\n");  // lowered below what is used
  EXPECT_THAT(AvailableMemoryBytes(files_), Optional(0));
}

TEST(AvailableMemoryOfThisMachine, IsSomething) {
  const std::optional<uint64_t> available = AvailableMemoryBytes();
  if (!available) GTEST_SKIP() << "this machine does not say";
  EXPECT_GT(*available, 0u);
}

}  // namespace
}  // namespace layercake::base
