#include "kernels/copy_speed.h"

#include <algorithm>
#include <array>
#include <memory>

#include "base/status_macros.h"

namespace layercake::kernels {
namespace {

// The first copies are slow: pages are mapped, clocks rise.
constexpr int kRounds = 6;
constexpr int kCopiesPerRound = 4;

}  // namespace

absl::StatusOr<double> MeasureCopySpeed(Device& device, size_t bytes, const base::Clock& clock) {
  LC_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceMemory> from, device.Allocate(bytes));
  LC_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceMemory> to, device.Allocate(bytes));
  std::array<std::byte, 4> word{};
  // Copying out waits for what was copied before.
  const auto wait = [&] {
    return device.CopyOut(to->buffer(), word.data(), std::min(bytes, word.size()));
  };
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    LC_RETURN_IF_ERROR(wait());
    const base::Instant began = clock.Now();
    for (int i = 0; i < kCopiesPerRound; ++i) {
      LC_RETURN_IF_ERROR(device.Copy(from->buffer(), to->buffer(), bytes));
    }
    LC_RETURN_IF_ERROR(wait());
    const double seconds = std::max(absl::ToDoubleSeconds(clock.Now() - began), 1e-9);
    best = std::max(best, 2.0 * kCopiesPerRound * static_cast<double>(bytes) / seconds / 1e9);
  }
  return best;
}

}  // namespace layercake::kernels
