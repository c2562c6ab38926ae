// One suite for every kind of channel. Each test runs both ends in threads of their own.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/channel_rig.h"
#include "transport/offer.h"
#include "transport/probe.h"

namespace layercake::transport {
namespace {

using ::testing::HasSubstr;

constexpr ChannelGeometry kSmall = {
    .plan_slots = 3, .plan_slot_bytes = 256, .activation_slots = 2, .activation_slot_bytes = 70000};

ChannelOptions Options(const ChannelGeometry& geometry = kSmall) {
  return {.ring = {.term = 5, .epoch = 9}, .geometry = geometry, .peer = "stage 2 (host b, cpu)"};
}

class Conformance : public ::testing::TestWithParam<TestKind> {
 protected:
  Conformance() : factories_(MakeTestFactories(GetParam(), clock_)) {}
  ChannelRig& MakeRig(const ChannelOptions& options = Options()) {
    rig_ = nullptr;
    rig_ =
        std::make_unique<ChannelRig>(*factories_->sender, *factories_->receiver, options, clock_);
    return *rig_;
  }

  const base::SystemClock clock_;
  const std::unique_ptr<TestFactories> factories_;
  std::unique_ptr<ChannelRig> rig_;
};

// On the sender's thread. The slot that was taken, once there is one.
bool TryAcquire(ChannelRig& rig, Lane lane, SendSlot& slot, absl::Status& status) {
  auto acquired = rig.sender->Acquire(lane);
  status = acquired.status();
  if (!acquired.ok()) return true;
  if (!acquired->has_value()) return false;
  slot = **acquired;
  return true;
}

// Half of a frame is sections, as far as a device slot has room for them.
uint32_t SectionBytes(size_t payload_bytes) {
  return static_cast<uint32_t>(std::min<size_t>(payload_bytes / 2, 4096));
}

// Sends `text` as one frame, from the test's thread.
absl::Status SendText(ChannelRig& rig, Lane lane, absl::string_view text, uint64_t step = 0) {
  absl::Status status;
  SendSlot slot;
  if (!rig.sender_end.Await([&] { return TryAcquire(rig, lane, slot, status); })) {
    return absl::DeadlineExceededError("no slot");
  }
  if (!status.ok()) return status;
  rig.sender_end.Run([&] {
    const uint32_t section_bytes = SectionBytes(text.size());
    status = WritePayload(rig.sender_memory(), slot, text, section_bytes);
    if (!status.ok()) return;
    status = rig.sender->Commit(slot, {.kind = FrameKind::kActivation,
                                       .step = step,
                                       .section_bytes = section_bytes,
                                       .payload_bytes = static_cast<uint32_t>(text.size())});
  });
  return status;
}

struct Got {
  absl::Status status = absl::DeadlineExceededError("no frame");
  FrameHeader header;
  uint32_t slot = 0;
  std::string text;
};

Got ReceiveText(ChannelRig& rig, Lane lane, bool release = true) {
  Got got;
  rig.receiver_end.Await([&] {
    auto frame = rig.receiver->Poll(lane);
    if (frame.ok() && !frame->has_value()) return false;
    got.status = frame.status();
    if (!frame.ok()) return true;
    got.header = (*frame)->header;
    got.slot = (*frame)->slot;
    absl::StatusOr<std::string> text = ReadPayload(rig.receiver_memory(), **frame);
    got.status = text.status();
    if (!text.ok()) return true;
    got.text = *std::move(text);
    if (release) got.status = rig.receiver->Release(lane, got.slot);
    return true;
  });
  return got;
}

absl::Status AwaitSenderFailure(ChannelRig& rig, absl::Duration timeout = absl::Seconds(20)) {
  absl::Status status;
  rig.sender_end.Await(
      [&] {
        status = rig.sender->status();
        return !status.ok();
      },
      timeout);
  return status;
}

absl::Status AwaitReceiverFailure(ChannelRig& rig, absl::Duration timeout = absl::Seconds(20)) {
  absl::Status status;
  rig.receiver_end.Await(
      [&] {
        status = rig.receiver->status();
        return !status.ok();
      },
      timeout);
  return status;
}

// The error of connecting to `offer`, at once or later.
absl::Status ConnectError(ChannelRig& rig, const std::string& offer) {
  const absl::Status at_once = rig.ConnectSender(offer);
  return at_once.ok() ? AwaitSenderFailure(rig) : at_once;
}

TEST_P(Conformance, DeliversFramesOfALaneInOrderWithTheirBytes) {
  ChannelRig& rig = MakeRig();
  ASSERT_TRUE(rig.Connect().ok());
  for (uint64_t i = 0; i < 20; ++i) {
    const Lane lane = i % 3 == 0 ? Lane::kPlan : Lane::kActivation;
    const std::string text = absl::StrCat("frame ", i);
    ASSERT_EQ(SendText(rig, lane, text, 100 + i), absl::OkStatus());
    const Got got = ReceiveText(rig, lane);
    ASSERT_EQ(got.status, absl::OkStatus());
    EXPECT_EQ(got.text, text);
    EXPECT_EQ(got.header.step, 100 + i);
    EXPECT_EQ(got.header.section_bytes, SectionBytes(text.size()));
    EXPECT_EQ(got.header.lane, lane);
    EXPECT_EQ(got.header.sequence, i % 3 == 0 ? i / 3 : i - i / 3 - 1);
    EXPECT_EQ(got.header.ring, Options().ring);
  }
}

TEST_P(Conformance, GivesACreditForEachReleaseInAnyOrder) {
  ChannelRig& rig = MakeRig();
  ASSERT_TRUE(rig.Connect().ok());
  ASSERT_TRUE(SendText(rig, Lane::kActivation, "first").ok());
  ASSERT_TRUE(SendText(rig, Lane::kActivation, "second").ok());
  rig.sender_end.Run([&] {
    const auto none = rig.sender->Acquire(Lane::kActivation);
    ASSERT_TRUE(none.ok());
    EXPECT_FALSE(none->has_value());
  });
  const Got first = ReceiveText(rig, Lane::kActivation, false);
  const Got second = ReceiveText(rig, Lane::kActivation, false);
  EXPECT_EQ(first.text, "first");
  EXPECT_EQ(second.text, "second");
  rig.receiver_end.Run(
      [&] { EXPECT_TRUE(rig.receiver->Release(Lane::kActivation, second.slot).ok()); });
  ASSERT_TRUE(SendText(rig, Lane::kActivation, "third").ok());
  EXPECT_EQ(ReceiveText(rig, Lane::kActivation).text, "third");
  rig.receiver_end.Run([&] {
    EXPECT_TRUE(rig.receiver->Release(Lane::kActivation, first.slot).ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(rig.receiver->Release(Lane::kActivation, first.slot)));
    EXPECT_TRUE(absl::IsInvalidArgument(rig.receiver->Release(Lane::kActivation, 2)));
    EXPECT_TRUE(rig.receiver->status().ok());
  });
}

TEST_P(Conformance, PassesPlansWhileTheActivationLaneIsFull) {
  ChannelRig& rig = MakeRig();
  ASSERT_TRUE(rig.Connect().ok());
  const std::string big(kSmall.activation_slot_bytes, 'a');
  ASSERT_TRUE(SendText(rig, Lane::kActivation, big).ok());
  ASSERT_TRUE(SendText(rig, Lane::kActivation, big).ok());
  for (int i = 0; i < 10; ++i) {
    const std::string text = absl::StrCat("plan ", i);
    ASSERT_TRUE(SendText(rig, Lane::kPlan, text).ok());
    ASSERT_EQ(ReceiveText(rig, Lane::kPlan).text, text);
  }
  EXPECT_EQ(ReceiveText(rig, Lane::kActivation).text, big);
}

TEST_P(Conformance, CarriesAnEmptyAndTheBiggestPayload) {
  ChannelGeometry geometry = kSmall;
  geometry.activation_slot_bytes = 5u << 20;
  ChannelRig& rig = MakeRig(Options(geometry));
  ASSERT_TRUE(rig.Connect().ok());
  std::string big(geometry.activation_slot_bytes, '\0');
  base::SeededRandom random(1);
  for (char& c : big) c = static_cast<char>(random.Next());
  for (const std::string& text : {std::string(), big, std::string("x"), big, std::string()}) {
    ASSERT_TRUE(SendText(rig, Lane::kActivation, text).ok());
    const Got got = ReceiveText(rig, Lane::kActivation);
    ASSERT_EQ(got.status, absl::OkStatus());
    EXPECT_TRUE(got.text == text) << got.text.size() << " bytes of " << text.size();
  }
}

TEST_P(Conformance, RefusesACommitThatDoesNotFitOrIsOutOfOrder) {
  ChannelRig& rig = MakeRig();
  ASSERT_TRUE(rig.Connect().ok());
  rig.sender_end.Run([&] {
    const SendSlot first = **rig.sender->Acquire(Lane::kPlan);
    const SendSlot second = **rig.sender->Acquire(Lane::kPlan);
    EXPECT_EQ(first.memory.bytes, kSmall.plan_slot_bytes);
    EXPECT_TRUE(absl::IsFailedPrecondition(rig.sender->Commit(second, {.payload_bytes = 1})));
    EXPECT_TRUE(absl::IsInvalidArgument(
        rig.sender->Commit(first, {.payload_bytes = kSmall.plan_slot_bytes + 1})));
    EXPECT_TRUE(absl::IsInvalidArgument(
        rig.sender->Commit(first, {.section_bytes = 2, .payload_bytes = 1})));
    EXPECT_TRUE(rig.sender->Commit(first, {.payload_bytes = 1}).ok());
    EXPECT_TRUE(rig.sender->Commit(second, {.payload_bytes = 1}).ok());
  });
  EXPECT_TRUE(ReceiveText(rig, Lane::kPlan).status.ok());
  EXPECT_TRUE(ReceiveText(rig, Lane::kPlan).status.ok());
}

TEST_P(Conformance, RefusesAnOfferThatIsNotTheOneAgreed) {
  ChannelRig& rig = MakeRig();
  ASSERT_TRUE(rig.CreateReceiver().ok());
  Offer changed = *DecodeOffer(rig.offer);
  changed.ring.epoch += 1;
  const absl::Status other_ring = rig.ConnectSender(EncodeOffer(changed));
  EXPECT_TRUE(absl::IsFailedPrecondition(other_ring)) << other_ring;
  EXPECT_THAT(other_ring.message(), HasSubstr("epoch 10"));
  changed = *DecodeOffer(rig.offer);
  changed.geometry.plan_slots += 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(rig.ConnectSender(EncodeOffer(changed))));
  changed = *DecodeOffer(rig.offer);
  changed.kind =
      GetParam() == TestKind::kCudaIpc ? TransportKind::kPinnedHost : TransportKind::kCudaIpc;
  EXPECT_TRUE(absl::IsInvalidArgument(rig.ConnectSender(EncodeOffer(changed))));
  std::string version = rig.offer;
  version[4] = 2;
  const absl::Status other_version = rig.ConnectSender(version);
  EXPECT_TRUE(absl::IsFailedPrecondition(other_version)) << other_version;
  base::SeededRandom random(2);
  for (size_t at = 6; at < rig.offer.size(); at += 1 + random.Below(5)) {
    std::string garbled = rig.offer;
    garbled[at] = static_cast<char>(garbled[at] ^ (1 << random.Below(8)));
    EXPECT_TRUE(absl::IsDataLoss(rig.ConnectSender(garbled))) << at;
  }
  for (size_t bytes = 0; bytes < rig.offer.size(); bytes += 1 + random.Below(5)) {
    EXPECT_TRUE(absl::IsDataLoss(rig.ConnectSender(rig.offer.substr(0, bytes)))) << bytes;
  }
  // None of this harmed the receiver.
  ASSERT_TRUE(rig.ConnectSender(rig.offer).ok());
  EXPECT_TRUE(rig.receiver_end.Await([&] { return rig.receiver->connected(); }));
}

TEST_P(Conformance, RefusesASenderWithoutTheSecretAndWaitsForTheRightOne) {
  ChannelRig& rig = MakeRig();
  ASSERT_TRUE(rig.CreateReceiver().ok());
  Offer forged = *DecodeOffer(rig.offer);
  forged.secret[3] ^= std::byte{1};
  const absl::Status refused = ConnectError(rig, EncodeOffer(forged));
  EXPECT_TRUE(absl::IsFailedPrecondition(refused) || absl::IsUnavailable(refused)) << refused;
  rig.receiver_end.Run([&] { EXPECT_FALSE(rig.receiver->connected()); });
  rig.DestroySender();
  ASSERT_TRUE(rig.ConnectSender(rig.offer).ok());
  EXPECT_TRUE(rig.sender_end.Await([&] { return rig.sender->connected(); }));
}

TEST_P(Conformance, GivesAnOfferToOneSenderOnly) {
  ChannelRig& rig = MakeRig();
  ASSERT_TRUE(rig.Connect().ok());
  ChannelEnd second_end(clock_);
  std::unique_ptr<ChannelSender> second;
  absl::Status status;
  second_end.Run([&] {
    auto made = factories_->sender->Connect(rig.offer, rig.options, second_end.context());
    status = made.status();
    if (made.ok()) second = *std::move(made);
  });
  if (second != nullptr) {
    EXPECT_TRUE(second_end.Await([&] { return !(status = second->status()).ok(); }));
  }
  EXPECT_FALSE(status.ok());
  second_end.Run([&] { second = nullptr; });
  ASSERT_TRUE(SendText(rig, Lane::kPlan, "still here").ok());
  EXPECT_EQ(ReceiveText(rig, Lane::kPlan).text, "still here");
}

TEST_P(Conformance, FailsToConnectToAReceiverThatIsGone) {
  ChannelRig& rig = MakeRig();
  ASSERT_TRUE(rig.CreateReceiver().ok());
  rig.DestroyReceiver();
  const absl::Status status = ConnectError(rig, rig.offer);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("stage 2 (host b, cpu)"));
}

