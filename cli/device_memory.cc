#include "cli/device_memory.h"

#include <map>

#include "kernels/device_choice.h"

namespace layercake::cli {

std::vector<uint64_t> StageMemoryBytes(absl::Span<const std::string> devices,
                                       absl::Span<const kernels::CudaDeviceFacts> cards) {
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
  for (size_t stage = 0; stage < devices.size(); ++stage) {
    for (const kernels::CudaDeviceFacts& card : cards) {
      if (card.index != card_of[stage]) continue;
      bytes[stage] = card.total_bytes / 10 * 9 / stages_on[card.index];
    }
  }
  return bytes;
}

}  // namespace layercake::cli
