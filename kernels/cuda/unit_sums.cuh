// What the consumers of unit_kernel.cuh do with their sums: leave them, gather them, store them.
#pragma once

#include "kernels/cuda/part_flags.cuh"
#include "kernels/cuda/unit_shape.cuh"

namespace layercake::kernels::cuda {

// What a lane has of an item: of 16 rows of weights times kTokens rows of activations for each unit
// of its warp.
template <typename Shape>
class UnitSums {
 public:
  float value[Shape::kWarpUnits][Shape::kSums];
  float weight_scale[Shape::kWarpUnits];  // of the units' matrices

  __device__ UnitSums(int warp, int lane) : warp_(warp), lane_(lane) {}

  // The unit of the item that value[i] belongs to: one of each tile.
  __device__ __forceinline__ int Unit(int i) const { return warp_ + kTileUnits * i; }

  __device__ __forceinline__ void Begin(const UnitArguments& a, const UnitItem& item) {
#pragma unroll
    for (int i = 0; i < Shape::kWarpUnits; ++i) {
      weight_scale[i] = a.products.product[a.paired() ? i : item.product].weight_scale;
    }
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
    RaisePartFlag(Flag(a, blockIdx.x), lane_);
  }

  // Adds what the following blocks left of the item whose column blocks end at `item_end` of all.
  __device__ __forceinline__ void Gather(const UnitArguments& a, uint32_t item_end) {
    uint32_t end = blockIdx.x + 1;
    while (end < a.work.grid && a.work.RunBegin(end) < item_end) ++end;
    TakePartFlags(blockIdx.x + 1, end, lane_, [&](uint32_t block) { return Flag(a, block); });
    uint32_t block = blockIdx.x + 1;
    if constexpr (kTogether > 1) {
      for (; block + kTogether <= end; block += kTogether) AddParts<kTogether>(a, block);
    }
    for (; block < end; ++block) AddParts<1>(a, block);
  }

  // out = sum * scales (+ bias) (+ out).
  __device__ __forceinline__ void Store(const UnitArguments& a, const UnitItem& item) const {
    const UnitProduct& product = a.products.product[item.product];
    const int64_t row = item.row_tile * kItemRows + kUnitRows * warp_ + lane_ / 4;
    const int64_t rows_left = product.n - row;  // this lane's: kTileRows * i + 8 lower of them
    float bias[Shape::kWarpUnits][2] = {};
    if (product.bias != nullptr) {
#pragma unroll
      for (int i = 0; i < 2 * Shape::kWarpUnits; ++i) {
        const int down = kTileRows * (i / 2) + 8 * (i % 2);
        if (down < rows_left) bias[i / 2][i % 2] = product.bias[row + down];
      }
    }
    const int first_token = item.token_first + 2 * (lane_ % 4);
    const float* const scales = a.x.half_scale + first_token;
    const float from_weights = 1 / weight_scale[0];  // the item is of one matrix
    float* out = product.out + first_token * product.out_stride + row;
    constexpr int kBatch = 4;  // pairs of tokens that are read before any is written
#pragma unroll
    for (int n = 0; n < Shape::kSums / 4; n += kBatch) {
      float2 scale[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        scale[i] = *reinterpret_cast<const float2*>(scales + 8 * (n + i));
        scale[i].x *= from_weights;
        scale[i].y *= from_weights;
      }
      StoreBatch<kBatch>(product, a.rows - first_token - 8 * n, rows_left, out, 4 * n, scale, bias);
      out += 8 * kBatch * product.out_stride;
    }
  }

 private:
  // Parts of an item that are on their way at once, where registers allow.
  static constexpr int kTogether = Shape::kWarpUnits * Shape::kSums <= 32 ? 2 : 1;

  template <int kCount>
  __device__ __forceinline__ void AddParts(const UnitArguments& a, uint32_t block) {
    float4 parts[kCount][Shape::kWarpUnits][Shape::kSums / 4];
#pragma unroll
    for (int part = 0; part < kCount; ++part) {
      const float4* const from = Place(a, block + static_cast<uint32_t>(part));
#pragma unroll
      for (int i = 0; i < Shape::kWarpUnits * Shape::kSums / 4; ++i) {
        parts[part][i / (Shape::kSums / 4)][i % (Shape::kSums / 4)] = __ldcg(from + 32 * i);
      }
    }
#pragma unroll
    for (int part = 0; part < kCount; ++part) {
#pragma unroll
      for (int unit = 0; unit < Shape::kWarpUnits; ++unit) {
#pragma unroll
        for (int i = 0; i < Shape::kSums / 4; ++i) {
          const float4& v = parts[part][unit][i];
          value[unit][4 * i] += v.x;
          value[unit][4 * i + 1] += v.y;
          value[unit][4 * i + 2] += v.z;
          value[unit][4 * i + 3] += v.w;
        }
      }
    }
  }

  // Values from `first` on of each unit: tokens 8 i and 8 i + 1 from `out` on, where there are so
  // many left; rows 0 and 8 of each unit, a tile apart, likewise.
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
          const int down = kTileRows * (r / 2) + 8 * (r % 2);
          if (down < rows_left) before[i / 2][i % 2][r] = from[down];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2 * kBatch; ++i) {
      if (8 * (i / 2) + i % 2 >= tokens_left) continue;
      const float factor = i % 2 == 0 ? scale[i / 2].x : scale[i / 2].y;
      float* const to = out + (8 * (i / 2) + i % 2) * product.out_stride;
#pragma unroll
      for (int r = 0; r < kDown; ++r) {
        const int down = kTileRows * (r / 2) + 8 * (r % 2);
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

  int warp_, lane_;
};

}  // namespace layercake::kernels::cuda
