// The checked pattern that every channel moves before it is trusted: frames of several sizes on
// both lanes, every byte compared, latency and bandwidth measured. (A copy between devices can
// "succeed" and move nothing.) Device slots are written from the sender's device memory, as a step
// does it, and read back by the receiver's device.
//
// Both ends derive the same schedule from the ring's sizes. Call Advance at every on_ready until it
// says true; deadlines are the caller's.
// Thread rule: the channel's executor's thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "kernels/peer_memory.h"
#include "transport/channel.h"

namespace layercake::transport {

struct ProbeFrame {
  Lane lane = Lane::kPlan;
  uint32_t bytes = 0;
  bool measured = false;  // commit to credit is timed
  friend bool operator==(const ProbeFrame&, const ProbeFrame&) = default;
};

// Per lane: several frames each of 64 bytes, 4 KiB and a whole slot (those that fit), then one
// frame of 64 bytes in every slot. Pure.
std::vector<ProbeFrame> ProbeSchedule(const ChannelGeometry& geometry);

// The pattern of a frame: bytes that follow from ring, lane and sequence. Pure.
void FillProbePattern(const RingId& ring, Lane lane, uint64_t sequence, absl::Span<std::byte> to);

struct ProbeReport {
  uint64_t frames = 0;
  uint64_t bytes = 0;
  // Commit to credit, the least of several: a message there and one back, the check between them.
  absl::Duration round_trip = absl::InfiniteDuration();
  // Of whole activation slots. Host slots: commit to credit, counting the way back as free. Device
  // slots: the copy alone.
  double bytes_per_second = 0;
  // "12 frames, 34.1 MB, round trip 41 us, 2.30 GB/s"; without a rate "round trip 41 us".
  std::string ToString() const;
};

class ProbeSender {
 public:
  // `channel`, `clock` and `memory` (of the factory; null when its slots are host memory) outlive
  // it; the channel is fresh.
  ProbeSender(ChannelSender& channel, const ChannelOptions& options, const base::Clock& clock,
              kernels::PeerMemory* memory);

  // True when every frame went and every measured one came back. FailedPrecondition: device slots
  // and no `memory`. Else the channel's or the device's error.
  absl::StatusOr<bool> Advance();
  const ProbeReport& report() const { return report_; }

 private:
  absl::Status Commit(const ProbeFrame& frame);
  absl::Status CopyToDevice(absl::Span<const std::byte> pattern, const kernels::Buffer& slot);
  void Measure(const ProbeFrame& frame, absl::Duration elapsed);
  void MeasureRate(size_t bytes, absl::Duration elapsed);

  ChannelSender& channel_;
  const RingId ring_;
  const ChannelGeometry geometry_;
  const base::Clock& clock_;
  kernels::PeerMemory* const memory_;
  const std::vector<ProbeFrame> schedule_;
  std::unique_ptr<kernels::DeviceMemory> own_;  // device slots are copied from here
  std::vector<std::byte> pattern_;

  size_t next_ = 0;  // of schedule_
  std::array<uint64_t, kLaneCount> sequence_{};
  std::deque<SendSlot> held_;          // slots of the current lane, in the order acquired
  std::optional<base::Instant> sent_;  // a measured frame is under way since then
  ProbeReport report_;
};

class ProbeReceiver {
 public:
  // `channel` and `memory` outlive it, as above.
  ProbeReceiver(ChannelReceiver& channel, const ChannelOptions& options,
                kernels::PeerMemory* memory);

  // True when every frame of the schedule came and every byte was right. DataLoss names the size
  // and the first wrong byte.
  absl::StatusOr<bool> Advance();
  const ProbeReport& report() const { return report_; }  // frames and bytes alone

 private:
  absl::Status Check(const ProbeFrame& expected, const ReceivedFrame& frame);

  ChannelReceiver& channel_;
  const ChannelOptions options_;
  kernels::PeerMemory* const memory_;
  std::array<std::vector<ProbeFrame>, kLaneCount> expected_;  // per lane, in order
  std::array<size_t, kLaneCount> next_{};
  ProbeReport report_;
};

}  // namespace layercake::transport
