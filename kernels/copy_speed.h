// How fast a device copies within its memory: the ceiling that a step's reading of weights is
// measured against.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "kernels/device.h"

namespace layercake::kernels {

// Bytes read plus bytes written per second, in units of 1e9: the best of several copies of `bytes`
// bytes, which should be several times the device's caches. Takes twice `bytes` of its memory
// meanwhile; ResourceExhausted when the device has not that much.
// Thread rule: the step thread, before the first work is submitted.
absl::StatusOr<double> MeasureCopySpeed(Device& device, size_t bytes, const base::Clock& clock);

}  // namespace layercake::kernels
