// What only the pinned_host kind has: sealed memory, counters that a peer writes, a socket folder.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/available_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/channel_rig.h"
#include "transport/offer.h"
#include "transport/pinned_host_memory.h"
#include "transport/pinned_host_socket.h"

namespace layercake::transport {
namespace {

using ::testing::HasSubstr;

constexpr ChannelGeometry kGeometry = {
    .plan_slots = 2, .plan_slot_bytes = 100, .activation_slots = 2, .activation_slot_bytes = 5000};

size_t EntryCount(const std::string& folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

base::UniqueFd Duplicate(int fd) { return base::UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

TEST(PinnedHostMemory, CannotBeShrunkGrownOrUnsealed) {
  const auto memory = PinnedHostMemory::Create(kGeometry, {});
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_NE(ftruncate(memory->fd(), 0), 0);
  EXPECT_NE(ftruncate(memory->fd(), 1 << 30), 0);
  EXPECT_NE(fcntl(memory->fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(PinnedHostMemory, RefusesMemoryThatIsNotSealedOrHasAnotherSize) {
  base::UniqueFd open_memory(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(open_memory.get(), 1 << 20), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      PinnedHostMemory::Open(std::move(open_memory), kGeometry, {}).status()));
  const auto memory = PinnedHostMemory::Create(kGeometry, {});
  ASSERT_TRUE(memory.ok());
  ChannelGeometry other = kGeometry;
  other.activation_slots = 100;
  EXPECT_TRUE(absl::IsFailedPrecondition(
      PinnedHostMemory::Open(Duplicate(memory->fd()), other, {}).status()));
  EXPECT_TRUE(PinnedHostMemory::Open(Duplicate(memory->fd()), kGeometry, {}).ok());
}

// FAULTS C7: too little memory is an error with the number of bytes, before any byte is used.
TEST(PinnedHostMemory, SaysHowManyBytesAreMissing) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1 << 20;
  auto* const handler = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  ChannelGeometry big = kGeometry;
  big.activation_slot_bytes = 4 << 20;
  const absl::Status status = PinnedHostMemory::Create(big, {}).status();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr(absl::StrCat(8 * (1 << 20) + 3 * 4096, " bytes")));
}

TEST(PinnedHostMemory, RefusesARingBeyondTheMachine) {
  const auto available = base::AvailableMemoryBytes();
  if (!available || *available > uint64_t{60} << 30) {
    GTEST_SKIP() << "this machine has more memory than the largest ring";
  }
  const absl::Status status = PinnedHostMemory::Create({.plan_slots = 1,
                                                        .plan_slot_bytes = 64,
                                                        .activation_slots = 63,
                                                        .activation_slot_bytes = 1u << 30},
                                                       {})
                                  .status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

TEST(PinnedHostMemory, RefusesCountersThatRunAway) {
  auto receiver = PinnedHostMemory::Create(kGeometry, {});
  ASSERT_TRUE(receiver.ok());
  auto sender = PinnedHostMemory::Open(Duplicate(receiver->fd()), kGeometry, {});
  ASSERT_TRUE(sender.ok());
  const std::array<std::byte, kFrameHeaderBytes> header{};
  EXPECT_TRUE(sender->PushFrame(Lane::kPlan, header, 0));   // nobody looked yet: ring
  EXPECT_FALSE(sender->PushFrame(Lane::kPlan, header, 1));  // rung already
  EXPECT_FALSE(sender->PushFrame(Lane::kPlan, header, 0));  // a third frame in two slots
  EXPECT_TRUE(absl::IsDataLoss(receiver->PopFrame(Lane::kPlan).status()));
  for (int i = 0; i < 3; ++i) static_cast<void>(receiver->PushCredit(Lane::kActivation, 0));
  EXPECT_TRUE(absl::IsDataLoss(sender->PopCredit(Lane::kActivation).status()));
}

TEST(PinnedHostMemory, AsksForTheDoorbellOnlyWhenEmpty) {
  auto receiver = PinnedHostMemory::Create(kGeometry, {});
  ASSERT_TRUE(receiver.ok());
  auto sender = PinnedHostMemory::Open(Duplicate(receiver->fd()), kGeometry, {});
  ASSERT_TRUE(sender.ok());
  const std::array<std::byte, kFrameHeaderBytes> header{};
  EXPECT_TRUE(sender->PushFrame(Lane::kPlan, header, 0));
  EXPECT_TRUE(receiver->PopFrame(Lane::kPlan).value().has_value());
  EXPECT_FALSE(sender->PushFrame(Lane::kPlan, header, 1));  // it has not found the end yet
  EXPECT_EQ(receiver->PopFrame(Lane::kPlan).value()->slot, 1u);
  EXPECT_FALSE(receiver->PopFrame(Lane::kPlan).value().has_value());
  EXPECT_TRUE(sender->PushFrame(Lane::kPlan, header, 0));
}

TEST(PinnedHostMemory, CarriesTheWordOfASlotAndAsksForTheDoorbellWhenItStandsStill) {
  auto receiver = PinnedHostMemory::Create(kGeometry, {});
  ASSERT_TRUE(receiver.ok());
  auto sender = PinnedHostMemory::Open(Duplicate(receiver->fd()), kGeometry, {});
  ASSERT_TRUE(sender.ok());
  const PartProgress first = {.bytes = 100, .crc32c = 0xfedcba98};
  const PartProgress second = {.bytes = 4999, .crc32c = 1};
  EXPECT_FALSE(sender->PushProgress(1, first));
  EXPECT_EQ(receiver->ReadProgress(1, 0), first);
  EXPECT_FALSE(sender->PushProgress(1, second));  // the receiver has not found it standing still
  EXPECT_EQ(receiver->ReadProgress(1, 100), second);
  EXPECT_EQ(receiver->ReadProgress(1, 4999), second);
  EXPECT_EQ(receiver->ReadProgress(0, 0), PartProgress());  // the other slot's own
  EXPECT_TRUE(sender->PushProgress(1, first));
}

class PinnedHost : public ::testing::Test {
 protected:
  PinnedHost() : factories_(MakeTestFactories(TestKind::kPinnedHost, clock_)) {}

  const base::SystemClock clock_;
  const std::unique_ptr<TestFactories> factories_;
  ChannelRig rig_{*factories_->sender, *factories_->receiver, PeerTestOptions(), clock_};
};

TEST_F(PinnedHost, KeepsItsFolderToItselfAndRemovesItOnceConnected) {
  ASSERT_TRUE(rig_.CreateReceiver().ok());
  const std::string path = DecodeOffer(rig_.offer)->body;
  struct stat found {};
  ASSERT_EQ(stat(std::filesystem::path(path).parent_path().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
  EXPECT_EQ(EntryCount(factories_->folder.path()), 1u);
  ASSERT_TRUE(rig_.ConnectSender(rig_.offer).ok());
  ASSERT_TRUE(rig_.sender_end.Await([&] { return rig_.sender->connected(); }));
  // The sender may hear its welcome while the receiver still tidies up behind it.
  rig_.receiver_end.Run([] {});
  EXPECT_EQ(EntryCount(factories_->folder.path()), 0u);
}

TEST_F(PinnedHost, RemovesItsFolderWhenItIsClosedUnused) {
  ASSERT_TRUE(rig_.CreateReceiver().ok());
  rig_.DestroyReceiver();
  EXPECT_EQ(EntryCount(factories_->folder.path()), 0u);
}

TEST_F(PinnedHost, LetsStrangersKnockWithoutLosingItsSender) {
  ASSERT_TRUE(rig_.CreateReceiver().ok());
  const std::string path = DecodeOffer(rig_.offer)->body;
  std::vector<base::UniqueFd> strangers;
  for (int i = 0; i < 12; ++i) {
    auto knock = ConnectSocket(path);
    if (knock.ok()) strangers.push_back(*std::move(knock));
    rig_.receiver_end.Run([] {});
  }
  for (const base::UniqueFd& stranger : strangers) {
    // The oldest have been turned away: their socket may be closed.
    SendMessage(stranger.get(), "not a greeting", {}).IgnoreError();
  }
  rig_.receiver_end.Run([] {});
  ASSERT_TRUE(rig_.ConnectSender(rig_.offer).ok());
  EXPECT_TRUE(rig_.sender_end.Await([&] { return rig_.sender->connected(); }));
}

TEST_F(PinnedHost, ExplainsASocketFolderThatCannotWork) {
  PinnedHostOptions options;
  options.socket_folder = "/no/such/folder";
  PinnedHostChannelFactory missing(std::move(options));
  rig_.receiver_end.Run([&] {
    const auto made = missing.CreateReceiver(PeerTestOptions(), rig_.receiver_end.context());
    EXPECT_THAT(made.status().message(), HasSubstr("/no/such/folder"));
  });
  PinnedHostOptions long_options;
  long_options.socket_folder = "/" + std::string(120, 'x');
  PinnedHostChannelFactory too_long(std::move(long_options));
  rig_.receiver_end.Run([&] {
    const auto made = too_long.CreateReceiver(PeerTestOptions(), rig_.receiver_end.context());
    EXPECT_TRUE(absl::IsInvalidArgument(made.status())) << made.status();
  });
}

// A part that changed after it was summed is found before the frame counts as whole.
TEST_F(PinnedHost, FindsHarmInEveryPartOfAFrame) {
  for (const size_t harmed : {size_t{10}, size_t{2500}, size_t{59999}}) {
    ChannelRig rig(*factories_->sender, *factories_->receiver, PeerTestOptions(), clock_);
    ASSERT_TRUE(rig.Connect().ok());
    rig.sender_end.Run([&] {
      const SendSlot slot = **rig.sender->Acquire(Lane::kActivation);
      const OutgoingFrame frame = {
          .kind = FrameKind::kActivation, .section_bytes = 20, .payload_bytes = 60000};
      std::memset(slot.memory.address, 5, 60000);
      ASSERT_TRUE(rig.sender->CommitPart(slot, frame, 2000).ok());
      ASSERT_TRUE(rig.sender->CommitPart(slot, frame, 60000).ok());
      slot.memory.address[harmed] ^= std::byte{1};
    });
    absl::Status status;
    ASSERT_TRUE(rig.receiver_end.Await([&] {
      const auto frame = rig.receiver->PollBegun(Lane::kActivation);
      status = frame.status();
      if (!frame.ok() || !frame->has_value()) return !frame.ok();
      EXPECT_EQ(*rig.receiver->Arrived(**frame), 60000u);
      status = rig.receiver->CheckArrived(**frame);
      return true;
    }));
    EXPECT_TRUE(absl::IsDataLoss(status)) << harmed << ": " << status;
    rig.receiver_end.Run([&] { EXPECT_EQ(rig.receiver->status(), status); });
  }
}

TEST_F(PinnedHost, SendsNothingElseOnTheLaneUntilAFrameInPartsIsWhole) {
  ASSERT_TRUE(rig_.Connect().ok());
  rig_.sender_end.Run([&] {
    const SendSlot first = **rig_.sender->Acquire(Lane::kActivation);
    const SendSlot second = **rig_.sender->Acquire(Lane::kActivation);
    const SendSlot plan = **rig_.sender->Acquire(Lane::kPlan);
    const OutgoingFrame frame = {
        .kind = FrameKind::kActivation, .section_bytes = 20, .payload_bytes = 3000};
    EXPECT_TRUE(absl::IsInvalidArgument(rig_.sender->CommitPart(first, frame, 19)));
    ASSERT_TRUE(rig_.sender->CommitPart(first, frame, 20).ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(rig_.sender->Commit(second, frame)));
    EXPECT_TRUE(absl::IsFailedPrecondition(rig_.sender->CommitPart(second, frame, 100)));
    EXPECT_TRUE(absl::IsInvalidArgument(rig_.sender->CommitPart(first, frame, 3001)));
    EXPECT_TRUE(rig_.sender->Commit(plan, {.payload_bytes = 1}).ok());
    EXPECT_TRUE(rig_.sender->CommitPart(first, frame, 3000).ok());
    EXPECT_TRUE(rig_.sender->CommitPart(second, frame, 3000).ok());
  });
}

TEST(PinnedHostRegistration, CoversBothMappingsAndIsUndone) {
  const base::SystemClock clock;
  TemporaryFolder folder;
  std::atomic<size_t> registered = 0;
  std::atomic<size_t> undone = 0;
  const auto make = [&] {
    PinnedHostOptions options;
    options.socket_folder = folder.path();
    options.register_host_memory = [&](absl::Span<std::byte> memory) -> absl::StatusOr<base::Task> {
      registered += memory.size();
      return [&undone, bytes = memory.size()] { undone += bytes; };
    };
    return std::make_unique<PinnedHostChannelFactory>(std::move(options));
  };
  const auto sender = make();
  const auto receiver = make();
  {
    ChannelRig rig(*sender, *receiver, PeerTestOptions(), clock);
    ASSERT_TRUE(rig.Connect().ok());
    EXPECT_GT(registered, size_t{2} * 4 * (64 << 10));
    EXPECT_EQ(undone, 0u);
  }
  EXPECT_EQ(undone, registered);
}

}  // namespace
}  // namespace layercake::transport
