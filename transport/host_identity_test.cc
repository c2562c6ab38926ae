#include "transport/host_identity.h"

#include <unistd.h>

#include "gtest/gtest.h"

namespace layercake::transport {
namespace {

TEST(HostIdentity, TellsThisProcess) {
  const absl::StatusOr<HostIdentity> identity = ReadHostIdentity();
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_EQ(identity->pid, getpid());
  EXPECT_EQ(identity->user_id, geteuid());
  EXPECT_GT(identity->start_ticks, 0u);
  EXPECT_EQ(identity->boot_id.size(), 36u);
  EXPECT_EQ(identity->pid_namespace.rfind("pid:[", 0), 0u);
  EXPECT_FALSE(identity->host_id.empty());
  EXPECT_TRUE(SameProcess(*identity, *ReadHostIdentity()));
}

TEST(HostIdentity, DoesNotTakeAPidForAProcess) {
  HostIdentity one;
  one.host_id = "h";
  one.boot_id = "b";
  one.pid_namespace = "n";
  one.pid = 1;
  one.start_ticks = 100;
  HostIdentity other = one;
  EXPECT_TRUE(SameProcess(one, other));
  other.start_ticks = 101;  // the pid was used again
  EXPECT_FALSE(SameProcess(one, other));
  EXPECT_TRUE(SameHost(one, other));
  other = one;
  other.pid_namespace = "m";
  EXPECT_FALSE(SameProcess(one, other));
  other = one;
  other.boot_id = "c";  // a copied disk image, or after a reboot
  EXPECT_FALSE(SameHost(one, other));
  EXPECT_FALSE(SameHost({}, {}));
}

TEST(HostIdentity, ReadsTheStartTimeBehindAnyProgramName) {
  const char* const kTail = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21";
  for (const char* name : {"(sh)", "(a b)", "(evil) S 1 2 (x)", "()"}) {
    const auto ticks = ParseStartTicks(std::string("77 ") + name + kTail);
    ASSERT_TRUE(ticks.ok()) << ticks.status();
    EXPECT_EQ(*ticks, 4242u) << name;
  }
  for (const char* bad : {"", "77 sh S 1 2 3", "77 (sh) S 1 2 3", "77 (sh)"}) {
    EXPECT_TRUE(absl::IsDataLoss(ParseStartTicks(bad).status())) << bad;
  }
}

}  // namespace
}  // namespace layercake::transport
