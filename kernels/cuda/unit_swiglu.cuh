// SwiGLU of the sums of gate and up (UnitSwiglu), on their way into the operand of the next
// product.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/operand_layout.h"
#include "kernels/cuda/silu.cuh"
#include "kernels/cuda/unit_shape.cuh"
#include "kernels/cuda/unit_sums.cuh"

namespace layercake::kernels::cuda {

// The power of two that brings `bound` into [2^13, 2^14), and back; 0 and NaN for a bound that is
// no finite number, so that the row shows it.
struct BoundScale {
  float to_half, from_half;

  __device__ __forceinline__ explicit BoundScale(float bound) {
    const int exponent = static_cast<int>(__float_as_uint(bound) >> 23);  // bound is not negative
    // Exponents that leave both powers normal numbers.
    const int e = min(max(exponent, 27), 253) - 127 - 13;
    const bool finite = bound < INFINITY;
    to_half = finite ? __uint_as_float(static_cast<uint32_t>(127 - e) << 23) : 0.0f;
    from_half = finite ? __uint_as_float(static_cast<uint32_t>(127 + e) << 23) : NAN;
  }
};

// What a lane does with its sums: rows g = lane / 4 and g + 8 of its warp's unit, as columns of the
// next operand; tokens 8 n + 2 (lane % 4) and the one behind.
template <typename Shape>
class SwigluStore {
 public:
  __device__ SwigluStore(const UnitArguments& a, const UnitSums<Shape>& sums, const UnitItem& item,
                         int warp, int lane)
      : a_(a),
        to_(a.products.swiglu),
        lane_(lane),
        token_(item.token_first + 2 * (lane % 4)),
        from_gate_(1 / sums.weight_scale[0]),
        from_up_(1 / sums.weight_scale[1]) {
    const UnitProduct& gate = a.products.product[0];
    const UnitProduct& up = a.products.product[1];
    const int64_t unit = item.row_tile * kTileRows + kUnitRows * warp;
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
      const int64_t column = unit + lane / 4 + 8 * lower;
      exists_[lower] = column < gate.n;
      gate_bias_[lower] = exists_[lower] && gate.bias != nullptr ? gate.bias[column] : 0.0f;
      up_bias_[lower] = exists_[lower] && up.bias != nullptr ? up.bias[column] : 0.0f;
    }
    tiles_ = Place(unit, item.token_first);
    // The operand's column blocks are whole: zeros where a second tile of rows would be.
    const int64_t next = unit + kTileRows;
    const bool ends = (item.row_tile + 1) * kTileRows >= gate.n;
    zeros_ = ends && item.row_tile % 2 == 0 ? Place(next, item.token_first) : nullptr;
    writes_scale_ = item.row_tile == 0 && warp == 0 && lane < 4;
  }

  // In batches of a few times eight tokens: what the next one needs of the rows is on its way while
  // one is stored.
  __device__ __forceinline__ void Store(const UnitSums<Shape>& sums) const {
    RowFacts now(*this, 0);
#pragma unroll
    for (int n = 0; n < Shape::kSums / 4; n += kBatch) {
      RowFacts next = now;
      if (n + kBatch < Shape::kSums / 4) next = RowFacts(*this, n + kBatch);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) StoreTokens(sums, n + i, now.scale[i], now.norm[i]);
      now = next;
    }
  }

 private:
  static constexpr int kBatch = Shape::kSums > 32 ? 2 : 4;  // as registers allow

  // Of tokens 8 n and 8 n + 1 of a lane. They are there for whole groups, rows or not.
  struct RowFacts {
    float2 scale[kBatch], norm[kBatch];

    __device__ __forceinline__ RowFacts(const SwigluStore& store, int first) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int token = store.token_ + 8 * (first + i);
        scale[i] = *reinterpret_cast<const float2*>(store.a_.x.half_scale + token);
        norm[i] = *reinterpret_cast<const float2*>(store.a_.x.row_norm + token);
      }
    }
  };

  __device__ __forceinline__ void StoreTokens(const UnitSums<Shape>& sums, int n, float2 x_scale,
                                              float2 norm) const {
    float value[2][2];  // by lower, token
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float x = i == 0 ? x_scale.x : x_scale.y;
      const BoundScale scale(Bound(i == 0 ? norm.x : norm.y));
      const int token = token_ + 8 * n + i;
      if (writes_scale_ && token < a_.rows) to_.half_scale[token] = scale.from_half;
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const int at = 4 * n + 2 * lower + i;
        const float gate = fmaf(sums.value[0][at], x * from_gate_, gate_bias_[lower]);
        const float up = fmaf(sums.value[1][at], x * from_up_, up_bias_[lower]);
        value[lower][i] = exists_[lower] ? Silu(gate) * up * scale.to_half : 0.0f;
      }
    }
    StoreHalves(n, value);
  }

  // Where 16 columns of tokens from `token` on begin (TilePieceIndex).
  __device__ uint16_t* Place(int64_t column, int token) const {
    const int64_t block = column / kUnitColumns;
    const int in_block = static_cast<int>(column % kUnitColumns);
    const int j = in_block / 32;
    const int chunk = 4 * (j / 4) + 2 * (in_block / 16 % 2);
    return to_.tiles + TilePieceIndex(to_.tile_groups, block, j % 4, token / kTileTokens) +
           64 * chunk;
  }

  __device__ __forceinline__ float Bound(float norm) const {
    return fmaf(norm, to_.gate_norm, to_.gate_bias) * fmaf(norm, to_.up_norm, to_.up_bias);
  }

  // Columns b and b + 2 of four stand side by side: lanes eight apart have them, of two tokens
  // each, and change one against the other, so that each writes a pair of halves.
  __device__ __forceinline__ void StoreHalves(int n, const float (&value)[2][2]) const {
    const int g = lane_ / 4;
    const bool second = (g & 2) != 0;
    const int token = token_ + 8 * n + (second ? 1 : 0);
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
      const float own = second ? value[lower][1] : value[lower][0];
      const float given = second ? value[lower][0] : value[lower][1];
      const float got = __shfl_xor_sync(~0u, given, 8);
      const __half2 pair = second ? __floats2half2_rn(got, own) : __floats2half2_rn(own, got);
      if (token >= a_.rows) continue;
      // Odd columns stand in the chunk behind; t = g / 4 + 2 lower.
      const int at = 512 * n + 64 * (g & 1) + 8 * (token % kTileTokens) + 2 * (g / 4 + 2 * lower);
      *reinterpret_cast<__half2*>(tiles_ + at) = pair;
      if (zeros_ != nullptr) *reinterpret_cast<uint32_t*>(zeros_ + at) = 0;
    }
  }

  const UnitArguments& a_;
  const UnitSwiglu& to_;
  const int lane_;
  const int token_;
  const float from_gate_, from_up_;
  bool exists_[2];
  float gate_bias_[2], up_bias_[2];
  uint16_t* tiles_;
  uint16_t* zeros_;
  bool writes_scale_;
};

template <typename Shape>
__device__ __forceinline__ void StoreSwiglu(const UnitArguments& a, const UnitSums<Shape>& sums,
                                            const UnitItem& item, int warp, int lane) {
  static_assert(Shape::kWarpUnits == 2);
  SwigluStore<Shape>(a, sums, item, warp, lane).Store(sums);
}

}  // namespace layercake::kernels::cuda
