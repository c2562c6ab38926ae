// A UCX thread that looks for what comes instead of sleeping.
#include <gtest/gtest.h>

#include <string>

#include "transport/channel_rig.h"
#include "transport/ucx_worker.h"

namespace layercake::transport {
namespace {

class UcxPolls : public testing::TestWithParam<TestKind> {};

TEST_P(UcxPolls, CarryFramesAndEndWhileTheyLook) {
  const base::SystemClock clock;
  const auto factories = MakeTestFactories(GetParam(), clock);
  ChannelRig rig(*factories->sender, *factories->receiver, PeerTestOptions(), clock);
  ASSERT_EQ(rig.Connect(), absl::OkStatus());
  // Far beyond the test's end: commands, messages and the end itself may not wait for it.
  for (UcxWorker* worker : {factories->sender_worker.get(), factories->receiver_worker.get()}) {
    worker->PollUntil(clock.Now() + absl::Hours(1));
  }
  for (int i = 0; i < 20; ++i) {
    const std::string payload(100, static_cast<char>('a' + i));
    rig.sender_end.Await([&] {
      const auto slot = rig.sender->Acquire(Lane::kActivation);
      if (!slot.ok() || !slot->has_value()) return false;
      EXPECT_TRUE(WritePayload(nullptr, **slot, payload, 0).ok());
      EXPECT_TRUE(
          rig.sender->Commit(**slot, {.kind = FrameKind::kActivation, .payload_bytes = 100}).ok());
      return true;
    });
    std::string got;
    EXPECT_TRUE(rig.receiver_end.Await([&] {
      const auto frame = rig.receiver->Poll(Lane::kActivation);
      if (!frame.ok() || !frame->has_value()) return false;
      got = ReadPayload(nullptr, **frame).value_or("");
      return rig.receiver->Release(Lane::kActivation, (*frame)->slot).ok();
    }));
    EXPECT_EQ(got, payload);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, UcxPolls,
                         testing::Values(TestKind::kUcxTcp, TestKind::kUcxSharedMemory),
                         [](const auto& param) { return TestKindName(param.param); });

}  // namespace
}  // namespace layercake::transport
