// From the file's rows to units (unit_layout.h) and back. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/weight_type.h"

namespace layercake::kernels::cuda {

// Bytes of an n x k matrix as units; rows and columns padded. 0 when it overflows int64.
int64_t UnitsBytes(WeightType type, int64_t n, int64_t k);

// `file`: n * RowBytes(type, k) bytes, `units`: UnitsBytes(type, n, k). A quantised type, k a
// multiple of its block (callers check). The device does this itself (repack_kernel.h); these are
// its twin.
void RepackToUnits(WeightType type, int64_t n, int64_t k, absl::Span<const std::byte> file,
                   absl::Span<std::byte> units);
void RepackToFile(WeightType type, int64_t n, int64_t k, absl::Span<const std::byte> units,
                  absl::Span<std::byte> file);

}  // namespace layercake::kernels::cuda
