#include "transport/probe.h"

#include <deque>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::transport {
namespace {

using ::testing::HasSubstr;

constexpr ChannelGeometry kGeometry = {
    .plan_slots = 2, .plan_slot_bytes = 64, .activation_slots = 3, .activation_slot_bytes = 10000};
const ChannelOptions kOptions = {
    .ring = {.term = 1, .epoch = 2}, .geometry = kGeometry, .peer = "stage 1"};

TEST(Probe, SchedulesEverySizeThatFitsAndGivesEverySlotBack) {
  int closing = 0;
  std::vector<uint32_t> sizes;
  for (const ProbeFrame& frame : ProbeSchedule(kGeometry)) {
    if (!frame.measured) {
      ++closing;
    } else if (sizes.empty() || sizes.back() != frame.bytes) {
      sizes.push_back(frame.bytes);
    }
  }
  EXPECT_EQ(closing, 5);
  EXPECT_EQ(sizes, (std::vector<uint32_t>{64, 4096, 10000}));
  const auto tiny = ProbeSchedule({.plan_slots = 1,
                                   .plan_slot_bytes = 10,
                                   .activation_slots = 1,
                                   .activation_slot_bytes = 4096});
  for (const ProbeFrame& frame : tiny) {
    EXPECT_LE(frame.bytes, frame.lane == Lane::kPlan ? 10u : 4096u);
  }
}

TEST(Probe, SaysTheLatencyAloneWithoutARate) {
  ProbeReport report = {.frames = 12, .bytes = 3'400'000, .round_trip = absl::Microseconds(41)};
  EXPECT_EQ(report.ToString(), "round trip 41 us");
  report.bytes_per_second = 2.3e9;
  EXPECT_EQ(report.ToString(), "12 frames, 3.4 MB, round trip 41 us, 2.30 GB/s");
}

TEST(Probe, MakesAnotherPatternPerRingLaneAndSequence) {
  const auto pattern = [](RingId ring, Lane lane, uint64_t sequence) {
    std::vector<std::byte> bytes(61);
    FillProbePattern(ring, lane, sequence, absl::MakeSpan(bytes));
    return bytes;
  };
  const auto one = pattern({1, 2}, Lane::kPlan, 0);
  EXPECT_EQ(one, pattern({1, 2}, Lane::kPlan, 0));
  EXPECT_NE(one, pattern({1, 3}, Lane::kPlan, 0));
  EXPECT_NE(one, pattern({2, 2}, Lane::kPlan, 0));
  EXPECT_NE(one, pattern({1, 2}, Lane::kActivation, 0));
  EXPECT_NE(one, pattern({1, 2}, Lane::kPlan, 1));
}

// A receiver fed by hand, as a device copy that goes wrong unseen would feed it.
class FedReceiver final : public ChannelReceiver {
 public:
  TransportKind kind() const override { return TransportKind::kCudaIpc; }
  std::string offer() const override { return ""; }
  bool connected() const override { return true; }
  absl::Status status() const override { return absl::OkStatus(); }
  absl::StatusOr<std::optional<ReceivedFrame>> Poll(Lane lane) override {
    if (lane != Lane::kPlan || frames.empty()) return std::nullopt;
    ReceivedFrame frame;
    current_ = std::move(frames.front());
    frames.pop_front();
    frame.header.kind = FrameKind::kProbe;
    frame.header.lane = lane;
    frame.header.sequence = next_++;
    frame.payload.address = current_.data();
    frame.payload.bytes = current_.size();
    return frame;
  }
  absl::Status Release(Lane, uint32_t) override { return absl::OkStatus(); }

  std::deque<std::vector<std::byte>> frames;

 private:
  std::vector<std::byte> current_;
  uint64_t next_ = 0;
};

std::vector<std::byte> Pattern(uint64_t sequence, size_t bytes) {
  std::vector<std::byte> pattern(bytes);
  FillProbePattern(kOptions.ring, Lane::kPlan, sequence, absl::MakeSpan(pattern));
  return pattern;
}

TEST(Probe, NamesTheSizeAndTheFirstWrongByte) {
  FedReceiver channel;
  ProbeReceiver probe(channel, kOptions, nullptr);
  channel.frames.push_back(Pattern(0, 64));
  ASSERT_TRUE(probe.Advance().ok());
  EXPECT_EQ(probe.report().frames, 1u);
  channel.frames.push_back(Pattern(1, 64));
  channel.frames.back()[17] ^= std::byte{4};
  const absl::Status status = probe.Advance().status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(status.message(), HasSubstr("64 bytes"));
  EXPECT_THAT(status.message(), HasSubstr("byte 17"));
  EXPECT_THAT(status.message(), HasSubstr("stage 1"));
}

TEST(Probe, RefusesAFrameOfAnotherSize) {
  FedReceiver channel;
  ProbeReceiver probe(channel, kOptions, nullptr);
  channel.frames.push_back(Pattern(0, 63));
  EXPECT_TRUE(absl::IsDataLoss(probe.Advance().status()));
}

TEST(Probe, SeesACopyThatMovedNothing) {
  FedReceiver channel;
  ProbeReceiver probe(channel, kOptions, nullptr);
  channel.frames.push_back(std::vector<std::byte>(64));
  const absl::Status status = probe.Advance().status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(status.message(), HasSubstr("byte 0"));
}

}  // namespace
}  // namespace layercake::transport
