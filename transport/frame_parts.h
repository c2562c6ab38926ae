// A long activation that goes in parts over a ring in shared host memory (pinned_host).
//
// Whole, it costs a copy out of the sender's device, a checksum there, a checksum here and a copy
// into the receiver's device, one after the other. In parts the four overlap:
//
//   sender's device    | copy 0 | copy 1 | copy 2 |
//   sender's thread             | sum 0  | sum 1  | sum 2  |
//   receiver's device                    | copy 0 | copy 1 | copy 2 |
//   receiver's thread                    | sum 0  | sum 1  | sum 2  |
//
// The entry of the frame is published with its first part, which the header's checksum covers. From
// then on one word per slot says how far the payload is written and the CRC-32C of everything up to
// there; both are in one atomic word, so they always belong together. The receiver copies what has
// arrived at once and checks it while its device copies; the step begins when all is checked.
//
// What can go wrong ends as with whole frames. A sender that died: its socket says so. One that
// stopped: the deadline of whoever waits for the activation. A word that shrinks, leads beyond the
// payload or does not fit the bytes: DataLoss. The word of an older frame is never seen: a slot is
// filled again after its credit alone, and the word is written before the entry is published.
//
// Thread rule: pure; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "transport/frame.h"

namespace layercake::transport {

// Parts shorter than this cost more in wake-ups than they overlap: half a mebibyte is 10
// microseconds of a PCIe 5 link and 25 of a checksum.
inline constexpr uint32_t kFramePartBytes = 512 << 10;

// What the word of a slot says.
struct PartProgress {
  uint32_t bytes = 0;   // of the payload that are there, from its start
  uint32_t crc32c = 0;  // of these
  friend bool operator==(const PartProgress&, const PartProgress&) = default;
};

// A frame as it leaves.
class DepartingFrame {
 public:
  // `payload` is the slot; `first` is what was published with the header.
  DepartingFrame(uint32_t slot, const FrameHeader& header, const std::byte* payload,
                 const PartProgress& first);

  // The first `bytes` bytes are there. InvalidArgument: no more than before, or more than all.
  absl::Status Advance(uint32_t bytes);

  uint32_t slot() const { return slot_; }
  const PartProgress& progress() const { return progress_; }
  bool whole() const { return progress_.bytes == payload_bytes_; }

 private:
  uint32_t slot_;
  uint32_t payload_bytes_;
  const std::byte* payload_;
  PartProgress progress_;
};

// A frame as it arrives.
class ArrivingFrame {
 public:
  // `header` is of a frame in parts in the slot at `payload`, and its first part was checked.
  ArrivingFrame(const FrameHeader& header, const std::byte* payload);

  // The word now says `progress`. DataLoss: it cannot say that.
  absl::Status Advance(const PartProgress& progress);
  // DataLoss when the bytes that arrived are not those that were sent.
  absl::Status Check();

  uint32_t arrived() const { return arrived_.bytes; }
  // Everything arrived and was checked.
  bool whole() const { return checked_.bytes == header_.payload_bytes; }

 private:
  FrameHeader header_;
  const std::byte* payload_;
  PartProgress arrived_;
  PartProgress checked_;
};

}  // namespace layercake::transport
