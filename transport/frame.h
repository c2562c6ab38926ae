// What stands before every payload on a channel: 64 bytes, little-endian, checked before use.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace layercake::transport {

// Two lanes of slots per channel, so that a plan never waits behind activations: the plan of a
// micro-batch runs ahead of it (docs/architecture.md, "Processes").
enum class Lane : uint8_t { kPlan = 0, kActivation = 1 };
inline constexpr int kLaneCount = 2;
absl::string_view LaneName(Lane lane);  // "plan", "activation"

enum class FrameKind : uint8_t {
  kPlan = 1,        // a serialised v1.MicroBatchPlan
  kActivation = 2,  // a v1.ActivationHeader section and the residual stream of the step's rows
  kProbe = 3,       // a checked pattern, at connect only
  kFeedback = 4,    // a serialised v1.StepFeedback, on the plan lane of a channel of its own
};

// The ring that a frame belongs to. A frame of another ring is refused (FailedPrecondition).
struct RingId {
  uint64_t term = 0;   // of the coordinator
  uint32_t epoch = 0;  // of the plan
  friend bool operator==(const RingId&, const RingId&) = default;
};

struct FrameHeader {
  FrameKind kind = FrameKind::kPlan;
  Lane lane = Lane::kPlan;
  RingId ring;
  uint64_t sequence = 0;  // counts the frames of this channel and lane from 0: no gap, no repeat
  uint64_t step = 0;
  uint32_t section_bytes = 0;  // optional sections at the start of the payload
  uint32_t payload_bytes = 0;  // sections included
  // Over the payload; of a device slot over the sections alone, which are all that the host sees;
  // of a frame in parts over its first part.
  uint32_t payload_crc32c = 0;
  // Of a frame in parts: what of its payload was there when it was published. 0: all.
  uint32_t first_part_bytes = 0;
  uint32_t sent_us = 0;  // OutgoingFrame
};

inline constexpr size_t kFrameHeaderBytes = 64;

// Layout: magic u32 "LCF1", version u16, header_bytes u16, kind u8, lane u8, flags u16 (0),
// epoch u32, term u64, sequence u64, step u64, section_bytes u32, payload_bytes u32,
// payload_crc32c u32, first_part_bytes u32, sent_us u32, header_crc32c u32 (last; over all bytes
// before it).
std::array<std::byte, kFrameHeaderBytes> EncodeFrameHeader(const FrameHeader& header);

// DataLoss: short, wrong magic, wrong checksum, unknown kind or lane, sections longer than the
// first part or the payload, a first part that is no part of it. FailedPrecondition: another
// version (both are in the message).
absl::StatusOr<FrameHeader> DecodeFrameHeader(absl::Span<const std::byte> bytes);

}  // namespace layercake::transport
