// Rows through a channel with copies that run on threads of their own, beside the channel's.
#include "transport/rows_mover.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "transport/channel_rig.h"

namespace layercake::transport {
namespace {

constexpr uint32_t kSlotBytes = 3 << 20;

absl::StatusOr<std::unique_ptr<kernels::Device>> MakeDevice(base::Executor& on_done) {
  return kernels::CreateCpuDevice({.threads = 1}, on_done);
}

class RowsMoverTest : public ::testing::TestWithParam<std::tuple<TestKind, bool>> {};

TEST_P(RowsMoverTest, MovesLongAndShortRows) {
  const auto [kind, in_parts] = GetParam();
  constexpr uint64_t kSeed = 11;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  const base::SystemClock clock;
  const auto factories = MakeTestFactories(kind, clock);
  const ChannelOptions options = {.ring = {.term = 1, .epoch = 1},
                                  .geometry = {.plan_slots = 1,
                                               .plan_slot_bytes = 64,
                                               .activation_slots = 2,
                                               .activation_slot_bytes = kSlotBytes},
                                  .peer = "the other thread"};
  ChannelRig rig(*factories->sender, *factories->receiver, options, clock);
  ASSERT_EQ(rig.Connect(), absl::OkStatus());
  const auto out = MovingEnd::Create(rig.sender_end, MakeDevice, kSlotBytes, in_parts).value();
  const auto in = MovingEnd::Create(rig.receiver_end, MakeDevice, kSlotBytes, in_parts).value();
  std::byte* const from = out->block().address;
  base::SeededRandom random(kSeed);
  for (uint32_t i = 0; i < 24; ++i) {
    const auto bytes =
        static_cast<uint32_t>(i % 3 == 0 ? 1 + random.Below(20000) : 1 + random.Below(kSlotBytes));
    std::memset(from, static_cast<int>(i), kSlotBytes);
    for (size_t at = 0; at < bytes; at += 997) from[at] = std::byte(random.Below(256));
    absl::Status sent;
    ASSERT_TRUE(rig.sender_end.Await([&] {
      sent = out->mover().Send(*rig.sender, bytes);
      return !absl::IsResourceExhausted(sent);
    }));
    ASSERT_EQ(sent, absl::OkStatus());
    absl::StatusOr<bool> received = false;
    ASSERT_TRUE(rig.receiver_end.Await([&] {
      received = in->mover().Receive(*rig.receiver);
      return !received.ok() || *received;
    }));
    ASSERT_EQ(received.status(), absl::OkStatus());
    ASSERT_EQ(std::memcmp(in->block().address, from, bytes), 0) << bytes << " bytes";
    rig.sender_end.Run([&] { EXPECT_EQ(out->mover().status(), absl::OkStatus()); });
  }
}

INSTANTIATE_TEST_SUITE_P(Every, RowsMoverTest,
                         ::testing::Combine(::testing::Values(TestKind::kLocal,
                                                              TestKind::kPinnedHost,
                                                              TestKind::kUcxSharedMemory),
                                            ::testing::Bool()),
                         [](const ::testing::TestParamInfo<std::tuple<TestKind, bool>>& kind) {
                           return absl::StrCat(TestKindName(std::get<0>(kind.param)),
                                               std::get<1>(kind.param) ? "InParts" : "Whole");
                         });

}  // namespace
}  // namespace layercake::transport
