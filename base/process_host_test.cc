#include "base/process_host.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/event_loop.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::base {
namespace {

using ::testing::HasSubstr;

class ProcessHostTest : public ::testing::Test {
 protected:
  SpawnOptions Shell(std::string script) {
    SpawnOptions options;
    options.argv = {"/bin/sh", "-c", std::move(script)};
    return options;
  }

  // Runs the loop until the child has ended.
  ProcessExit RunToExit(SpawnOptions options) {
    ProcessExit seen;
    const auto id = host_->Spawn(std::move(options), [&](const ProcessExit& exit) {
      seen = exit;
      loop_->Stop();
    });
    EXPECT_TRUE(id.ok()) << id.status();
    if (!id.ok()) return seen;
    EXPECT_GT(host_->pid(*id), 0);
    loop_->Run();
    EXPECT_EQ(seen.id, *id);
    return seen;
  }

  SystemClock clock_;
  std::unique_ptr<EventLoop> loop_ = *EventLoop::Create(clock_);
  std::unique_ptr<PosixProcessHost> host_ = *PosixProcessHost::Create(*loop_);
};

TEST_F(ProcessHostTest, ReportsTheExitCodeOnceAndForgetsTheChild) {
  const ProcessExit exit = RunToExit(Shell("exit 7"));
  EXPECT_FALSE(exit.signaled);
  EXPECT_EQ(exit.code, 7);
  EXPECT_EQ(DescribeExit(exit), "exit code 7");
  EXPECT_EQ(host_->pid(exit.id), 0);
  EXPECT_EQ(host_->Kill(exit.id, SIGTERM).code(), absl::StatusCode::kNotFound);
}

TEST_F(ProcessHostTest, ReportsTheSignalThatKilledAChild) {
  ProcessExit seen;
  const auto id = host_->Spawn(Shell("read forever <&3"), [&](const ProcessExit& exit) {
    seen = exit;
    loop_->Stop();
  });
  ASSERT_TRUE(id.ok()) << id.status();
  ASSERT_TRUE(host_->Kill(*id, SIGKILL).ok());
  loop_->Run();
  EXPECT_TRUE(seen.signaled);
  EXPECT_EQ(DescribeExit(seen), "signal 9 (Killed)");
}

TEST_F(ProcessHostTest, SaysWhyABinaryCannotBeExecuted) {
  SpawnOptions options;
  options.argv = {"/no/such/binary"};
  const auto id = host_->Spawn(std::move(options), [](const ProcessExit&) { FAIL(); });
  ASSERT_FALSE(id.ok());
  EXPECT_EQ(id.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(id.status().message()), HasSubstr("/no/such/binary"));
}

TEST_F(ProcessHostTest, PassesArgumentsEnvironmentAndDescriptors) {
  UniqueFd first(memfd_create("first", 0));
  UniqueFd second(memfd_create("second", 0));
  UniqueFd keep_first(dup(first.get()));
  UniqueFd keep_second(dup(second.get()));
  SpawnOptions options = Shell("printf %s \"$0:$LAYERCAKE_TEST\" >&4; printf %s \"$HOME\" >&5");
  options.argv.push_back("argument");
  options.environment = {{"LAYERCAKE_TEST", "value"}, {"HOME", "/replaced"}};
  options.inherited.push_back(std::move(first));
  options.inherited.push_back(std::move(second));
  EXPECT_EQ(RunToExit(std::move(options)).code, 0);
  std::array<char, 64> text{};
  const ssize_t got = pread(keep_first.get(), text.data(), text.size(), 0);
  EXPECT_EQ(std::string(text.data(), static_cast<size_t>(got)), "argument:value");
  const ssize_t got_second = pread(keep_second.get(), text.data(), text.size(), 0);
  EXPECT_EQ(std::string(text.data(), static_cast<size_t>(got_second)), "/replaced");
}

TEST_F(ProcessHostTest, AChildStartsWithDefaultSignalsInItsOwnGroup) {
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &blocked, &before), 0);
  // SIGTERM would stay pending in a child that inherited the mask. A group of its own has its pid.
  const ProcessExit exit = RunToExit(Shell("kill -TERM -$$; exit 1"));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_TRUE(exit.signaled);
  EXPECT_EQ(exit.code, SIGTERM);
}

TEST_F(ProcessHostTest, TheDestructorLeavesNoChildBehind) {
  const auto id = host_->Spawn(Shell("read forever <&3"), [](const ProcessExit&) { FAIL(); });
  ASSERT_TRUE(id.ok()) << id.status();
  const pid_t pid = static_cast<pid_t>(host_->pid(*id));
  host_.reset();
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

// The parent dies without any chance to clean up: the pipe's end of file or PR_SET_PDEATHSIG,
// whichever comes first, must end the grandchild.
TEST_F(ProcessHostTest, AChildEndsWithItsParent) {
  int report[2];
  ASSERT_EQ(pipe(report), 0);
  const pid_t parent = fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    auto host = PosixProcessHost::Create(*loop_);
    SpawnOptions options = Shell("read forever <&3");
    options.inherited.push_back(UniqueFd(dup(report[1])));
    const bool spawned = host.ok() && (*host)->Spawn(std::move(options), [](auto&) {}).ok();
    _exit(spawned ? 0 : 1);  // no destructor
  }
  close(report[1]);
  int status = 0;
  ASSERT_EQ(waitpid(parent, &status, 0), parent);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  // End of file: nobody, not even the grandchild, holds the write end any more.
  char byte = 0;
  EXPECT_EQ(read(report[0], &byte, 1), 0);
  close(report[0]);
}

}  // namespace
}  // namespace layercake::base
