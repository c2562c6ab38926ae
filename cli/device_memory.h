// How much of a device's memory each stage of a chain on this machine may use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "kernels/cuda_backend.h"

namespace layercake::cli {

// For each stage of `devices` (one name each): its share of the memory of the card it will get,
// nine tenths of which are dealt out evenly to the stages on it; 0 for cpu and for names that fit
// no card.
std::vector<uint64_t> StageMemoryBytes(absl::Span<const std::string> devices,
                                       absl::Span<const kernels::CudaDeviceFacts> cards);

}  // namespace layercake::cli
