// Every kind behind its faulty twin: what is delivered is right, and what is wrong is refused.
#include "transport/faulty_channel.h"

#include <algorithm>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "transport/channel_rig.h"

namespace layercake::transport {
namespace {

constexpr int kFrames = 300;

struct FaultCase {
  const char* name;
  FaultRates rates;
};

const FaultCase kHarmful[] = {
    {"drop", {.drop = 0.05}},
    {"repeat", {.repeat = 0.05}},
    {"flip_payload", {.flip_payload = 0.05}},
    {"flip_header", {.flip_header = 0.05}},
    {"truncate", {.truncate = 0.05}},
    {"zero_block", {.zero_block = 0.05}},
    {"all",
     {.drop = 0.01,
      .repeat = 0.01,
      .flip_payload = 0.01,
      .flip_header = 0.01,
      .truncate = 0.01,
      .zero_block = 0.01,
      .delay = 0.1,
      .withhold_credit = 0.1}},
};

struct Outcome {
  absl::Status sender;
  absl::Status receiver;
  std::array<int, kLaneCount> sent{};
  std::array<int, kLaneCount> received{};
  int wrong = 0;
};

uint32_t FrameBytes(int index) { return static_cast<uint32_t>((index * 977) % 30000); }
std::byte FrameByte(int index, size_t at) {
  return static_cast<std::byte>(static_cast<size_t>(index) * 7 + at * 13 + 1);
}

std::string FrameText(int index) {
  std::string text(FrameBytes(index), '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(FrameByte(index, i));
  return text;
}

// True when nothing more is to be done.
bool SendOn(ChannelSender& sender, kernels::PeerMemory* memory, Outcome& outcome) {
  for (const Lane lane : {Lane::kPlan, Lane::kActivation}) {
    int& sent = outcome.sent[static_cast<size_t>(lane)];
    while (sent < kFrames) {
      auto slot = sender.Acquire(lane);
      outcome.sender.Update(slot.status());
      if (!slot.ok()) return true;
      if (!slot->has_value()) break;
      const std::string text = FrameText(sent);
      const auto bytes = static_cast<uint32_t>(text.size());
      const uint32_t sections = std::min(bytes, 3000u);
      outcome.sender.Update(WritePayload(memory, **slot, text, sections));
      const OutgoingFrame frame = {
          .kind = FrameKind::kActivation, .section_bytes = sections, .payload_bytes = bytes};
      if (sent % 2 == 0 && sections < bytes) {  // half of the long ones in parts
        outcome.sender.Update(sender.CommitPart(**slot, frame, sections + (bytes - sections) / 2));
        outcome.sender.Update(sender.CommitPart(**slot, frame, bytes));
      } else {
        outcome.sender.Update(sender.Commit(**slot, frame));
      }
      if (!outcome.sender.ok()) return true;
      ++sent;
    }
  }
  return outcome.sent[0] == kFrames && outcome.sent[1] == kFrames;
}

bool ReceiveOn(ChannelReceiver& receiver, kernels::PeerMemory* memory, Outcome& outcome) {
  for (const Lane lane : {Lane::kPlan, Lane::kActivation}) {
    int& received = outcome.received[static_cast<size_t>(lane)];
    for (;;) {
      auto frame = receiver.Poll(lane);
      outcome.receiver.Update(frame.status());
      if (!frame.ok()) return true;
      if (!frame->has_value()) break;
      const auto text = ReadPayload(memory, **frame);
      if (!text.ok() || *text != FrameText(received)) ++outcome.wrong;
      ++received;
      outcome.receiver.Update(receiver.Release(lane, (*frame)->slot));
    }
  }
  return outcome.received[0] == kFrames && outcome.received[1] == kFrames;
}

class FaultyChannel : public ::testing::TestWithParam<TestKind> {
 protected:
  FaultyChannel() : factories_(MakeTestFactories(GetParam(), clock_)) {}

  // Runs both ends until one has failed or everything is through. `counts` are the sender's.
  Outcome Drive(const FaultRates& rates, uint64_t seed, FaultCounts& counts) {
    FaultyChannelFactory sender_factory(*factories_->sender, rates, seed);
    FaultyChannelFactory receiver_factory(*factories_->receiver, rates, seed + 1);
    const ChannelOptions options = {
        .ring = {.term = seed, .epoch = 1},
        .geometry = {.plan_slots = 8,  // dropped frames must not take them all
                     .plan_slot_bytes = 30000,
                     .activation_slots = 8,
                     .activation_slot_bytes = 30000},
        .peer = "the other end"};
    Outcome outcome;
    ChannelRig rig(sender_factory, receiver_factory, options, clock_);
    outcome.sender = rig.Connect();
    if (!outcome.sender.ok()) return outcome;
    std::thread receiving([&] {
      rig.receiver_end.Await(
          [&] { return ReceiveOn(*rig.receiver, rig.receiver_memory(), outcome); });
      if (!outcome.receiver.ok()) rig.DestroyReceiver();  // as its owner would
    });
    rig.sender_end.Await([&] { return SendOn(*rig.sender, rig.sender_memory(), outcome); });
    receiving.join();
    counts = sender_factory.counts();
    return outcome;
  }

  const base::SystemClock clock_;
  const std::unique_ptr<TestFactories> factories_;
};

TEST_P(FaultyChannel, RefusesEveryHarmedFrameAndDeliversNoneAfterIt) {
  for (const FaultCase& fault : kHarmful) {
    // The rows of a device slot have no checksum; that they are as many as the plan says is the
    // step loop's to check (DecodeActivation).
    if (GetParam() == TestKind::kCudaIpc && fault.rates.truncate > 0) continue;
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE(absl::StrCat(fault.name, " seed ", seed));
      FaultCounts counts;
      const Outcome outcome = Drive(fault.rates, seed, counts);
      EXPECT_EQ(outcome.wrong, 0);
      ASSERT_TRUE(counts.spoilt[0] || counts.spoilt[1]);
      EXPECT_TRUE(absl::IsDataLoss(outcome.receiver) ||
                  absl::IsFailedPrecondition(outcome.receiver))
          << outcome.receiver;
      for (size_t lane = 0; lane < kLaneCount; ++lane) {
        EXPECT_LE(static_cast<uint64_t>(outcome.received[lane]), counts.good_prefix[lane]);
      }
    }
  }
}

TEST_P(FaultyChannel, OutlastsDelaysAndWithheldCredits) {
  FaultCounts counts;
  const Outcome outcome = Drive({.delay = 0.3, .withhold_credit = 0.3}, 5, counts);
  EXPECT_EQ(outcome.sender, absl::OkStatus());
  EXPECT_EQ(outcome.receiver, absl::OkStatus());
  EXPECT_EQ(outcome.wrong, 0);
  EXPECT_EQ(outcome.received, (std::array<int, kLaneCount>{kFrames, kFrames}));
}

TEST_P(FaultyChannel, SeesASenderThatEndsInTheMiddle) {
  FaultCounts counts;
  const Outcome outcome = Drive({.close = 0.02}, 6, counts);
  EXPECT_TRUE(absl::IsUnavailable(outcome.sender)) << outcome.sender;
  EXPECT_TRUE(absl::IsUnavailable(outcome.receiver)) << outcome.receiver;
  EXPECT_EQ(outcome.wrong, 0);
  EXPECT_EQ(counts.closed, 1u);
}

INSTANTIATE_TEST_SUITE_P(Every, FaultyChannel,
                         ::testing::Values(TestKind::kLocal, TestKind::kPinnedHost,
                                           TestKind::kUcxTcp, TestKind::kUcxSharedMemory,
                                           TestKind::kCudaIpc),
                         [](const ::testing::TestParamInfo<TestKind>& kind) {
                           return TestKindName(kind.param);
                         });

}  // namespace
}  // namespace layercake::transport
