// How much of a device's memory each stage of a chain on this machine may use.
// Thread rule: none of it is shared between threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "kernels/cuda_backend.h"

namespace layercake::cli {

// For each stage of `devices` (one name each): its share of what is free on the card it will get,
// dealt out evenly to the stages on it; 0 for cpu and for names that fit no card. `free_bytes` is
// asked once for each card that a stage gets.
std::vector<uint64_t> StageMemoryBytes(
    absl::Span<const std::string> devices, absl::Span<const kernels::CudaDeviceFacts> cards,
    absl::FunctionRef<uint64_t(const kernels::CudaDeviceFacts&)> free_bytes);

// A driver may count the memory of a process that has just ended as taken for seconds more: a
// server that is started again at once would plan with the rest. Decides when what a card has free
// can be believed. Pure.
class ReturningMemory {
 public:
  // How long to wait for the first byte to come back, and for the next one; how long in all.
  static constexpr absl::Duration kQuiet = absl::Seconds(2);
  static constexpr absl::Duration kLongest = absl::Seconds(15);

  explicit ReturningMemory(uint64_t total_bytes) : total_bytes_(total_bytes) {}
  // One answer of the driver. True: much of the card is taken and more may come back; ask again.
  bool AskAgain(uint64_t free_bytes, base::Instant now);

 private:
  const uint64_t total_bytes_;
  bool asked_ = false;
  base::Instant began_;
  base::Instant grew_;
  uint64_t most_free_ = 0;
};

// What other processes leave free on the card, or, with a warning, all it has where the driver
// does not say. Waits, and says so, while memory comes back (ReturningMemory).
uint64_t SettledFreeBytes(const kernels::CudaDeviceFacts& card);

}  // namespace layercake::cli
