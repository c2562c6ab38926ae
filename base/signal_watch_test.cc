#include "base/signal_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace layercake::base {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

bool Readable(const SignalWatch& watch) {
  pollfd descriptor = {.fd = watch.fd(), .events = POLLIN, .revents = 0};
  return poll(&descriptor, 1, 0) == 1;
}

// As in a process that a shell started in the background, with a thread that a library started.
TEST(SignalWatch, SeesWhatAnotherThreadTakes) {
  ASSERT_NE(signal(SIGINT, SIG_IGN), SIG_ERR);
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  int wake[2];
  ASSERT_EQ(pipe(wake), 0);
  std::thread other([&wake] {
    pollfd descriptor = {.fd = wake[0], .events = POLLIN, .revents = 0};
    while (poll(&descriptor, 1, -1) < 0 && errno == EINTR) {
    }
  });
  {
    const auto watch = SignalWatch::Create({SIGINT, SIGTERM});
    ASSERT_TRUE(watch.ok()) << watch.status();
    // Every other thread takes it.
    ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &interrupt, nullptr), 0);
    ASSERT_EQ(pthread_kill(other.native_handle(), SIGINT), 0);
    ASSERT_EQ(kill(getpid(), SIGTERM), 0);
    pollfd descriptor = {.fd = (*watch)->fd(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&descriptor, 1, 10'000), 1);
    std::vector<int> seen = (*watch)->Take();
    while (seen.size() < 2 && poll(&descriptor, 1, 10'000) == 1) {
      for (const int number : (*watch)->Take()) seen.push_back(number);
    }
    EXPECT_THAT(seen, testing::UnorderedElementsAre(SIGINT, SIGTERM));
    EXPECT_FALSE(Readable(**watch));
  }
  EXPECT_EQ(pthread_sigmask(SIG_UNBLOCK, &interrupt, nullptr), 0);
  EXPECT_EQ(write(wake[1], "", 1), 1);
  other.join();
  close(wake[0]);
  close(wake[1]);
  EXPECT_EQ(signal(SIGINT, SIG_DFL), SIG_IGN) << "what was before is there again";
}

TEST(SignalWatch, UnblocksWhatTheProgramWasStartedWithAsBlocked) {
  sigset_t terminate, before;
  sigemptyset(&terminate);
  sigaddset(&terminate, SIGTERM);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &terminate, &before), 0);
  {
    const auto watch = SignalWatch::Create({SIGTERM});
    ASSERT_TRUE(watch.ok()) << watch.status();
    ASSERT_EQ(raise(SIGTERM), 0);
    EXPECT_THAT((*watch)->Take(), ElementsAre(SIGTERM));
  }
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
}

TEST(SignalWatch, LeavesAnIgnoredHangupAlone) {
  ASSERT_NE(signal(SIGHUP, SIG_IGN), SIG_ERR);
  {
    const auto watch = SignalWatch::Create({SIGHUP});
    ASSERT_TRUE(watch.ok()) << watch.status();
    ASSERT_EQ(raise(SIGHUP), 0);
    EXPECT_THAT((*watch)->Take(), IsEmpty());
  }
  ASSERT_EQ(signal(SIGHUP, SIG_DFL), SIG_IGN);
  const auto watch = SignalWatch::Create({SIGHUP});
  ASSERT_TRUE(watch.ok()) << watch.status();
  ASSERT_EQ(raise(SIGHUP), 0);
  EXPECT_THAT((*watch)->Take(), ElementsAre(SIGHUP));
}

TEST(SignalWatch, SeveralSeeEachSignalThatTheyAskedFor) {
  auto first = SignalWatch::Create({SIGTERM, SIGHUP});
  const auto second = SignalWatch::Create({SIGTERM});
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_EQ(raise(SIGTERM), 0);
  ASSERT_EQ(raise(SIGHUP), 0);
  EXPECT_THAT((*first)->Take(), ElementsAre(SIGTERM, SIGHUP));
  EXPECT_THAT((*second)->Take(), ElementsAre(SIGTERM));
  first->reset();
  ASSERT_EQ(raise(SIGTERM), 0) << "still handled for the other one";
  EXPECT_THAT((*second)->Take(), ElementsAre(SIGTERM));
}

TEST(SignalWatch, SeesNothingOfWhatCameBeforeIt) {
  {
    const auto watch = SignalWatch::Create({SIGTERM});
    ASSERT_TRUE(watch.ok()) << watch.status();
    ASSERT_EQ(raise(SIGTERM), 0);
  }
  const auto watch = SignalWatch::Create({SIGTERM});
  ASSERT_TRUE(watch.ok()) << watch.status();
  EXPECT_FALSE(Readable(**watch));
}

TEST(SignalWatch, RefusesMoreThanItHasRoomFor) {
  std::vector<std::unique_ptr<SignalWatch>> watches;
  for (int i = 0; i < 64; ++i) {
    auto watch = SignalWatch::Create({SIGTERM});
    ASSERT_TRUE(watch.ok()) << watch.status();
    watches.push_back(*std::move(watch));
  }
  EXPECT_EQ(SignalWatch::Create({SIGTERM}).status().code(), absl::StatusCode::kResourceExhausted);
  watches.clear();
  EXPECT_TRUE(SignalWatch::Create({SIGTERM}).ok());
}

}  // namespace
}  // namespace layercake::base
