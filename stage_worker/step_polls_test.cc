// A loop that stays awake for what usually comes now.
#include <gtest/gtest.h>

#include "stage_worker/testing/step_chain.h"

namespace layercake::stage_worker {
namespace {

constexpr absl::Duration kComputes = absl::Milliseconds(3);

class StepPollsTest : public testing::StepChainTest {
 protected:
  void BuildTwo(bool polls) {
    polls_ = polls;
    Build(2);
  }
  // A step without rows whose first stage computes for kComputes; the second one is as fast as
  // light.
  void RunStep() {
    part(0).loop->OnPlan(Plan(++step_));
    Look();
    time_.Advance(kComputes);
    EndFirst();
  }
  // Ends the step of the first stage. Where the second one's device is awake, that waits for it.
  void EndFirst() {
    ASSERT_TRUE(part(0).device->RunOne());
    Look();
    RunAll();
  }
  // Both stages know by then how long a step takes.
  void Learn() {
    for (int i = 0; i < 8; ++i) RunStep();
  }
  bool Awake(int stage) { return part(stage).poll.until > time_.Now(); }

  uint64_t step_ = 0;
};

TEST_F(StepPollsTest, StaysAwakeWhenAnActivationUsuallyComes) {
  BuildTwo(/*polls=*/true);
  Learn();
  const base::Instant planned = time_.Now();
  part(0).loop->OnPlan(Plan(++step_));
  Look();
  EXPECT_FALSE(Awake(1));
  time_.Advance(kComputes - absl::Milliseconds(1));
  EXPECT_FALSE(Awake(1));
  EXPECT_EQ(part(1).device->queued(), 0u);
  time_.Advance(absl::Microseconds(800));
  EXPECT_TRUE(Awake(1));
  EXPECT_LE(part(1).poll.until, planned + kComputes + WaitForecast::kMaxLag);
  EXPECT_EQ(part(1).device->queued(), 1u) << "the device's thread is awake too";
  EXPECT_TRUE(Awake(0)) << "for the end of its own step";
  ASSERT_TRUE(part(0).device->RunOne());
  Look();
  EXPECT_EQ(part(1).device->queued(), 3u) << "and goes on to the activation and the step";
  RunAll();
  EXPECT_EQ(results_.size(), step_);
}

TEST_F(StepPollsTest, SleepsWhereItMayNotStayAwake) {
  BuildTwo(/*polls=*/false);
  Learn();
  part(0).loop->OnPlan(Plan(++step_));
  Look();
  time_.Advance(kComputes - absl::Microseconds(100));
  EXPECT_FALSE(Awake(0));
  EXPECT_FALSE(Awake(1));
  EXPECT_EQ(part(1).device->queued(), 0u);
  RunAll();
  EXPECT_EQ(results_.size(), step_);
}

TEST_F(StepPollsTest, SleepsWhileNothingIsPlanned) {
  BuildTwo(/*polls=*/true);
  Learn();
  for (int i = 0; i < 10; ++i) {
    time_.Advance(absl::Milliseconds(1));
    Look();
    EXPECT_FALSE(Awake(0));
    EXPECT_FALSE(Awake(1));
  }
}

TEST_F(StepPollsTest, TakesWhatComesTooLate) {
  BuildTwo(/*polls=*/true);
  Learn();
  part(0).loop->OnPlan(Plan(++step_));
  Look();
  time_.Advance(5 * kComputes);
  EXPECT_FALSE(Awake(1)) << "the window is over";
  EXPECT_EQ(part(1).device->queued(), 1u);
  RunAll();  // in which that goes first: by itself, since its time is over
  EXPECT_EQ(results_.size(), step_);
}

TEST_F(StepPollsTest, LetsTheDeviceGoWhenItStops) {
  BuildTwo(/*polls=*/true);
  Learn();
  part(0).loop->OnPlan(Plan(++step_));
  Look();
  time_.Advance(kComputes);
  ASSERT_EQ(part(1).device->queued(), 1u);
  part(1).loop->Stop();
  EXPECT_FALSE(Awake(1));
  EXPECT_FALSE(part(1).loop->drained());
  ASSERT_TRUE(part(1).device->RunOne()) << "it would look for ever: this clock stands still";
  time_.RunPosted();
  EXPECT_TRUE(part(1).loop->drained());
  EXPECT_EQ(part(1).drained, 1);
}

}  // namespace
}  // namespace layercake::stage_worker
