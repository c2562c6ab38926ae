#include "coordinator/fair_queue.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::coordinator {
namespace {

using ::testing::ElementsAre;

SequenceId Id(uint64_t value) { return static_cast<SequenceId>(value); }
base::Instant At(double seconds) { return base::Instant::FromStart(absl::Seconds(seconds)); }

TEST(FairQueue, ClientsTakeTurnsByTheTokensThatTheyCost) {
  FairQueue queue;
  for (uint64_t i = 0; i < 100; ++i) queue.Push(Id(i), "many", Priority::kInteractive, At(9));
  for (uint64_t i = 0; i < 10; ++i) queue.Push(Id(1000 + i), "few", Priority::kInteractive, At(9));
  int few = 0;
  for (int i = 0; i < 22; ++i) {
    const SequenceId id = *queue.Front();
    ASSERT_TRUE(queue.Remove(id));
    const bool is_few = static_cast<uint64_t>(id) >= 1000;
    few += is_few ? 1 : 0;
    queue.Charge(is_few ? "few" : "many", Priority::kInteractive, 50);
  }
  EXPECT_EQ(few, 10);
}

TEST(FairQueue, ServesOneClientInOrderOfArrival) {
  FairQueue queue;
  queue.Push(Id(2), "a", Priority::kInteractive, At(9));
  queue.Push(Id(1), "a", Priority::kInteractive, At(9));
  EXPECT_EQ(*queue.Front(), Id(2));
  queue.Remove(Id(2));
  EXPECT_EQ(*queue.Front(), Id(1));
  queue.Remove(Id(1));
  EXPECT_FALSE(queue.Front());
  EXPECT_FALSE(queue.Remove(Id(1)));
}

TEST(FairQueue, BatchGetsASmallShareAndNeverNone) {
  FairQueue queue;
  for (uint64_t i = 0; i < 900; ++i) queue.Push(Id(i), "a", Priority::kInteractive, At(9));
  for (uint64_t i = 0; i < 900; ++i) queue.Push(Id(1000 + i), "b", Priority::kBatch, At(9));
  int batch = 0;
  for (int i = 0; i < 90; ++i) {
    const SequenceId id = *queue.Front();
    queue.Remove(id);
    const bool is_batch = static_cast<uint64_t>(id) >= 1000;
    batch += is_batch ? 1 : 0;
    queue.Charge(is_batch ? "b" : "a", is_batch ? Priority::kBatch : Priority::kInteractive, 10);
  }
  EXPECT_NEAR(batch, 10, 1);
}

TEST(FairQueue, AClientThatWasAwayGetsNoCredit) {
  FairQueue queue;
  for (uint64_t i = 0; i < 10; ++i) queue.Push(Id(i), "a", Priority::kInteractive, At(9));
  queue.Charge("a", Priority::kInteractive, 1'000'000);
  for (uint64_t i = 0; i < 10; ++i) queue.Push(Id(100 + i), "new", Priority::kInteractive, At(9));
  int fresh = 0;
  for (int i = 0; i < 6; ++i) {
    const SequenceId id = *queue.Front();
    queue.Remove(id);
    const bool is_new = static_cast<uint64_t>(id) >= 100;
    fresh += is_new ? 1 : 0;
    queue.Charge(is_new ? "new" : "a", Priority::kInteractive, 10);
  }
  EXPECT_EQ(fresh, 3);
}

TEST(FairQueue, NobodyWaitsForOneThatComesAfterALongTimeOfOthersOnly) {
  FairQueue queue;
  // One client alone, never waiting: each request is admitted as it comes.
  for (uint64_t i = 0; i < 1000; ++i) {
    queue.Push(Id(i), "a", Priority::kInteractive, At(9));
    queue.Remove(Id(i));
    queue.Charge("a", Priority::kInteractive, 1000);
  }
  for (uint64_t i = 0; i < 20; ++i) {
    queue.Push(Id(2000 + i), "b", Priority::kInteractive, At(9));
    queue.Push(Id(3000 + i), "c", Priority::kBatch, At(9));
    queue.Push(Id(4000 + i), "a", Priority::kInteractive, At(9));
  }
  std::map<uint64_t, int> served;
  for (int i = 0; i < 12; ++i) {
    const SequenceId id = *queue.Front();
    queue.Remove(id);
    const uint64_t who = static_cast<uint64_t>(id) / 1000;
    ++served[who];
    queue.Charge(who == 2   ? "b"
                 : who == 3 ? "c"
                            : "a",
                 who == 3 ? Priority::kBatch : Priority::kInteractive, 1000);
  }
  EXPECT_NEAR(served[2], served[4], 1);
  EXPECT_LE(served[3], 2) << "the batch class";
}

TEST(FairQueue, NamesThoseThatWaitedTooLongInOrder) {
  FairQueue queue;
  queue.Push(Id(1), "a", Priority::kInteractive, At(3));
  queue.Push(Id(2), "b", Priority::kBatch, At(2));
  queue.Push(Id(3), "b", Priority::kBatch, At(4));
  EXPECT_EQ(queue.next_deadline(), At(2));
  EXPECT_THAT(queue.Expire(At(3)), ElementsAre(Id(2), Id(1)));
  EXPECT_EQ(queue.size(), 1);
  EXPECT_EQ(queue.next_deadline(), At(4));
}

}  // namespace
}  // namespace layercake::coordinator
