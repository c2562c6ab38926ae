#include "base/thread_placement.h"

#include <cstdio>
#include <fstream>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace layercake::base {
namespace {

// Each test in a thread of its own: a binding stays.
void InAThread(void (*test)()) { std::thread(test).join(); }

TEST(ThreadPlacement, BindsAThreadAndThoseThatItStarts) {
  InAThread([] {
    const auto before = AllowedCpus();
    ASSERT_TRUE(before.ok()) << before.status();
    ASSERT_FALSE(before->empty());
    const std::vector<int> last = {before->back()};
    ASSERT_EQ(RunOnCpus(last), absl::OkStatus());
    EXPECT_EQ(*AllowedCpus(), last);
    InAThread([] { EXPECT_EQ(AllowedCpus()->size(), 1u); });
  });
  EXPECT_EQ(AllowedCpus().ok(), true);
}

TEST(ThreadPlacement, CountsNoMoreCpusThanAQuotaPaysFor) {
  const std::string folder = testing::TempDir();
  const std::string path = folder + "/cpu.max";
  const auto usable = [&](absl::string_view text) {
    std::ofstream(path) << text;
    return UsableCpus(folder).value();
  };
  const auto all = static_cast<double>(AllowedCpus()->size());
  EXPECT_EQ(usable("50000 100000\n"), 0.5);
  EXPECT_EQ(usable("max 100000\n"), all);
  EXPECT_EQ(usable("900000000 100000\n"), all);
  EXPECT_EQ(usable("50000 0\n"), all) << "no period";
  std::remove(path.c_str());
  EXPECT_EQ(UsableCpus(folder).value(), all) << "no quota is kept here";
}

TEST(ThreadPlacement, RefusesProcessorsThatAreNotThere) {
  InAThread([] {
    const std::vector<int> none = {kMaxCpus - 1};
    if (AllowedCpus()->back() == kMaxCpus - 1) GTEST_SKIP() << "this machine has that many";
    EXPECT_TRUE(absl::IsInvalidArgument(RunOnCpus(none))) << RunOnCpus(none);
    EXPECT_GT(AllowedCpus()->size(), 0u);
  });
}

TEST(ThreadPlacement, PrefersMemoryOfANodeWhereTheKernelLetsIt) {
  InAThread([] {
    const absl::Status preferred = PreferMemoryOfNode(0);
    if (!preferred.ok()) GTEST_SKIP() << preferred;
    std::vector<char> touched(1 << 20, 'x');
    EXPECT_EQ(touched.back(), 'x');
    EXPECT_FALSE(PreferMemoryOfNode(kMaxCpus - 1).ok()) << "no such node";
  });
}

}  // namespace
}  // namespace layercake::base
