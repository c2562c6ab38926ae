#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/matmul_float_rows.h"

namespace layercake::kernels::cuda {
namespace {

// One warp per row of weights, kVector columns a lane at a time.
constexpr int kRowWarps = 8;

struct PlainF32 {
  using Element = float;
  static __device__ float Weight(float w) { return w; }
  static __device__ float Value(const OperandView& x, int64_t at) { return x.values[at]; }
};
struct PlainF16 {
  using Element = __half;
  static __device__ float Weight(__half w) { return __half2float(w); }
  static __device__ float Value(const OperandView& x, int64_t at) { return x.values[at]; }
};
struct PlainBf16 {
  using Element = __nv_bfloat16;
  static __device__ float Weight(__nv_bfloat16 w) { return __bfloat162float(w); }
  static __device__ float Value(const OperandView& x, int64_t at) {
    const auto widen = [](uint16_t bits) { return __uint_as_float(uint32_t{bits} << 16); };
    return widen(x.bf16_high[at]) + widen(x.bf16_low[at]);
  }
};

template <typename Plain, int kVector>
__global__ void RowKernel(const __grid_constant__ FloatProducts products,
                          const __grid_constant__ OperandView x, int rows) {
  constexpr int kRows = 4;
  using Element = typename Plain::Element;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  GridLaunchDependents();
  GridDependencyWait();
  int64_t row = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / 32;
  int index = 0;
  while (index + 1 < products.count && row >= products.product[index].n) {
    row -= products.product[index++].n;
  }
  const FloatProduct& product = products.product[index];
  if (row >= product.n) return;
  const int64_t k = products.k;
  const Element* weights = static_cast<const Element*>(product.weights) + row * k;
  for (int first = 0; first < rows; first += kRows) {
    float sums[kRows] = {};
    for (int64_t column = kVector * lane; column < k; column += 32 * kVector) {
      struct alignas(kVector * sizeof(Element)) Piece {
        Element element[kVector];
      };
      const Piece piece = *reinterpret_cast<const Piece*>(weights + column);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int64_t at = min(first + r, rows - 1) * k + column;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          sums[r] = __fmaf_rn(Plain::Weight(piece.element[i]), Plain::Value(x, at + i), sums[r]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float sum = sums[r];
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
      if (lane != 0 || first + r >= rows) continue;
      if (product.bias != nullptr) sum += product.bias[row];
      float* out = product.out + (first + r) * product.out_stride + row;
      *out = product.accumulate ? *out + sum : sum;
    }
  }
}

template <typename Plain, int kVector>
cudaError_t LaunchRows(const Context& context, const FloatProducts& products, const OperandView& x,
                       int rows) {
  int64_t n = 0;
  for (int i = 0; i < products.count; ++i) n += products.product[i].n;
  const auto blocks = static_cast<unsigned>((n + kRowWarps - 1) / kRowWarps);
  return Launch(context, dim3(blocks), dim3(32 * kRowWarps), 0, RowKernel<Plain, kVector>, products,
                x, rows);
}

}  // namespace

cudaError_t MultiplyFloatRows(const Context& context, const FloatProducts& products,
                              const OperandView& x, int rows) {
  switch (products.type) {
    case WeightType::kBF16:
      return LaunchRows<PlainBf16, 1>(context, products, x, rows);
    case WeightType::kF16:
      return LaunchRows<PlainF16, 1>(context, products, x, rows);
    case WeightType::kF32:
      return products.k % 4 == 0 ? LaunchRows<PlainF32, 4>(context, products, x, rows)
                                 : LaunchRows<PlainF32, 1>(context, products, x, rows);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace layercake::kernels::cuda
