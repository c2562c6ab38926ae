// Products of 1 to 16 rows with quantised matrices: every weight is read once, in its file's size.
//
// The work of a launch is the row tiles (128 rows) of its matrices, one after another, times the
// column blocks of 256; it is cut into equal contiguous ranges, one per multiprocessor. A
// tile that is cut is added up in ascending order of columns by the block that began it. So the
// order of additions depends on the matrices of the launch and the multiprocessors, never on the
// rows.
//
// Thread rule: the step thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/operand_layout.h"
#include "kernels/weight_type.h"

namespace layercake::kernels::cuda {

inline constexpr int kDecodeMaxRows = kFixedGroupRows;
inline constexpr int kDecodeMaxProducts = 3;

struct DecodeProduct {
  WeightType type = WeightType::kQ4_K;
  const void* units = nullptr;  // the matrix as units
  int64_t n = 0;
  const float* bias = nullptr;  // (n) or null
  float* out = nullptr;         // (rows, out_stride)
  int64_t out_stride = 0;
  bool accumulate = false;
};

struct DecodeProducts {
  int count = 0;
  DecodeProduct product[kDecodeMaxProducts];
  int64_t k = 0;
};

// Where blocks leave what they add for others. Flags are zero between launches.
struct DecodeScratch {
  void* partials = nullptr;
  uint32_t* flags = nullptr;
};
size_t DecodePartialsBytes(int sm_count);
size_t DecodeFlagsBytes(int sm_count);

// Whether one launch can take matrices of both types.
bool DecodeTogether(WeightType a, WeightType b);

// Raises the kernels' shared memory limits; once per device, before the first launch.
cudaError_t PrepareDecode(const Context& context);

// One kernel launch. `operand` is the first of the (up to 16) rows' fixed blocks. Types that go
// together, 1 to kDecodeMaxRows rows; cudaErrorInvalidValue otherwise, and for more than 2^32 /
// sm_count items of work.
cudaError_t LaunchDecode(const Context& context, const DecodeProducts& products,
                         const FixedBlock* operand, int rows, const DecodeScratch& scratch);

}  // namespace layercake::kernels::cuda