TEST_P(Conformance, SeesTheReceiverClose) {
  ChannelRig& rig = MakeRig();
  ASSERT_TRUE(rig.Connect().ok());
  ASSERT_TRUE(SendText(rig, Lane::kActivation, std::string(60000, 'x')).ok());
  rig.DestroyReceiver();
  const absl::Status status = AwaitSenderFailure(rig);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("stage 2 (host b, cpu)"));
  rig.sender_end.Run([&] {
    EXPECT_EQ(rig.sender->Acquire(Lane::kPlan).status(), status);
    EXPECT_EQ(rig.sender->status(), status);
  });
}

TEST_P(Conformance, SeesTheSenderClose) {
  ChannelRig& rig = MakeRig();
  ASSERT_TRUE(rig.Connect().ok());
  rig.DestroySender();
  const absl::Status status = AwaitReceiverFailure(rig);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  rig.receiver_end.Run([&] {
    EXPECT_EQ(rig.receiver->Poll(Lane::kPlan).status(), status);
    EXPECT_EQ(rig.receiver->status(), status);
  });
}

TEST_P(Conformance, MakesFreshRingsBetweenTheSameProcesses) {
  for (uint32_t epoch = 1; epoch <= 5; ++epoch) {
    ChannelOptions options = Options();
    options.ring.epoch = epoch;
    ChannelRig& rig = MakeRig(options);
    ASSERT_EQ(rig.Connect(), absl::OkStatus()) << epoch;
    ASSERT_TRUE(SendText(rig, Lane::kPlan, "p").ok());
    ASSERT_TRUE(SendText(rig, Lane::kActivation, std::string(65000, 'a')).ok());
    EXPECT_EQ(ReceiveText(rig, Lane::kPlan).text, "p");
    EXPECT_EQ(ReceiveText(rig, Lane::kActivation).text.size(), 65000u);
  }
}

