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

// A device at each end, its block, and the mover between block and channel.
struct MovingEnd {
  MovingEnd(ChannelEnd& channel_end, bool in_parts) : end(channel_end) {
    end.Run([&] {
      ChannelContext context = end.context();
      device = kernels::CreateCpuDevice({.threads = 1}, *context.executor).value();
      memory = device->Allocate(kSlotBytes).value();
      wake = std::move(context.on_ready);
      mover = std::make_unique<RowsMover>(*device, memory->buffer(), in_parts, [this] { wake(); });
    });
  }
  ~MovingEnd() {
    end.Await([&] { return mover->idle(); });
    end.Run([&] { device.reset(); });
  }
  std::byte* block() const { return memory->buffer().address; }

  ChannelEnd& end;
  std::unique_ptr<kernels::Device> device;
  std::unique_ptr<kernels::DeviceMemory> memory;
  absl::AnyInvocable<void()> wake;
  std::unique_ptr<RowsMover> mover;
};

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
  MovingEnd out(rig.sender_end, in_parts);
  MovingEnd in(rig.receiver_end, in_parts);
  base::SeededRandom random(kSeed);
  for (uint32_t i = 0; i < 24; ++i) {
    const auto bytes =
        static_cast<uint32_t>(i % 3 == 0 ? 1 + random.Below(20000) : 1 + random.Below(kSlotBytes));
    std::memset(out.block(), static_cast<int>(i), kSlotBytes);
    for (size_t at = 0; at < bytes; at += 997) out.block()[at] = std::byte(random.Below(256));
    absl::Status sent;
    ASSERT_TRUE(rig.sender_end.Await([&] {
      sent = out.mover->Send(*rig.sender, bytes);
      return !absl::IsResourceExhausted(sent);
    }));
    ASSERT_EQ(sent, absl::OkStatus());
    absl::StatusOr<bool> received = false;
    ASSERT_TRUE(rig.receiver_end.Await([&] {
      received = in.mover->Receive(*rig.receiver);
      return !received.ok() || *received;
    }));
    ASSERT_EQ(received.status(), absl::OkStatus());
    ASSERT_EQ(std::memcmp(in.block(), out.block(), bytes), 0) << bytes << " bytes";
    rig.sender_end.Run([&] { EXPECT_EQ(out.mover->status(), absl::OkStatus()); });
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
