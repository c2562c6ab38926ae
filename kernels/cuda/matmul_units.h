// Products of 17 and more rows with quantised matrices that are read as units (unit_layout.h): each
// weight becomes f16 in a register, on its way to the tensor cores, once per 32, 64, 96 or 128
// rows. Hopper multiplies with its asynchronous instructions (wgmma), other devices with mma.sync.
//
// A weight is q * s (+ m) with s and m the format's float32 values times a power of two of the
// matrix (unit_range.h) rounded to f16, and the result rounded once more; an activation is an f16
// under a power of two per row. An output is off by about 4e-4 of its norm.
//
// The work is items of 256 rows of weights by up to 128 rows of activations (unit_work.h). Items
// that are cut are added up in ascending order of columns by the block that began them. So bits
// depend on n, k, the rows, the matrices of the launch and the multiprocessors.
//
// Thread rule: as for every launch, the thread that owns the context's stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/operand_layout.h"
#include "kernels/weight_type.h"

namespace layercake::kernels::cuda {

inline constexpr int kUnitMaxProducts = 3;

// The quantised types but MXFP4, whose exponents f16 does not hold, and Q2_K, whose groups of 16
// have minima too.
constexpr bool HasUnitMatmul(WeightType type) {
  switch (type) {
    case WeightType::kQ3_K:
    case WeightType::kQ4_0:
    case WeightType::kQ4_1:
    case WeightType::kQ4_K:
    case WeightType::kQ5_0:
    case WeightType::kQ5_1:
    case WeightType::kQ5_K:
    case WeightType::kQ6_K:
    case WeightType::kQ8_0:
    case WeightType::kIQ4_NL:
    case WeightType::kIQ4_XS:
      return true;
    default:
      return false;
  }
}

struct UnitProduct {
  const std::byte* units = nullptr;
  int64_t n = 0;
  float weight_scale = 1;       // UnitWeightScale of the matrix
  const float* bias = nullptr;  // (n) or null
  float* out = nullptr;         // (rows, out_stride)
  int64_t out_stride = 0;
  bool accumulate = false;
};

// silu(gate) * up of two products as the operand of the next one, in tiles, instead of their
// results.
//
// Halves need a scale before their row's largest magnitude is known. By Cauchy and Schwarz
// |gate| <= |x| * gate_norm + gate_bias, |up| likewise and |silu(gate)| <= |gate|, so the row's
// power of two is the one that brings the product of the bounds into [2^13, 2^14). What lies 2^-38
// of it and more below is lost in f16's subnormals.
struct UnitSwiglu {
  uint16_t* tiles = nullptr;  // null: none
  int64_t tile_groups = 0;
  float* half_scale = nullptr;       // (rows): value = half * half_scale
  float gate_norm = 0, up_norm = 0;  // UnitRange::largest_row_norm
  float gate_bias = 0, up_bias = 0;  // largest magnitudes
};

struct UnitProducts {
  int count = 0;  // 1 to kUnitMaxProducts
  UnitProduct product[kUnitMaxProducts];
  int64_t k = 0;
  UnitSwiglu swiglu;
};

// Rows of activations of an item: as few items as 128 rows allow, about equal.
int UnitItemTokens(int rows);

// Where blocks leave what they add for others. Flags are zero between launches.
struct UnitScratch {
  void* partials = nullptr;  // UnitPartialBytes
  uint32_t* flags = nullptr;
};
size_t UnitPartialBytes(int sm_count);
size_t UnitFlagBytes(int sm_count);

// Raises the shared memory limits of a type's kernels, which loads their code; once per device,
// before the first launch. cudaErrorInvalidValue without HasUnitMatmul.
cudaError_t PrepareUnitMatmul(const Context& context, WeightType type);

// One launch. Any rows >= 1 of x.tiles and x.half_scale; products of one type that HasUnitMatmul, k
// a multiple of 32; cudaErrorInvalidValue otherwise, and for 2^31 column blocks of items and more.
// With products.swiglu: two products of equal n, gate and up, whose `out` is not used, and
// x.row_norm.
cudaError_t MultiplyUnits(const Context& context, WeightType type, const UnitProducts& products,
                          const OperandView& x, int rows, const UnitScratch& scratch);

}  // namespace layercake::kernels::cuda