TEST_P(Conformance, ProvesItselfByThePatternProbe) {
  ChannelRig& rig = MakeRig();
  ASSERT_TRUE(rig.Connect().ok());
  ProbeSender out(*rig.sender, rig.options, clock_, rig.sender_memory());
  ProbeReceiver in(*rig.receiver, rig.options, rig.receiver_memory());
  absl::StatusOr<bool> received = false;
  absl::StatusOr<bool> sent = false;
  std::thread receiving([&] {
    rig.receiver_end.Await([&] {
      received = in.Advance();
      return !received.ok() || *received;
    });
  });
  rig.sender_end.Await([&] {
    sent = out.Advance();
    return !sent.ok() || *sent;
  });
  receiving.join();
  ASSERT_EQ(sent.status(), absl::OkStatus());
  ASSERT_EQ(received.status(), absl::OkStatus());
  EXPECT_TRUE(*sent);
  EXPECT_TRUE(*received);
  EXPECT_EQ(out.report().frames, ProbeSchedule(kSmall).size());
  EXPECT_EQ(in.report().bytes, out.report().bytes);
  EXPECT_GT(out.report().bytes_per_second, 0);
  EXPECT_LT(out.report().round_trip, absl::Seconds(10));
  // The ring is whole afterwards.
  ASSERT_TRUE(SendText(rig, Lane::kActivation, "after").ok());
  EXPECT_EQ(ReceiveText(rig, Lane::kActivation).text, "after");
}

