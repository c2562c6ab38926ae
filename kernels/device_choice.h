// Which device a name means. Pure.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/cuda_backend.h"

namespace layercake::kernels {

enum class DeviceKind : uint8_t { kCpu, kCuda, kAuto };

// "cpu"; "cuda", "cuda:<index>" or "cuda:GPU-<uuid>"; "auto". InvalidArgument lists what is known.
absl::StatusOr<DeviceKind> ParseDeviceKind(absl::string_view name);

// The one of `devices` that a name of kind kCuda or kAuto means. Without an index or UUID the
// stages share the devices out in turn: `stage` modulo their number. A UUID may be shortened as
// long as it fits one device only. NotFound lists the devices that there are.
absl::StatusOr<CudaDeviceFacts> ChooseCudaDevice(absl::string_view name, int stage,
                                                 absl::Span<const CudaDeviceFacts> devices);

}  // namespace layercake::kernels
