// One suite for every kind of channel. Each test runs both ends in threads of their own.
#include <array>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/channel_test_support.h"
#include "transport/offer.h"
#include "transport/probe.h"

namespace layercake::transport {
namespace {

using ::testing::HasSubstr;

class Conformance : public ChannelTest {};

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

INSTANTIATE_TEST_SUITE_P(Every, Conformance, EveryKind(), KindNameOf);

}  // namespace
}  // namespace layercake::transport
