// Products of 1 to 128 rows of activations with BF16 weights as they lie in the file, on Hopper: so
// few rows that reading the weights is what takes the time. 1 to 16 rows are pairs of bf16, high +
// low, which is 16 bits of an activation (matmul_float.h); more rows are the high part alone.
//
// The copy engine brings 64 columns of weights and of activations to shared memory, swizzled as
// wgmma reads them; sums are float32. The work is items of 128 rows of weights (64 of gate and
// as many of up, where they are multiplied together) by all rows of activations, dealt out as in
// unit_work.h: what is cut is added up in ascending order of columns by the block that began it. So
// bits depend on n, k, the matrices of the launch and the multiprocessors, and beyond 16 rows on
// Bf16ItemTokens: up to 16 a row's bits are the same whatever rows are beside it.
//
// Thread rule: as for every launch, the thread that owns the context's stream.
#pragma once

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch.h"

namespace layercake::kernels::cuda {

inline constexpr int kBf16PairRows = 16;   // the most rows of pairs
inline constexpr int kBf16LeastRows = 17;  // of high parts
inline constexpr int kBf16MostRows = 128;
inline constexpr int kBf16MaxProducts = 3;
inline constexpr int64_t kBf16MostColumns = int64_t{1} << 22;

// Rows of activations of an item, 32, 64, 96 or 128: `rows` and zeros.
constexpr int Bf16ItemTokens(int rows) { return (rows + 31) / 32 * 32; }
// Of pairs, 8 or 16.
constexpr int Bf16PairTokens(int rows) { return rows <= 8 ? 8 : kBf16PairRows; }

struct Bf16Product {
  const uint16_t* weights = nullptr;  // (n, k), 16-byte aligned
  int64_t n = 0;
  const float* bias = nullptr;  // (n) or null
  float* out = nullptr;         // (rows, out_stride)
  int64_t out_stride = 0;
  bool accumulate = false;
};

struct Bf16Products {
  int count = 0;  // 1 to kBf16MaxProducts
  Bf16Product product[kBf16MaxProducts];
  int64_t k = 0;
  // Not null: the two products are gate and up of equal, even n, their `out` is not used, and
  // silu(gate) * up (rows, n) is written here as bf16; beside pairs as pairs.
  uint16_t* gated = nullptr;
  uint16_t* gated_low = nullptr;
};

// What launches need beside their arguments.
struct Bf16Scratch {
  // The driver's function that describes a matrix to the copy engine.
  PFN_cuTensorMapEncodeTiled_v12000 encode = nullptr;
  // Where blocks leave what they add for others. Flags are zero between launches.
  void* partials = nullptr;   // Bf16PartialBytes; for pairs Bf16PairPartialBytes
  uint32_t* flags = nullptr;  // Bf16FlagBytes
};
size_t Bf16PartialBytes(int sm_count);
size_t Bf16PairPartialBytes(int sm_count);
size_t Bf16FlagBytes(int sm_count);

// Raises the kernels' shared memory limits and finds `encode`, which stays null where this device
// or driver cannot run them; once per device, before the first launch.
cudaError_t PrepareBf16Matmul(const Context& context, PFN_cuTensorMapEncodeTiled_v12000* encode);

// One launch; x (rows, k) bf16, 16-byte aligned, kBf16LeastRows to kBf16MostRows rows.
// cudaErrorInvalidValue for other rows, for other counts of products than the above and for k that
// is no multiple of 8 or beyond kBf16MostColumns.
cudaError_t MultiplyBf16(const Context& context, const Bf16Products& products, const uint16_t* x,
                         int rows, const Bf16Scratch& scratch);

// The same with 1 to kBf16PairRows rows of x = high + low.
cudaError_t MultiplyBf16Pairs(const Context& context, const Bf16Products& products,
                              const uint16_t* high, const uint16_t* low, int rows,
                              const Bf16Scratch& scratch);

}  // namespace layercake::kernels::cuda
