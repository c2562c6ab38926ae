#include "simulation/sim_process_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "base/virtual_loop.h"

namespace layercake::simulation {
namespace {

using base::ProcessExit;
using base::ProcessId;

// Ends with code 3 at SIGTERM.
class Program final : public SimProgram {
 public:
  Program(int& living, absl::AnyInvocable<void(int)> exit)
      : living_(living), exit_(std::move(exit)) {}
  ~Program() override { --living_; }
  void Start() override { ++living_; }
  void OnSigterm() override { exit_(3); }

 private:
  int& living_;
  absl::AnyInvocable<void(int)> exit_;
};

class SimProcessHostTest : public ::testing::Test {
 protected:
  ProcessId Spawn() {
    return host_.Spawn({}, [this](const ProcessExit& exit) { exits_.push_back(exit); }).value();
  }

  base::VirtualLoop loop_;
  int living_ = 0;
  std::vector<ProcessExit> exits_;
  SimProcessHost host_{loop_,
                       [this](const base::SpawnOptions&, absl::AnyInvocable<void(int)> exit) {
                         return std::make_unique<Program>(living_, std::move(exit));
                       }};
};

TEST_F(SimProcessHostTest, ReportsTheExitOfAProgramThatEnds) {
  const ProcessId id = Spawn();
  const ProcessId other = Spawn();
  EXPECT_EQ(living_, 2);
  EXPECT_NE(host_.pid(id), 0);
  ASSERT_TRUE(host_.Kill(id, SIGTERM).ok());
  EXPECT_TRUE(exits_.empty()) << "never inside a call";
  loop_.RunPosted();
  ASSERT_EQ(exits_.size(), 1u);
  EXPECT_EQ(exits_[0].id, id);
  EXPECT_NE(exits_[0].pid, 0);
  EXPECT_EQ(base::DescribeExit(exits_[0]), "exit code 3");
  EXPECT_EQ(living_, 1);
  EXPECT_EQ(host_.pid(id), 0);
  EXPECT_EQ(host_.Kill(id, SIGKILL).code(), absl::StatusCode::kNotFound);
  EXPECT_NE(host_.program(other), nullptr);
}

TEST_F(SimProcessHostTest, KillsAProgramWhereItStandsAndReportsItOnce) {
  const ProcessId id = Spawn();
  ASSERT_TRUE(host_.Kill(id, SIGKILL).ok());
  ASSERT_TRUE(host_.Kill(id, SIGTERM).ok()) << "it has not been reaped";
  loop_.RunPosted();
  ASSERT_EQ(exits_.size(), 1u);
  EXPECT_TRUE(exits_[0].signaled);
  EXPECT_EQ(exits_[0].code, SIGKILL);
  EXPECT_EQ(living_, 0);
  EXPECT_EQ(host_.program(id), nullptr);
}

TEST(SimProcessHost, EndsItsProgramsSilentlyWhenItGoes) {
  base::VirtualLoop loop;
  int living = 0;
  bool heard = false;
  auto host = std::make_unique<SimProcessHost>(
      loop, [&](const base::SpawnOptions&, absl::AnyInvocable<void(int)> exit) {
        return std::make_unique<Program>(living, std::move(exit));
      });
  const auto id = host->Spawn({}, [&](const ProcessExit&) { heard = true; });
  ASSERT_TRUE(id.ok());
  ASSERT_TRUE(host->Kill(*id, SIGKILL).ok());
  host.reset();
  EXPECT_EQ(living, 0);
  loop.RunPosted();
  EXPECT_FALSE(heard);
}

}  // namespace
}  // namespace layercake::simulation
