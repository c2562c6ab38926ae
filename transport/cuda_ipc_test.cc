// What only the cuda_ipc kind has: slots in (fake) device memory with sections beside them, a ring
// that is described and mapped, and copies that lie.
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/channel_rig.h"
#include "transport/device_slots.h"
#include "transport/probe.h"

namespace layercake::transport {
namespace {

using ::testing::HasSubstr;

constexpr ChannelGeometry kGeometry = {
    .plan_slots = 2, .plan_slot_bytes = 100, .activation_slots = 3, .activation_slot_bytes = 5000};

TEST(DeviceSlots, ShowTheSameBytesToBothEnds) {
  FakePeerMemory here("GPU-a");
  FakePeerMemory there("GPU-b");
  const auto own = DeviceSlots::Create(here, kGeometry);
  ASSERT_TRUE(own.ok()) << own.status();
  const auto mapped = DeviceSlots::Open(there, kGeometry, own->description());
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  for (uint32_t slot = 0; slot < kGeometry.activation_slots; ++slot) {
    const std::string text(kGeometry.activation_slot_bytes, static_cast<char>('a' + slot));
    ASSERT_EQ(mapped->Slot(slot).bytes, text.size());
    ASSERT_TRUE(there
                    .CopyIn(reinterpret_cast<const std::byte*>(text.data()), mapped->Slot(slot),
                            text.size())
                    .ok());
  }
  for (uint32_t slot = 0; slot < kGeometry.activation_slots; ++slot) {
    std::string text(kGeometry.activation_slot_bytes, '\0');
    ASSERT_TRUE(
        here.CopyOut(own->Slot(slot), reinterpret_cast<std::byte*>(text.data()), text.size()).ok());
    EXPECT_EQ(text, std::string(text.size(), static_cast<char>('a' + slot)));
  }
}

TEST(DeviceSlots, HaveRoomForTheSectionsOfNarrowRows) {
  for (const uint32_t rows : {1u, 16u, 700u, 65536u}) {
    const uint32_t slot_bytes = rows * 48 * 4;
    EXPECT_GE(DeviceSlots::SectionBytes(slot_bytes), 24 + 6 * rows) << rows;
    EXPECT_EQ(DeviceSlots::SectionBytes(slot_bytes) % 4096, 0u);
  }
}

TEST(DeviceSlots, RefuseADescriptionThatIsGarbled) {
  FakePeerMemory memory;
  const auto own = DeviceSlots::Create(memory, kGeometry);
  ASSERT_TRUE(own.ok());
  base::SeededRandom random(3);
  for (size_t at = 0; at < own->description().size(); ++at) {
    std::string garbled = own->description();
    const auto bit = static_cast<char>(1 << random.Below(8));
    garbled[at] = static_cast<char>(garbled[at] ^ bit);
    const bool device_name = at >= 28 && at < 28 + memory.device().size();  // for people only
    EXPECT_EQ(DeviceSlots::Open(memory, kGeometry, garbled).ok(), device_name) << at;
  }
  for (size_t bytes = 0; bytes < own->description().size(); ++bytes) {
    EXPECT_FALSE(DeviceSlots::Open(memory, kGeometry, own->description().substr(0, bytes)).ok());
  }
}

TEST(DeviceSlots, RefuseARingOfAnotherSize) {
  FakePeerMemory memory;
  const auto own = DeviceSlots::Create(memory, kGeometry);
  ASSERT_TRUE(own.ok());
  ChannelGeometry other = kGeometry;
  other.activation_slots = 2;
  const absl::Status status = DeviceSlots::Open(memory, other, own->description()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
}

// A block that was freed and made again has a handle like the old one's, and a driver may answer
// with what it mapped before.
TEST(DeviceSlots, RefuseAMappingOfAnOlderRing) {
  FakePeerMemory memory;
  auto older = DeviceSlots::Create(memory, kGeometry);
  ASSERT_TRUE(older.ok());
  auto newer = DeviceSlots::Create(memory, kGeometry);
  ASSERT_TRUE(newer.ok());
  // The newer ring's stamp with the older one's handle.
  const std::string mixed = newer->description().substr(0, 16) + older->description().substr(16);
  const absl::Status status = DeviceSlots::Open(memory, kGeometry, mixed).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("another ring"));
}

class CudaIpc : public ::testing::Test {
 protected:
  CudaIpc() : factories_(MakeTestFactories(TestKind::kCudaIpc, clock_)) {}
  std::unique_ptr<ChannelRig> MakeRig() {
    return std::make_unique<ChannelRig>(*factories_->sender, *factories_->receiver,
                                        PeerTestOptions(), clock_);
  }
  struct Probed {
    absl::Status sent;
    absl::Status received;
  };
  // Both ends' words on the probe; the channel is gone afterwards when one of them failed.
  static Probed Probe(ChannelRig& rig, const base::Clock& clock, kernels::PeerMemory* memory) {
    ProbeSender out(*rig.sender, rig.options, clock, memory);
    ProbeReceiver in(*rig.receiver, rig.options, rig.receiver_memory());
    absl::StatusOr<bool> sent = false;
    absl::StatusOr<bool> received = false;
    std::thread receiving([&] {
      rig.receiver_end.Await([&] {
        received = in.Advance();
        return !received.ok() || *received;
      });
      if (!received.ok()) rig.DestroyReceiver();
    });
    rig.sender_end.Await([&] {
      sent = out.Advance();
      return !sent.ok() || *sent;
    });
    if (!sent.ok()) rig.DestroySender();
    receiving.join();
    return {sent.status(), received.status()};
  }

