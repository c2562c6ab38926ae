#include "base/numa_topology.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::base {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int> Range(int first, int end) {
  std::vector<int> cpus(static_cast<size_t>(end - first));
  std::iota(cpus.begin(), cpus.end(), first);
  return cpus;
}

TEST(CpuList, IsReadAsLinuxWritesIt) {
  EXPECT_THAT(*ParseCpuList("0-3,8\n"), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(*ParseCpuList("5"), ElementsAre(5));
  EXPECT_THAT(*ParseCpuList("8,0-1,1-2"), ElementsAre(0, 1, 2, 8));
  EXPECT_THAT(*ParseCpuList("\n"), IsEmpty());
  EXPECT_EQ(ParseCpuList("0-1023")->size(), 1024u);
  for (const char* text :
       {"a", "1-", "-3", "3-1", "1,,2", "0-1024", "1-2-3", "99999999999", "1;2"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseCpuList(text).status())) << text;
  }
}

TEST(CpuList, IsWrittenAsItIsRead) {
  for (const char* text : {"", "0", "0-3,8", "32-63,96-127", "1,3,5-6"}) {
    EXPECT_EQ(FormatCpuList(*ParseCpuList(text)), text);
  }
}

// A folder that looks like /sys of a machine with the files that a test gives it.
class FakeSysfs {
 public:
  FakeSysfs() {
    std::string name = (std::filesystem::temp_directory_path() / "sysfsXXXXXX").string();
    root_ = mkdtemp(name.data());
  }
  ~FakeSysfs() { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  void AddNodes() const {
    Write("devices/system/node/online", "0-1");
    Write("devices/system/node/node0/cpulist", "0-31,64-95");
    Write("devices/system/node/node1/cpulist", "32-63,96-127");
  }
  std::string root() const { return root_.string(); }

 private:
  std::filesystem::path root_;
};

TEST(NumaFacts, AreReadFromSysfs) {
  const FakeSysfs sysfs;
  sysfs.AddNodes();
  sysfs.Write("bus/pci/devices/0000:ab:00.0/numa_node", "1");
  // CUDA writes the bus id in capitals.
  const NumaFacts facts = ReadNumaFacts(sysfs.root(), "0000:AB:00.0");
  EXPECT_EQ(facts.device_node, 1);
  ASSERT_EQ(facts.nodes.size(), 2u);
  EXPECT_EQ(facts.nodes[1].id, 1);
  EXPECT_EQ(FormatCpuList(facts.nodes[1].cpus), "32-63,96-127");
  EXPECT_EQ(ReadNumaFacts(sysfs.root(), "0000:ac:00.0").device_node, std::nullopt);
}

TEST(NumaFacts, AreLeftOutWhenSysfsSaysNothingOrNonsense) {
  const FakeSysfs sysfs;
  EXPECT_TRUE(ReadNumaFacts(sysfs.root(), "0000:17:00.0").nodes.empty());
  sysfs.AddNodes();
  sysfs.Write("devices/system/node/node0/cpulist", "all of them");
  sysfs.Write("bus/pci/devices/0000:17:00.0/numa_node", "-1");
  const NumaFacts facts = ReadNumaFacts(sysfs.root(), "0000:17:00.0");
  EXPECT_EQ(facts.device_node, std::nullopt);
  ASSERT_EQ(facts.nodes.size(), 1u);
  EXPECT_EQ(facts.nodes[0].id, 1);
}

NumaFacts TwoNodes(std::optional<int> device_node) {
  return {.device_node = device_node,
          .nodes = {{.id = 0, .cpus = Range(0, 32)}, {.id = 1, .cpus = Range(32, 64)}}};
}

TEST(NumaChoice, PutsThreadsNearTheDevice) {
  const NumaChoice choice = ChooseNumaPlacement("cuda:0", TwoNodes(1), Range(0, 64));
  ASSERT_TRUE(choice.placement.has_value());
  EXPECT_EQ(choice.placement->node, 1);
  EXPECT_EQ(choice.placement->cpus, Range(32, 64));
  EXPECT_EQ(choice.reason, "cuda:0 is on NUMA node 1: threads on CPUs 32-63");
}

TEST(NumaChoice, StaysWithinWhatTheProcessMayUse) {
  const NumaChoice choice = ChooseNumaPlacement("cuda:0", TwoNodes(1), Range(30, 40));
  ASSERT_TRUE(choice.placement.has_value());
  EXPECT_EQ(choice.placement->cpus, Range(32, 40));
}

TEST(NumaChoice, LeavesEverythingWhereItIsWhenNothingCanBeGained) {
  const NumaChoice unknown = ChooseNumaPlacement("cuda:0", TwoNodes(std::nullopt), Range(0, 64));
  EXPECT_FALSE(unknown.placement.has_value());
  EXPECT_THAT(unknown.reason, HasSubstr("does not say"));
  NumaFacts one = TwoNodes(0);
  one.nodes.pop_back();
  EXPECT_FALSE(ChooseNumaPlacement("cuda:0", one, Range(0, 64)).placement.has_value());
  const NumaChoice forbidden = ChooseNumaPlacement("cuda:0", TwoNodes(1), Range(0, 8));
  EXPECT_FALSE(forbidden.placement.has_value());
  EXPECT_THAT(forbidden.reason, HasSubstr("node 1, none of whose CPUs"));
  EXPECT_FALSE(ChooseNumaPlacement("cuda:0", TwoNodes(7), Range(0, 64)).placement.has_value());
  NumaFacts memory_only = TwoNodes(1);
  memory_only.nodes[1].cpus.clear();
  EXPECT_FALSE(ChooseNumaPlacement("cuda:0", memory_only, Range(0, 64)).placement.has_value());
}

}  // namespace
}  // namespace layercake::base
