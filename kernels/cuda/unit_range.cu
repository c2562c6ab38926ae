#include "kernels/cuda/matmul_units.h"
#include "kernels/cuda/unit_range.h"
#include "kernels/cuda/unit_reader.cuh"

namespace layercake::kernels::cuda {
namespace {

constexpr int kWarps = 8;

// Magnitudes are ordered as their bits are. NaN and infinity are left out.
__device__ __forceinline__ void KeepLargest(float value, float* to) {
  const uint32_t bits = __float_as_uint(value) & 0x7fffffffu;
  if (bits > 0 && bits < 0x7f800000u) atomicMax(reinterpret_cast<uint32_t*>(to), bits);
}

__device__ __forceinline__ float LargerMagnitude(float a, float b) {
  const float magnitude = fabsf(b);
  return magnitude > a && magnitude < INFINITY ? magnitude : a;
}

// What a lane has seen of its rows, lane / 4 and lane / 4 + 8 of a unit.
struct LaneRange {
  float scale = 0;
  float minimum = 0;
  float squares[2] = {0, 0};
};

template <WeightType kType>
__device__ void AddUnit(const uint8_t* unit, int lane, LaneRange& seen) {
  const LanePlanes<kType> planes(unit, lane);
#pragma unroll
  for (int lower = 0; lower < 2; ++lower) {
    const RowHeader<kType> header(unit, lane / 4 + 8 * lower);
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const GroupScale group = header.Group(j, half);
        const int multiplier = RowHeader<kType>::kHasMultiplier ? group.multiplier : 1;
        seen.scale = LargerMagnitude(seen.scale, group.scale * static_cast<float>(multiplier));
        seen.minimum = LargerMagnitude(seen.minimum, group.minimum);
        const uint32_t codes = PackedCodes<kType>(planes.Words(j, 2 * half + lower), j);
#pragma unroll
        for (int b = 0; b < 4; ++b) {
          const float weight = WeightValue<kType>(group, codes, b);
          seen.squares[lower] = fmaf(weight, weight, seen.squares[lower]);
        }
      }
    }
  }
}

// A block for each row of units.
template <WeightType kType>
__global__ void __launch_bounds__(32 * kWarps)
    UnitRangeKernel(const uint8_t* units, int64_t n, int64_t k, float* range) {
  __shared__ float squares[kWarps][kUnitRows];
  GridLaunchDependents();
  GridDependencyWait();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  LaneRange seen;
  for (int64_t block = warp; block < ColumnBlocks(k); block += kWarps) {
    AddUnit<kType>(units + UnitIndex(n, k, blockIdx.x, block) * UnitBytes(kType), lane, seen);
  }
#pragma unroll
  for (int lower = 0; lower < 2; ++lower) {
    float sum = seen.squares[lower];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane % 4 == 0) squares[warp][lane / 4 + 8 * lower] = sum;
  }
  KeepLargest(seen.scale, range);
  KeepLargest(seen.minimum, range + 1);
  __syncthreads();
  if (threadIdx.x >= kUnitRows) return;
  float sum = 0;
  for (int i = 0; i < kWarps; ++i) sum += squares[i][threadIdx.x];
  KeepLargest(sqrtf(sum), range + 2);
}

}  // namespace

cudaError_t MeasureUnitRange(const Context& context, WeightType type, int64_t n, int64_t k,
                             const std::byte* units, float* range) {
  if (!HasUnitMatmul(type) || n < 1 || k < 1) return cudaErrorInvalidValue;
  const cudaError_t error = cudaMemsetAsync(range, 0, sizeof(UnitRange), context.stream);
  if (error != cudaSuccess) return error;
  return ForQuantisedType(type, cudaErrorInvalidValue, [&]<WeightType kType>() {
    if constexpr (HasUnitMatmul(kType)) {
      return Launch(context, dim3(static_cast<unsigned>(UnitRowCount(n))), dim3(32 * kWarps), 0,
                    UnitRangeKernel<kType>, reinterpret_cast<const uint8_t*>(units), n, k, range);
    }
    return cudaErrorInvalidValue;
  });
}

}  // namespace layercake::kernels::cuda
