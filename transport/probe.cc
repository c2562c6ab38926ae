#include "transport/probe.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "transport/slot_ring.h"

namespace layercake::transport {
namespace {

constexpr uint32_t kSmallBytes = 64;
constexpr uint32_t kMediumBytes = 4096;
// Of each size; the least time counts, so that one late wake-up does not.
constexpr int kSmallRounds = 8;
constexpr int kRounds = 2;

bool OnDevice(const kernels::Buffer& memory) {
  return memory.space == kernels::MemorySpace::kDevice;
}

absl::Status NoDeviceMemory() {
  return absl::FailedPreconditionError("the probe has no means to copy to and from device slots");
}

uint64_t PatternSeed(const RingId& ring, Lane lane, uint64_t sequence) {
  // Any mixing will do: SplitMix64 is good from any seed.
  base::SeededRandom mix(ring.term ^ (uint64_t{ring.epoch} << 32) ^
                         (static_cast<uint64_t>(lane) << 63));
  return mix.Next() + sequence * 0x9e3779b97f4a7c15;
}

}  // namespace

std::vector<ProbeFrame> ProbeSchedule(const ChannelGeometry& geometry) {
  std::vector<ProbeFrame> schedule;
  for (const Lane lane : {Lane::kPlan, Lane::kActivation}) {
    const uint32_t slot_bytes = LaneSlotBytes(geometry, lane);
    const uint32_t small = std::min(kSmallBytes, slot_bytes);
    for (const uint32_t bytes : {kSmallBytes, kMediumBytes, slot_bytes}) {
      const bool again = !schedule.empty() && schedule.back().lane == lane &&
                         schedule.back().bytes == bytes;  // a slot of 64 bytes or 4 KiB
      if (bytes > slot_bytes || again) continue;
      const int rounds = bytes == kSmallBytes ? kSmallRounds : kRounds;
      for (int i = 0; i < rounds; ++i) {
        schedule.push_back({.lane = lane, .bytes = bytes, .measured = true});
      }
    }
    for (uint32_t slot = 0; slot < LaneSlots(geometry, lane); ++slot) {
      schedule.push_back({.lane = lane, .bytes = small, .measured = false});
    }
  }
  return schedule;
}

void FillProbePattern(const RingId& ring, Lane lane, uint64_t sequence, absl::Span<std::byte> to) {
  base::SeededRandom random(PatternSeed(ring, lane, sequence));
  for (size_t i = 0; i < to.size(); i += 8) {
    const uint64_t word = random.Next();
    for (size_t k = 0; k < 8 && i + k < to.size(); ++k) {
      to[i + k] = static_cast<std::byte>((word >> (8 * k)) & 0xff);
    }
  }
}

std::string ProbeReport::ToString() const {
  const std::string latency =
      absl::StrFormat("round trip %.0f us", absl::ToDoubleMicroseconds(round_trip));
  if (bytes_per_second == 0) return latency;
  return absl::StrFormat("%d frames, %.1f MB, %s, %.2f GB/s", frames,
                         static_cast<double>(bytes) / 1e6, latency, bytes_per_second / 1e9);
}

ProbeSender::ProbeSender(ChannelSender& channel, const ChannelOptions& options,
                         const base::Clock& clock, kernels::PeerMemory* memory)
    : channel_(channel),
      ring_(options.ring),
      geometry_(options.geometry),
      clock_(clock),
      memory_(memory),
      schedule_(ProbeSchedule(options.geometry)) {}

// Every slot of the lane is held, so that the next slot to be had is the credit of the one frame
// under way. The unmeasured frames at the end give the held slots back.
absl::StatusOr<bool> ProbeSender::Advance() {
  while (next_ < schedule_.size()) {
    const ProbeFrame& frame = schedule_[next_];
    while (frame.measured && held_.size() < LaneSlots(geometry_, frame.lane)) {
      LC_ASSIGN_OR_RETURN(const std::optional<SendSlot> slot, channel_.Acquire(frame.lane));
      if (!slot) return false;
      held_.push_back(*slot);
      if (sent_) {
        Measure(schedule_[next_ - 1], clock_.Now() - *sent_);
        sent_.reset();
      }
    }
    if (sent_) {  // the last measured frame of the lane: its credit is the slot that is missing
      LC_ASSIGN_OR_RETURN(const std::optional<SendSlot> slot, channel_.Acquire(frame.lane));
      if (!slot) return false;
      held_.push_back(*slot);
      Measure(schedule_[next_ - 1], clock_.Now() - *sent_);
      sent_.reset();
    }
    LC_RETURN_IF_ERROR(Commit(frame));
    ++next_;
  }
  return true;
}

absl::Status ProbeSender::Commit(const ProbeFrame& frame) {
  const SendSlot slot = held_.front();
  held_.pop_front();
  uint64_t& sequence = sequence_[static_cast<size_t>(frame.lane)];
  if (OnDevice(slot.memory)) {
    pattern_.resize(frame.bytes);
    FillProbePattern(ring_, frame.lane, sequence++, absl::MakeSpan(pattern_));
    LC_RETURN_IF_ERROR(CopyToDevice(pattern_, slot.memory));
  } else {
    FillProbePattern(ring_, frame.lane, sequence++,
                     absl::MakeSpan(slot.memory.address, frame.bytes));
  }
  if (frame.measured) sent_ = clock_.Now();
  LC_RETURN_IF_ERROR(channel_.Commit(
      slot,
      {.kind = FrameKind::kProbe, .step = 0, .section_bytes = 0, .payload_bytes = frame.bytes}));
  ++report_.frames;
  report_.bytes += frame.bytes;
  return absl::OkStatus();
}

absl::Status ProbeSender::CopyToDevice(absl::Span<const std::byte> pattern,
                                       const kernels::Buffer& slot) {
  if (memory_ == nullptr) return NoDeviceMemory();
  if (own_ == nullptr) {
    LC_ASSIGN_OR_RETURN(kernels::PeerMemory::Exported own,
                        memory_->Create(geometry_.activation_slot_bytes));
    own_ = std::move(own.memory);
  }
  LC_RETURN_IF_ERROR(memory_->CopyIn(pattern.data(), own_->buffer(), pattern.size()));
  const base::Instant began = clock_.Now();
  LC_RETURN_IF_ERROR(memory_->Copy(own_->buffer(), slot, pattern.size()));
  if (pattern.size() == geometry_.activation_slot_bytes) {
    MeasureRate(pattern.size(), clock_.Now() - began);
  }
  return absl::OkStatus();
}

void ProbeSender::Measure(const ProbeFrame& frame, absl::Duration elapsed) {
  report_.round_trip = std::min(report_.round_trip, elapsed);
  if (frame.lane == Lane::kActivation && frame.bytes == geometry_.activation_slot_bytes &&
      own_ == nullptr) {
    MeasureRate(frame.bytes, elapsed);
  }
}

void ProbeSender::MeasureRate(size_t bytes, absl::Duration elapsed) {
  const double seconds = std::max(absl::ToDoubleSeconds(elapsed), 1e-9);
  report_.bytes_per_second =
      std::max(report_.bytes_per_second, static_cast<double>(bytes) / seconds);
}

ProbeReceiver::ProbeReceiver(ChannelReceiver& channel, const ChannelOptions& options,
                             kernels::PeerMemory* memory)
    : channel_(channel), options_(options), memory_(memory) {
  for (const ProbeFrame& frame : ProbeSchedule(options.geometry)) {
    expected_[static_cast<size_t>(frame.lane)].push_back(frame);
  }
}

absl::StatusOr<bool> ProbeReceiver::Advance() {
  bool done = true;
  for (const Lane lane : {Lane::kPlan, Lane::kActivation}) {
    const std::vector<ProbeFrame>& expected = expected_[static_cast<size_t>(lane)];
    size_t& next = next_[static_cast<size_t>(lane)];
    while (next < expected.size()) {
      LC_ASSIGN_OR_RETURN(const std::optional<ReceivedFrame> frame, channel_.Poll(lane));
      if (!frame) break;
      LC_RETURN_IF_ERROR(Check(expected[next], *frame));
      LC_RETURN_IF_ERROR(channel_.Release(lane, frame->slot));
      ++next;
    }
    done = done && next == expected.size();
  }
  return done;
}

absl::Status ProbeReceiver::Check(const ProbeFrame& expected, const ReceivedFrame& frame) {
  const std::string what = absl::StrFormat("probe %s from %s: frame %d of the %s lane",
                                           TransportKindName(channel_.kind()), options_.peer,
                                           frame.header.sequence, LaneName(expected.lane));
  if (frame.header.kind != FrameKind::kProbe || frame.payload.bytes != expected.bytes) {
    return absl::DataLossError(absl::StrFormat("%s has %d bytes, %d were to come", what,
                                               frame.payload.bytes, expected.bytes));
  }
  std::vector<std::byte> copied;
  const std::byte* arrived = frame.payload.address;
  if (OnDevice(frame.payload)) {
    if (memory_ == nullptr) return NoDeviceMemory();
    copied.resize(expected.bytes);
    LC_RETURN_IF_ERROR(memory_->CopyOut(frame.payload, copied.data(), copied.size()));
    arrived = copied.data();
  }
  std::vector<std::byte> pattern(expected.bytes);
  FillProbePattern(options_.ring, expected.lane, frame.header.sequence, absl::MakeSpan(pattern));
  const auto wrong = std::mismatch(pattern.begin(), pattern.end(), arrived);
  if (wrong.first != pattern.end()) {
    return absl::DataLossError(
        absl::StrFormat("%s of %d bytes arrived wrong: byte %d is %#04x, not %#04x", what,
                        expected.bytes, wrong.first - pattern.begin(),
                        static_cast<int>(*wrong.second), static_cast<int>(*wrong.first)));
  }
  ++report_.frames;
  report_.bytes += expected.bytes;
  return absl::OkStatus();
}

}  // namespace layercake::transport
