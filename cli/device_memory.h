// How much of a device's memory each stage of a chain on this machine may use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "kernels/cuda_backend.h"

namespace layercake::cli {

// For each stage of `devices` (one name each): its share of what is free on the card it will get,
// dealt out evenly to the stages on it; 0 for cpu and for names that fit no card. `free_bytes` is
// asked once for each card that a stage gets.
std::vector<uint64_t> StageMemoryBytes(
    absl::Span<const std::string> devices, absl::Span<const kernels::CudaDeviceFacts> cards,
    absl::FunctionRef<uint64_t(const kernels::CudaDeviceFacts&)> free_bytes);

// What other processes leave free on the card, or, with a warning, all it has where the driver
// does not say.
uint64_t FreeBytesOrAll(const kernels::CudaDeviceFacts& card);

}  // namespace layercake::cli
