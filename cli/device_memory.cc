#include "cli/device_memory.h"

#include <map>

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

uint64_t FreeBytesOrAll(const kernels::CudaDeviceFacts& card) {
  const absl::StatusOr<uint64_t> free_bytes = kernels::FreeBytesOnCard(card);
  if (free_bytes.ok()) return *free_bytes;
  spdlog::warn("cuda:{}: all its memory counts as free: {}", card.index,
               free_bytes.status().ToString());
  return card.total_bytes;
}

}  // namespace layercake::cli
