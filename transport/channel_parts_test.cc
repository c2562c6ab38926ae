// Frames in parts, over every kind of channel: those that have no use for parts deliver the whole.
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "transport/channel_test_support.h"

namespace layercake::transport {
namespace {

class Parts : public ChannelTest {};

// A frame of 3,000 bytes on its way in parts, 1,000 of them sections.
struct InParts {
  static constexpr OutgoingFrame kFrame = {
      .kind = FrameKind::kActivation, .step = 7, .section_bytes = 1000, .payload_bytes = 3000};
  SendSlot slot;
  std::string text;

  // Writes all of it.
  explicit InParts(ChannelRig& rig) : text(kFrame.payload_bytes, '\0') {
    base::SeededRandom random(3);
    for (char& c : text) c = static_cast<char>(random.Next());
    rig.sender_end.Run([&] {
      slot = **rig.sender->Acquire(Lane::kActivation);
      EXPECT_TRUE(WritePayload(rig.sender_memory(), slot, text, kFrame.section_bytes).ok());
    });
  }
  absl::Status Say(ChannelRig& rig, uint32_t bytes) const {
    absl::Status status;
    rig.sender_end.Run([&] { status = rig.sender->CommitPart(slot, kFrame, bytes); });
    return status;
  }
};

TEST_P(Parts, GivesAFrameInPartsAsAWholeToWhoeverPolls) {
  ChannelRig& rig = MakeRig();
  ASSERT_TRUE(rig.Connect().ok());
  const InParts sent(rig);
  for (const uint32_t bytes : {1000u, 1001u, 2500u}) {
    ASSERT_EQ(sent.Say(rig, bytes), absl::OkStatus());
    rig.receiver_end.Run([&] {
      const auto frame = rig.receiver->Poll(Lane::kActivation);
      ASSERT_EQ(frame.status(), absl::OkStatus());
      EXPECT_FALSE(frame->has_value()) << bytes;
    });
  }
  ASSERT_EQ(sent.Say(rig, 3000), absl::OkStatus());
  const Got got = ReceiveText(rig, Lane::kActivation);
  ASSERT_EQ(got.status, absl::OkStatus());
  EXPECT_TRUE(got.text == sent.text);
  EXPECT_EQ(got.header.step, 7u);
  ASSERT_TRUE(SendText(rig, Lane::kActivation, "next").ok());
  EXPECT_EQ(ReceiveText(rig, Lane::kActivation).text, "next");
}

// A poll of the plan lane gave the arriving activation when that was whole, and lost the plan.
TEST_P(Parts, LeavesAFrameInPartsToItsOwnLane) {
  ChannelRig& rig = MakeRig();
  ASSERT_TRUE(rig.Connect().ok());
  const InParts sent(rig);
  ASSERT_EQ(sent.Say(rig, 1000), absl::OkStatus());
  rig.receiver_end.Run([&] { EXPECT_FALSE(rig.receiver->Poll(Lane::kActivation)->has_value()); });
  ASSERT_TRUE(SendText(rig, Lane::kPlan, "plan").ok());
  ASSERT_EQ(sent.Say(rig, 3000), absl::OkStatus());
  EXPECT_EQ(ReceiveText(rig, Lane::kPlan).text, "plan");
  EXPECT_TRUE(ReceiveText(rig, Lane::kActivation).text == sent.text);
}

// A poll that had found some parts and not all was not woken for the rest.
TEST_P(Parts, WakesAReceiverThatFoundSomePartsOfAFrameForTheRest) {
  ChannelRig& rig = MakeRig();
  ASSERT_TRUE(rig.Connect().ok());
  const InParts sent(rig);
  ASSERT_EQ(sent.Say(rig, 1000), absl::OkStatus());
  ASSERT_EQ(sent.Say(rig, 2000), absl::OkStatus());
  rig.receiver_end.Run([&] { EXPECT_FALSE(rig.receiver->Poll(Lane::kActivation)->has_value()); });
  absl::Notification asked;
  int asks = 0;
  bool woken = false;
  std::thread waiting([&] {
    woken = rig.receiver_end.Await([&] {
      if (++asks == 1) asked.Notify();
      return asks > 1;
    });
  });
  asked.WaitForNotification();
  EXPECT_EQ(sent.Say(rig, 3000), absl::OkStatus());
  waiting.join();
  EXPECT_TRUE(woken);
  EXPECT_TRUE(ReceiveText(rig, Lane::kActivation).text == sent.text);
}

TEST_P(Parts, GivesTheStartOfAFrameInPartsBeforeItsEndWhereThatIsOfUse) {
  ChannelRig& rig = MakeRig();
  ASSERT_TRUE(rig.Connect().ok());
  const InParts sent(rig);
  bool in_parts = false;
  rig.sender_end.Run([&] { in_parts = rig.sender->part_bytes() > 0; });
  ASSERT_EQ(sent.Say(rig, 1500), absl::OkStatus());
  if (!in_parts) {
    ASSERT_EQ(sent.Say(rig, 3000), absl::OkStatus());
  }
  std::optional<ReceivedFrame> frame;
  absl::Status status;
  const auto arrived = [&](uint32_t bytes) {
    return rig.receiver_end.Await([&] {
      if (!frame) {
        auto begun = rig.receiver->PollBegun(Lane::kActivation);
        status = begun.status();
        if (!begun.ok() || !begun->has_value()) return !begun.ok();
        frame = **begun;
      }
      const auto there = rig.receiver->Arrived(*frame);
      status = there.status();
      return !there.ok() || *there >= bytes;
    });
  };
  if (in_parts) {
    ASSERT_TRUE(arrived(1500));
    ASSERT_EQ(status, absl::OkStatus());
    rig.receiver_end.Run([&] {
      EXPECT_EQ(*rig.receiver->Arrived(*frame), 1500u);
      EXPECT_EQ(rig.receiver->CheckArrived(*frame), absl::OkStatus());
      EXPECT_EQ(std::memcmp(frame->payload.address, sent.text.data(), 1500), 0);
      EXPECT_TRUE(
          absl::IsFailedPrecondition(rig.receiver->Release(Lane::kActivation, frame->slot)));
      EXPECT_FALSE(rig.receiver->Poll(Lane::kActivation)->has_value());
      EXPECT_FALSE(rig.receiver->PollBegun(Lane::kActivation)->has_value());
    });
    ASSERT_EQ(sent.Say(rig, 2000), absl::OkStatus());
    ASSERT_TRUE(arrived(2000));
    ASSERT_EQ(sent.Say(rig, 3000), absl::OkStatus());
  }
  ASSERT_TRUE(arrived(3000));
  ASSERT_EQ(status, absl::OkStatus());
  rig.receiver_end.Run([&] {
    EXPECT_EQ(rig.receiver->CheckArrived(*frame), absl::OkStatus());
    EXPECT_EQ(*rig.receiver->Arrived(*frame), 3000u);
    const auto text = ReadPayload(rig.receiver_memory(), *frame);
    EXPECT_TRUE(text.ok() && *text == sent.text);
    EXPECT_EQ(rig.receiver->Release(Lane::kActivation, frame->slot), absl::OkStatus());
  });
}

TEST_P(Parts, SeesASenderCloseInTheMiddleOfAFrame) {
  ChannelRig& rig = MakeRig();
  ASSERT_TRUE(rig.Connect().ok());
  const InParts sent(rig);
  ASSERT_EQ(sent.Say(rig, 1500), absl::OkStatus());
  rig.DestroySender();
  const absl::Status status = AwaitReceiverFailure(rig);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  rig.receiver_end.Run(
      [&] { EXPECT_EQ(rig.receiver->PollBegun(Lane::kActivation).status(), status); });
}

// Parts of random sizes to a receiver that asks now for whole frames and now for their starts.
TEST_P(Parts, CarriesFramesInRandomParts) {
  constexpr uint64_t kSeed = 7;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  constexpr int kFrames = 600;
  ChannelRig& rig = MakeRig();
  ASSERT_TRUE(rig.Connect().ok());
  Stream out = {.random = base::SeededRandom(kSeed), .slot_bytes = kSmall.activation_slot_bytes};
  Stream in = out;
  int received = 0;
  std::string wrong;
  std::thread receiving([&] {
    base::SeededRandom dice(kSeed + 1);
    std::optional<ReceivedFrame> frame;
    uint32_t seen = 0;
    // False when a call had nothing new.
    const auto step = [&]() -> absl::StatusOr<bool> {
      if (!frame) {
        LC_ASSIGN_OR_RETURN(frame, dice.Below(2) == 0 ? rig.receiver->Poll(Lane::kActivation)
                                                      : rig.receiver->PollBegun(Lane::kActivation));
        if (!frame) return false;
        seen = 0;
      }
      LC_ASSIGN_OR_RETURN(const uint32_t arrived, rig.receiver->Arrived(*frame));
      LC_RETURN_IF_ERROR(rig.receiver->CheckArrived(*frame));
      if (arrived < frame->header.payload_bytes) return std::exchange(seen, arrived) < arrived;
      std::vector<std::byte> expected(in.NextBytes());
      in.Fill(absl::MakeSpan(expected));
      LC_ASSIGN_OR_RETURN(const std::string text, ReadPayload(rig.receiver_memory(), *frame));
      if (text != AsText(expected)) return absl::DataLossError("another payload");
      LC_RETURN_IF_ERROR(rig.receiver->Release(Lane::kActivation, frame->slot));
      frame.reset();
      ++received;
      return true;
    };
    rig.receiver_end.Await(
        [&] {
          for (;;) {
            const absl::StatusOr<bool> more = step();
            if (!more.ok())
              wrong = absl::StrCat("frame ", received, ": ", more.status().ToString());
            if (!more.ok() || received == kFrames) return true;
            if (!*more) return false;
          }
        },
        absl::Seconds(120));
  });
  base::SeededRandom dice(kSeed + 2);
  int sent = 0;
  absl::Status status;
  rig.sender_end.Await(
      [&] {
        while (sent < kFrames && status.ok()) {
          const auto slot = rig.sender->Acquire(Lane::kActivation);
          status.Update(slot.status());
          if (!slot.ok()) return true;
          if (!slot->has_value()) return false;
          std::vector<std::byte> made(out.NextBytes());
          out.Fill(absl::MakeSpan(made));
          const auto bytes = static_cast<uint32_t>(made.size());
          const uint32_t sections = SectionBytes(bytes);
          status.Update(WritePayload(rig.sender_memory(), **slot, AsText(made), sections));
          const OutgoingFrame frame = {
              .kind = FrameKind::kActivation, .section_bytes = sections, .payload_bytes = bytes};
          uint32_t said = std::max(sections, 1u);
          for (; said < bytes; said += 1 + static_cast<uint32_t>(dice.Below(bytes))) {
            status.Update(rig.sender->CommitPart(**slot, frame, said));
          }
          status.Update(rig.sender->CommitPart(**slot, frame, bytes));
          ++sent;
        }
        return true;
      },
      absl::Seconds(120));
  receiving.join();
  EXPECT_EQ(status, absl::OkStatus());
  EXPECT_EQ(wrong, "");
  EXPECT_EQ(received, kFrames);
}

INSTANTIATE_TEST_SUITE_P(Every, Parts, EveryKind(), KindNameOf);

}  // namespace
}  // namespace layercake::transport
