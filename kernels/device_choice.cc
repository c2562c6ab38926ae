#include "kernels/device_choice.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace layercake::kernels {
namespace {

std::string ListOf(absl::Span<const CudaDeviceFacts> devices) {
  std::string list;
  for (const CudaDeviceFacts& device : devices) {
    absl::StrAppend(&list, list.empty() ? "" : ", ", "cuda:", device.index, " (", device.name, ", ",
                    device.uuid, ")");
  }
  return list;
}

}  // namespace

absl::StatusOr<DeviceKind> ParseDeviceKind(absl::string_view name) {
  if (name == "cpu") return DeviceKind::kCpu;
  if (name == "auto") return DeviceKind::kAuto;
  absl::string_view rest = name;
  if (absl::ConsumePrefix(&rest, "cuda")) {
    if (rest.empty()) return DeviceKind::kCuda;
    int index = 0;
    if (absl::ConsumePrefix(&rest, ":") && ((absl::SimpleAtoi(rest, &index) && index >= 0) ||
                                            (absl::StartsWith(rest, "GPU-") && rest.size() > 4))) {
      return DeviceKind::kCuda;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "device \"", name, "\" is not known; use cpu, cuda, cuda:<index>, cuda:GPU-<uuid> or auto"));
}

absl::StatusOr<CudaDeviceFacts> ChooseCudaDevice(absl::string_view name, int stage,
                                                 absl::Span<const CudaDeviceFacts> devices) {
  if (devices.empty()) return absl::NotFoundError("there is no CUDA device");
  absl::string_view wanted = name;
  if (!absl::ConsumePrefix(&wanted, "cuda:")) {
    return devices[static_cast<size_t>(stage) % devices.size()];
  }
  const CudaDeviceFacts* found = nullptr;
  int index = -1;
  const bool by_index = absl::SimpleAtoi(wanted, &index);
  for (const CudaDeviceFacts& device : devices) {
    if (by_index ? device.index != index : !absl::StartsWith(device.uuid, wanted)) continue;
    if (found != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("device ", name, " fits more than one of ", ListOf(devices)));
    }
    found = &device;
  }
  if (found != nullptr) return *found;
  return absl::NotFoundError(
      absl::StrCat("device ", name, " is not among those that there are: ", ListOf(devices)));
}

}  // namespace layercake::kernels
