#include "cli/device_memory.h"

#include <map>

#include "cli/format.h"
#include "cli/pause.h"
#include "coordinator/kv_budget.h"
#include "kernels/device_choice.h"
#include "spdlog/spdlog.h"

namespace layercake::cli {

std::vector<uint64_t> StageMemoryBytes(
    absl::Span<const std::string> devices, absl::Span<const kernels::CudaDeviceFacts> cards,
    absl::FunctionRef<uint64_t(const kernels::CudaDeviceFacts&)> free_bytes) {
  std::vector<int> card_of(devices.size(), -1);
  std::map<int, uint64_t> stages_on;
  for (size_t stage = 0; stage < devices.size(); ++stage) {
    const auto kind = kernels::ParseDeviceKind(devices[stage]);
    if (!kind.ok() || *kind == kernels::DeviceKind::kCpu) continue;
    const auto card = kernels::ChooseCudaDevice(devices[stage], static_cast<int>(stage), cards);
    if (!card.ok()) continue;
    card_of[stage] = card->index;
    ++stages_on[card->index];
  }
  std::vector<uint64_t> bytes(devices.size(), 0);
  for (const kernels::CudaDeviceFacts& card : cards) {
    const auto stages = stages_on.find(card.index);
    if (stages == stages_on.end()) continue;
    const uint64_t share = free_bytes(card) / stages->second;
    for (size_t stage = 0; stage < devices.size(); ++stage) {
      if (card_of[stage] == card.index) bytes[stage] = share;
    }
  }
  return bytes;
}

bool ReturningMemory::AskAgain(uint64_t free_bytes, base::Instant now) {
  // What a driver's own bookkeeping moves about is no process that ends.
  constexpr uint64_t kGrowth = uint64_t{64} << 20;
  if (!asked_ || free_bytes >= most_free_ + kGrowth) {
    grew_ = now;
    most_free_ = free_bytes;
  }
  if (!asked_) began_ = now;
  asked_ = true;
  return coordinator::MuchIsTaken(free_bytes, total_bytes_) && now - grew_ < kQuiet &&
         now - began_ < kLongest;
}

uint64_t SettledFreeBytes(const kernels::CudaDeviceFacts& card) {
  constexpr absl::Duration kAskEvery = absl::Milliseconds(200);
  const base::SystemClock clock;
  ReturningMemory returning(card.total_bytes);
  bool waited = false;
  for (;;) {
    const absl::StatusOr<uint64_t> free_bytes = kernels::FreeBytesOnCard(card);
    if (!free_bytes.ok()) {
      spdlog::warn("cuda:{}: all its memory counts as free: {}", card.index,
                   free_bytes.status().ToString());
      return card.total_bytes;
    }
    if (!returning.AskAgain(*free_bytes, clock.Now()) || !Pause(clock, kAskEvery).ok()) {
      if (waited) {
        spdlog::info("cuda:{}: {} are free now", card.index, FormatBytes(*free_bytes));
      }
      return *free_bytes;
    }
    if (!waited) {
      waited = true;
      spdlog::info(
          "cuda:{}: {} of {} are free; waiting a moment in case a process has just ended "
          "and its memory comes back",
          card.index, FormatBytes(*free_bytes), FormatBytes(card.total_bytes));
    }
  }
}

}  // namespace layercake::cli
