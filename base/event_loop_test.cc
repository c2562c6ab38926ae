#include "base/event_loop.h"

#include <sys/eventfd.h>

#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::base {
namespace {

using ::testing::ElementsAre;

class EventLoopTest : public ::testing::Test {
 protected:
  SystemClock clock_;
  std::unique_ptr<EventLoop> loop_ = *EventLoop::Create(clock_);
};

TEST_F(EventLoopTest, RunsPostedTasksInOrderAndStopsAfterThem) {
  std::vector<int> ran;
  ASSERT_TRUE(loop_->Post([&] {
    ran.push_back(1);
    ASSERT_TRUE(loop_->Post([&] { ran.push_back(3); }));
    loop_->Stop();
  }));
  ASSERT_TRUE(loop_->Post([&] { ran.push_back(2); }));
  loop_->Run();
  EXPECT_THAT(ran, ElementsAre(1, 2, 3));
}

TEST_F(EventLoopTest, RefusesTasksWhenFullAndAfterItHasRun) {
  auto small = *EventLoop::Create(clock_, {.max_posted = 2});
  EXPECT_TRUE(small->Post([] {}));
  EXPECT_TRUE(small->Post([&] { small->Stop(); }));
  EXPECT_FALSE(small->Post([] {}));
  small->Run();
  EXPECT_FALSE(small->Post([] {}));
}

TEST_F(EventLoopTest, RunsTimersByTimeThenByOrderAdded) {
  std::vector<int> ran;
  const Instant now = clock_.Now();
  loop_->At(now + absl::Milliseconds(10), [&] {
    ran.push_back(4);
    loop_->Stop();
  });
  loop_->At(now + absl::Milliseconds(2), [&] { ran.push_back(2); });
  loop_->At(now + absl::Milliseconds(2), [&] { ran.push_back(3); });
  loop_->At(now - absl::Seconds(1), [&] { ran.push_back(1); });
  loop_->Run();
  EXPECT_THAT(ran, ElementsAre(1, 2, 3, 4));
  EXPECT_GE(clock_.Now(), now + absl::Milliseconds(10));
}

TEST_F(EventLoopTest, HearsOfEverythingWhileItPolls) {
  UniqueFd fd(eventfd(0, EFD_NONBLOCK));
  std::vector<int> ran;
  std::thread posting;
  const auto on_timer = [&] {
    ran.push_back(2);
    posting = std::thread([&] {
      EXPECT_TRUE(loop_->Post([&] {
        ran.push_back(3);
        loop_->Stop();
      }));
    });
  };
  const auto on_readable = [&] {
    eventfd_t value = 0;
    eventfd_read(fd.get(), &value);
    ran.push_back(1);
    loop_->At(clock_.Now() + absl::Microseconds(300), on_timer);
  };
  ASSERT_TRUE(loop_->Watch(fd.get(), on_readable).ok());
  // Far beyond the test's end: nothing may wait for the end of polling.
  loop_->PollUntil(clock_.Now() + absl::Hours(1));
  std::thread ringing([&] { eventfd_write(fd.get(), 1); });
  loop_->Run();
  ringing.join();
  posting.join();
  EXPECT_THAT(ran, ElementsAre(1, 2, 3));
  loop_->Unwatch(fd.get());
}

// Counts how often it is asked from an instant on: a loop that polls asks all the time.
class CountingClock final : public Clock {
 public:
  Instant Now() const override {
    const Instant now = system_.Now();
    (now < from ? before : after) += 1;
    return now;
  }
  absl::Time WallNow() const override { return system_.WallNow(); }

  Instant from = Instant::Infinite();
  mutable int before = 0;
  mutable int after = 0;

 private:
  SystemClock system_;
};

TEST(EventLoopPolling, PollsAsLongAsItIsAskedToAndThenSleeps) {
  CountingClock clock;
  // On a busy machine the thread may be away for most of those milliseconds: then once more.
  for (int attempt = 0; attempt < 100 && clock.before <= 20; ++attempt) {
    clock.from = Instant::Infinite();
    auto loop = *EventLoop::Create(clock);
    const Instant now = clock.Now();
    clock.from = now + absl::Milliseconds(5);
    clock.before = clock.after = 0;
    loop->PollUntil(clock.from);
    loop->At(now + absl::Milliseconds(20), [&] { loop->Stop(); });
    loop->Run();
    EXPECT_LT(clock.after, 20);
  }
  EXPECT_GT(clock.before, 20);
}

TEST_F(EventLoopTest, ACancelledTimerNeverRuns) {
  bool ran = false;
  const TimerId id = loop_->At(clock_.Now(), [&] { ran = true; });
  EXPECT_TRUE(loop_->Cancel(id));
  EXPECT_FALSE(loop_->Cancel(id));
  EXPECT_FALSE(loop_->Cancel(TimerId::kNone));
  loop_->At(clock_.Now() + absl::Milliseconds(1), [&] { loop_->Stop(); });
  loop_->Run();
  EXPECT_FALSE(ran);
}

TEST_F(EventLoopTest, CallsTheWatchOfAReadableDescriptorUntilUnwatched) {
  UniqueFd fd(eventfd(0, EFD_NONBLOCK));
  int calls = 0;
  ASSERT_TRUE(loop_
                  ->Watch(fd.get(),
                          [&] {
                            eventfd_t value = 0;
                            eventfd_read(fd.get(), &value);
                            if (++calls == 2) {
                              loop_->Unwatch(fd.get());
                              eventfd_write(fd.get(), 1);  // readable, and nobody watches
                              loop_->At(clock_.Now() + absl::Milliseconds(2),
                                        [&] { loop_->Stop(); });
                            } else {
                              eventfd_write(fd.get(), 1);
                            }
                          })
                  .ok());
  EXPECT_EQ(loop_->Watch(fd.get(), [] {}).code(), absl::StatusCode::kFailedPrecondition);
  eventfd_write(fd.get(), 1);
  loop_->Run();
  EXPECT_EQ(calls, 2);
}

TEST_F(EventLoopTest, TakesPostsFromManyThreadsWhileItSleeps) {
  constexpr int kThreads = 4;
  constexpr int kPosts = 1000;
  int ran = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kPosts; ++i) {
        ASSERT_TRUE(loop_->Post([&] {
          if (++ran == kThreads * kPosts) loop_->Stop();
        }));
      }
    });
  }
  loop_->Run();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran, kThreads * kPosts);
}

}  // namespace
}  // namespace layercake::base