// What frame `index` of a lane holds: sizes mostly small, sometimes the whole slot.
struct Stream {
  base::SeededRandom random;
  uint32_t slot_bytes;

  uint32_t NextBytes() {
    const uint64_t shift = random.Below(17);
    return static_cast<uint32_t>(
        random.Below(std::min<uint64_t>(slot_bytes, uint64_t{1} << shift) + 1));
  }
  void Fill(absl::Span<std::byte> to) {
    const uint64_t seed = random.Next();
    for (size_t i = 0; i < to.size(); ++i) {
      to[i] = static_cast<std::byte>((seed >> (i % 57)) + i * 31);
    }
  }
};

absl::string_view AsText(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST_P(Conformance, CarriesTenThousandFramesOfRandomSizesOnBothLanes) {
  constexpr uint64_t kSeed = 20261129;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  constexpr std::array<int, kLaneCount> kFrames = {6000, 4000};
  ChannelRig& rig = MakeRig();
  ASSERT_TRUE(rig.Connect().ok());
  const auto stream = [](Lane lane) {
    return Stream{
        .random = base::SeededRandom(kSeed + static_cast<uint64_t>(lane)),
        .slot_bytes = lane == Lane::kPlan ? kSmall.plan_slot_bytes : kSmall.activation_slot_bytes};
  };
  std::array<Stream, kLaneCount> out = {stream(Lane::kPlan), stream(Lane::kActivation)};
  std::array<Stream, kLaneCount> in = out;
  std::array<int, kLaneCount> sent{};
  std::array<int, kLaneCount> received{};
  absl::Status sender_status;
  absl::Status receiver_status;
  std::string wrong;
  std::thread receiving([&] {
    std::vector<std::byte> expected;
    rig.receiver_end.Await(
        [&] {
          for (const Lane lane : {Lane::kPlan, Lane::kActivation}) {
            const auto l = static_cast<size_t>(lane);
            for (;;) {
              auto frame = rig.receiver->Poll(lane);
              receiver_status.Update(frame.status());
              if (!frame.ok()) return true;
              if (!frame->has_value()) break;
              expected.resize(in[l].NextBytes());
              in[l].Fill(absl::MakeSpan(expected));
              const auto payload = ReadPayload(rig.receiver_memory(), **frame);
              if (!payload.ok() || *payload != AsText(expected)) {
                wrong = absl::StrCat("frame ", received[l], " of lane ", l);
                return true;
              }
              ++received[l];
              receiver_status.Update(rig.receiver->Release(lane, (*frame)->slot));
            }
          }
          return received == kFrames;
        },
        absl::Seconds(240));
  });
  std::vector<std::byte> made;
  rig.sender_end.Await(
      [&] {
        for (const Lane lane : {Lane::kPlan, Lane::kActivation}) {
          const auto l = static_cast<size_t>(lane);
          while (sent[l] < kFrames[l]) {
            auto slot = rig.sender->Acquire(lane);
            sender_status.Update(slot.status());
            if (!slot.ok()) return true;
            if (!slot->has_value()) break;
            const uint32_t bytes = out[l].NextBytes();
            made.resize(bytes);
            out[l].Fill(absl::MakeSpan(made));
            const uint32_t sections = SectionBytes(bytes);
            sender_status.Update(WritePayload(rig.sender_memory(), **slot, AsText(made), sections));
            sender_status.Update(rig.sender->Commit(**slot, {.kind = FrameKind::kActivation,
                                                             .section_bytes = sections,
                                                             .payload_bytes = bytes}));
            ++sent[l];
          }
        }
        return sent == kFrames;
      },
      absl::Seconds(240));
  receiving.join();
  EXPECT_EQ(sender_status, absl::OkStatus());
  EXPECT_EQ(receiver_status, absl::OkStatus());
  EXPECT_EQ(wrong, "");
  EXPECT_EQ(received, kFrames);
}

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

TEST_P(Conformance, GivesAFrameInPartsAsAWholeToWhoeverPolls) {
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

// A poll that had found some parts and not all was not woken for the rest.
TEST_P(Conformance, WakesAReceiverThatFoundSomePartsOfAFrameForTheRest) {
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

TEST_P(Conformance, GivesTheStartOfAFrameInPartsBeforeItsEndWhereThatIsOfUse) {
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

TEST_P(Conformance, SeesASenderCloseInTheMiddleOfAFrame) {
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
TEST_P(Conformance, CarriesFramesInRandomParts) {
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

INSTANTIATE_TEST_SUITE_P(Every, Conformance,
                         ::testing::Values(TestKind::kLocal, TestKind::kPinnedHost,
                                           TestKind::kUcxTcp, TestKind::kUcxSharedMemory,
                                           TestKind::kCudaIpc),
                         [](const ::testing::TestParamInfo<TestKind>& kind) {
                           return TestKindName(kind.param);
                         });

}  // namespace
}  // namespace layercake::transport