  const base::SystemClock clock_;
  const std::unique_ptr<TestFactories> factories_;
};

TEST_F(CudaIpc, PutsActivationsOnTheDeviceAndPlansInHostMemory) {
  const auto rig = MakeRig();
  ASSERT_EQ(rig->Connect(), absl::OkStatus());
  rig->sender_end.Run([&] {
    const SendSlot plan = **rig->sender->Acquire(Lane::kPlan);
    EXPECT_EQ(plan.memory.space, kernels::MemorySpace::kHost);
    EXPECT_EQ(plan.section.bytes, 0u);
    const SendSlot activation = **rig->sender->Acquire(Lane::kActivation);
    EXPECT_EQ(activation.memory.space, kernels::MemorySpace::kDevice);
    EXPECT_EQ(activation.memory.bytes, rig->options.geometry.activation_slot_bytes);
    EXPECT_EQ(activation.section.space, kernels::MemorySpace::kHost);
    const auto room = static_cast<uint32_t>(activation.section.bytes);
    EXPECT_TRUE(absl::IsInvalidArgument(
        rig->sender->Commit(activation, {.section_bytes = room + 1, .payload_bytes = room + 1})));
    EXPECT_TRUE(
        rig->sender->Commit(activation, {.section_bytes = room, .payload_bytes = room + 8}).ok());
  });
  rig->receiver_end.Await([&] {
    const auto frame = rig->receiver->Poll(Lane::kActivation);
    if (frame.ok() && !frame->has_value()) return false;
    EXPECT_TRUE(frame.ok()) << frame.status();
    EXPECT_EQ((*frame)->payload.bytes, 8u);
    EXPECT_EQ((*frame)->payload.space, kernels::MemorySpace::kDevice);
    EXPECT_EQ((*frame)->sections().bytes, (*frame)->header.section_bytes);
    return true;
  });
}

TEST_F(CudaIpc, GivesItsDeviceMemoryBack) {
  {
    const auto rig = MakeRig();
    ASSERT_EQ(rig->Connect(), absl::OkStatus());
    EXPECT_EQ(factories_->receiver_memory.blocks(), 1u);
    EXPECT_EQ(factories_->sender_memory.blocks(), 1u);
  }
  EXPECT_EQ(factories_->receiver_memory.blocks(), 0u);
  EXPECT_EQ(factories_->sender_memory.blocks(), 0u);
}

// CASES E4: a copy that reports success and zeroes, repeats or leaves out a block, whichever of the
// probe's copies it is.
TEST_F(CudaIpc, FindsEveryHarmedCopyByTheProbe) {
  int copies = 0;
  {
    const auto rig = MakeRig();
    ASSERT_EQ(rig->Connect(), absl::OkStatus());
    ASSERT_EQ(Probe(*rig, clock_, rig->sender_memory()).received, absl::OkStatus());
    copies = factories_->sender_memory.copies();
    ASSERT_GE(copies, 10);
  }
  using Fault = FakePeerMemory::CopyFault;
  for (const Fault fault : {Fault::kZero, Fault::kRepeat, Fault::kTruncate}) {
    for (int index = 0; index < copies; ++index) {
      SCOPED_TRACE(absl::StrCat("copy ", index, " fault ", static_cast<int>(fault)));
      const auto factories = MakeTestFactories(TestKind::kCudaIpc, clock_);
      factories->sender_memory.HarmCopy(index, fault);
      ChannelRig rig(*factories->sender, *factories->receiver, PeerTestOptions(), clock_);
      ASSERT_EQ(rig.Connect(), absl::OkStatus());
      const absl::Status status = Probe(rig, clock_, rig.sender_memory()).received;
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_THAT(status.message(), HasSubstr("probe cuda_ipc from the other process"));
    }
  }
}

TEST_F(CudaIpc, CannotBeProbedWithoutItsDevice) {
  const auto rig = MakeRig();
  ASSERT_EQ(rig->Connect(), absl::OkStatus());
  const Probed probed = Probe(*rig, clock_, nullptr);
  EXPECT_TRUE(absl::IsFailedPrecondition(probed.sent)) << probed.sent;
  EXPECT_TRUE(absl::IsUnavailable(probed.received)) << probed.received;
}

}  // namespace
}  // namespace layercake::transport
