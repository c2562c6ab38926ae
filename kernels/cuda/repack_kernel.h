// The device's twin of RepackToUnits.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/weight_type.h"

namespace layercake::kernels::cuda {

// Rows [row_begin, row_begin + rows) of an n x k matrix of a quantised type, as they lie in the
// file at `file` (device), into their units; `units` is the whole matrix. row_begin is a multiple
// of kTileRows, and so is `rows` unless the matrix ends there.
cudaError_t LaunchRepack(const Context& context, WeightType type, int64_t n, int64_t k,
                         const uint8_t* file, int64_t row_begin, int64_t rows, uint8_t* units);

}  // namespace layercake::kernels::cuda
