// What the consumers of unit_kernel.cuh do with their sums: leave them, gather them, store them.
#pragma once

#include "kernels/cuda/unit_shape.cuh"

namespace layercake::kernels::cuda {

// What a lane has of an item: of 16 rows of weights times kTokens rows of activations for each unit
// of its warp.
template <typename Shape>
class UnitSums {
 public:
  float value[Shape::kWarpUnits][Shape::kSums];

  __device__ UnitSums(int warp, int lane)
      : first_unit_(warp / 4 * 4 * Shape::kWarpUnits + warp % 4), warp_(warp), lane_(lane) {}

  // The unit of the item that value[i] belongs to: a warpgroup's are neighbours.
  __device__ __forceinline__ int Unit(int i) const { return first_unit_ + 4 * i; }

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int unit = 0; unit < Shape::kWarpUnits; ++unit) {
#pragma unroll
      for (int i = 0; i < Shape::kSums; ++i) value[unit][i] = 0;
    }
  }

  // Leaves them for the block that began the item.
  __device__ __forceinline__ void Leave(const UnitArguments& a) const {
    float4* const to = Place(a, blockIdx.x);
#pragma unroll
    for (int unit = 0; unit < Shape::kWarpUnits; ++unit) {
#pragma unroll
      for (int i = 0; i < Shape::kSums; i += 4) {
        const float* const v = value[unit] + i;
        __stcg(to + 8 * (unit * Shape::kSums + i), make_float4(v[0], v[1], v[2], v[3]));
      }
    }
    __syncwarp();
    if (lane_ == 0) {
      asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(Flag(a, blockIdx.x)), "r"(1) : "memory");
    }
  }

  // Adds what the following blocks left of the item whose column blocks end at `item_end` of all.
  __device__ __forceinline__ void Gather(const UnitArguments& a, uint32_t item_end) {
    for (uint32_t block = blockIdx.x + 1; block < a.work.grid && a.work.RunBegin(block) < item_end;
         ++block) {
      if (lane_ == 0) {
        uint32_t* const flag = Flag(a, block);
        uint32_t ready = 0;
        while (ready == 0) {
          asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(ready) : "l"(flag) : "memory");
        }
        *flag = 0;
      }
      __syncwarp();
      const float4* const from = Place(a, block);
#pragma unroll
      for (int unit = 0; unit < Shape::kWarpUnits; ++unit) {
#pragma unroll
        for (int i = 0; i < Shape::kSums; i += 4) {
          const float4 part = __ldcg(from + 8 * (unit * Shape::kSums + i));
          value[unit][i] += part.x;
          value[unit][i + 1] += part.y;
          value[unit][i + 2] += part.z;
          value[unit][i + 3] += part.w;
        }
      }
    }
  }

  // out = sum / scales (+ bias) (+ out).
  __device__ __forceinline__ void Store(const UnitArguments& a, const UnitItem& item) const {
    const UnitProduct& product = a.products.product[item.product];
    const int64_t row = item.row_tile * kItemRows + kUnitRows * first_unit_ + lane_ / 4;
    const int64_t rows_left = product.n - row;  // this lane's: 64 i + 8 lower of them
    float bias[Shape::kWarpUnits][2] = {};
    if (product.bias != nullptr) {
#pragma unroll
      for (int i = 0; i < 2 * Shape::kWarpUnits; ++i) {
        const int down = 64 * (i / 2) + 8 * (i % 2);
        if (down < rows_left) bias[i / 2][i % 2] = product.bias[row + down];
      }
    }
    const int first_token = item.token_first + 2 * (lane_ % 4);
    const float* const scales = a.x.half_scale + first_token;
    float* out = product.out + first_token * product.out_stride + row;
    constexpr int kBatch = 4;  // pairs of tokens that are read before any is written
#pragma unroll
    for (int n = 0; n < Shape::kSums / 4; n += kBatch) {
      float2 scale[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        scale[i] = *reinterpret_cast<const float2*>(scales + 8 * (n + i));
      }
      StoreBatch<kBatch>(product, a.rows - first_token - 8 * n, rows_left, out, 4 * n, scale, bias);
      out += 8 * kBatch * product.out_stride;
    }
  }

 private:
  // Values from `first` on of each unit: tokens 8 i and 8 i + 1 from `out` on, where there are so
  // many left; rows 0 and 8 of each unit, 64 apart, likewise.
  template <int kBatch>
  __device__ __forceinline__ void StoreBatch(const UnitProduct& product, int tokens_left,
                                             int64_t rows_left, float* out, int first,
                                             const float2 (&scale)[kBatch],
                                             const float (&bias)[Shape::kWarpUnits][2]) const {
    constexpr int kDown = 2 * Shape::kWarpUnits;
    float before[kBatch][2][kDown] = {};
    if (product.accumulate) {
#pragma unroll
      for (int i = 0; i < 2 * kBatch; ++i) {
        if (8 * (i / 2) + i % 2 >= tokens_left) continue;
        const float* const from = out + (8 * (i / 2) + i % 2) * product.out_stride;
#pragma unroll
        for (int r = 0; r < kDown; ++r) {
          const int down = 64 * (r / 2) + 8 * (r % 2);
          if (down < rows_left) before[i / 2][i % 2][r] = from[down];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2 * kBatch; ++i) {
      if (8 * (i / 2) + i % 2 >= tokens_left) continue;
      const float factor = (i % 2 == 0 ? scale[i / 2].x : scale[i / 2].y) * (1 / kUnitWeightScale);
      float* const to = out + (8 * (i / 2) + i % 2) * product.out_stride;
#pragma unroll
      for (int r = 0; r < kDown; ++r) {
        const int down = 64 * (r / 2) + 8 * (r % 2);
        const float sum = value[r / 2][first + 4 * (i / 2) + 2 * (r % 2) + i % 2];
        if (down < rows_left)
          to[down] = sum * factor + bias[r / 2][r % 2] + before[i / 2][i % 2][r];
      }
    }
  }

  __device__ __forceinline__ float4* Place(const UnitArguments& a, uint32_t block) const {
    constexpr uint32_t kOfWarp = Shape::kWarpUnits * Shape::kSums * 8;
    return a.partials + (block * Shape::kWarps + static_cast<uint32_t>(warp_)) * kOfWarp +
           static_cast<uint32_t>(lane_);
  }
  __device__ __forceinline__ uint32_t* Flag(const UnitArguments& a, uint32_t block) const {
    return a.flags + block * Shape::kWarps + static_cast<uint32_t>(warp_);
  }

  int first_unit_, warp_, lane_;
};

}  // namespace layercake::kernels::cuda
