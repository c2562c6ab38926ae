// What the consumers of matmul_bf16.cu do with their sums: leave them, gather them, store
// them.
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/matmul_bf16_shape.cuh"
#include "kernels/cuda/part_flags.cuh"
#include "kernels/cuda/silu.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace layercake::kernels::cuda {

// What the tensor cores add to: for each 16 columns of a stage that have sums of their own, and for
// each part of the activations, what Bf16Sums says of a lane.
template <typename Shape>
struct Bf16Chains {
  float chain[Shape::kChains][Shape::kParts * Shape::kSums];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (auto& sums : chain) {
#pragma unroll
      for (float& sum : sums) sum = 0;
    }
  }
  __device__ __forceinline__ void Hold() {
#pragma unroll
    for (auto& sums : chain) HoldRegisters(sums);
  }
};

// What a lane has of an item: rows g = lane / 4 and g + 8 of its warp's 16; of every eight rows of
// activations (tokens) 2 (lane % 4) and the one behind. value[4 n + 2 r + i] is row g + 8 r and the
// i-th of the two tokens from 8 n on.
template <typename Shape>
class Bf16Sums {
 public:
  float value[Shape::kSums];

  __device__ Bf16Sums(int warp, int lane) : warp_(warp), lane_(lane) {}

  // The sums of all chains of each part, one part after the other.
  __device__ __forceinline__ void Fold(const Bf16Chains<Shape>& chains) {
#pragma unroll
    for (int i = 0; i < Shape::kSums; ++i) {
      float sum[Shape::kParts];
#pragma unroll
      for (int part = 0; part < Shape::kParts; ++part) {
        const int at = part * Shape::kSums + i;
        sum[part] = chains.chain[0][at];
        if constexpr (Shape::kChains == 4) {
          sum[part] += chains.chain[1][at];
          sum[part] += chains.chain[2][at] + chains.chain[3][at];
        }
      }
      value[i] = Shape::kParts == 1 ? sum[0] : sum[0] + sum[Shape::kParts - 1];
    }
  }

  // Leaves them for the block that began the item.
  __device__ __forceinline__ void Leave(const Bf16Arguments& a) const {
    float4* const to = Place(a, blockIdx.x);
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const float* const v = value + 4 * i;
      __stcg(to + 32 * i, make_float4(v[0], v[1], v[2], v[3]));
    }
    RaisePartFlag(Flag(a, blockIdx.x), lane_);
  }

  // Adds what the following blocks left of the item whose columns end at step `item_end` of all.
  __device__ __forceinline__ void Gather(const Bf16Arguments& a, uint32_t item_end) {
    uint32_t end = blockIdx.x + 1;
    while (end < a.work.grid && a.work.RunBegin(end) < item_end) ++end;
    TakePartFlags(blockIdx.x + 1, end, lane_, [&](uint32_t block) { return Flag(a, block); });
    uint32_t block = blockIdx.x + 1;
    for (; block + kTogether <= end; block += kTogether) AddParts<kTogether>(a, block);
    for (; block < end; ++block) AddParts<1>(a, block);
  }

  // sum += bias and what stands in out, where the product says so: before Gather, which waits.
  __device__ __forceinline__ void AddBefore(const Bf16Arguments& a, const Bf16Item& item) {
    static_assert(!Shape::kGated);
    const Bf16Product& product = a.product[item.product];
    if (product.bias != nullptr) {
      ForEach(a, item, [&](int i, int64_t row, const float*) { value[i] += product.bias[row]; });
    }
    if (product.accumulate) {
      ForEach(a, item, [&](int i, int64_t, const float* out) { value[i] += *out; });
    }
  }

  // out = sum.
  __device__ __forceinline__ void Store(const Bf16Arguments& a, const Bf16Item& item) const {
    ForEach(a, item, [&](int i, int64_t, float* out) { *out = value[i]; });
  }

  // gated = silu(gate + bias) * (up + bias), by the first warpgroup, which has gate. `exchange`:
  // kExchangeBytes.
  __device__ __forceinline__ void StoreGated(const Bf16Arguments& a, const Bf16Item& item,
                                             float4* exchange) {
    static_assert(Shape::kGated);
    float4* const place = exchange + warp_ % 4 * 32 * kQuads + lane_;
    if (warp_ >= 4) {
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const float* const v = value + 4 * i;
        place[32 * i] = make_float4(v[0], v[1], v[2], v[3]);
      }
    }
    SyncConsumers();
    const int64_t row = item.first_row + 16 * (warp_ % 4) + lane_ / 4;
    if (warp_ < 4) MultiplyByUp(a, row, place);
    // Before the next item's sums take the place.
    SyncConsumers();
    if (warp_ < 4) StoreBf16(a, row);
  }

 private:
  static constexpr int kQuads = Shape::kSums / 4;
  // Parts of an item that are on their way at once, and how much of each, as registers allow.
  static constexpr int kTogether = kQuads <= 4 ? 4 : 2;
  static constexpr int kPiece = kQuads <= 8 ? kQuads : kQuads % 8 == 0 ? 8 : 4;
  static_assert(kQuads % kPiece == 0);

  template <int kCount>
  __device__ __forceinline__ void AddParts(const Bf16Arguments& a, uint32_t block) {
#pragma unroll
    for (int first = 0; first < kQuads; first += kPiece) {
      float4 parts[kCount][kPiece];
#pragma unroll
      for (int part = 0; part < kCount; ++part) {
        const float4* const from = Place(a, block + static_cast<uint32_t>(part)) + 32 * first;
#pragma unroll
        for (int i = 0; i < kPiece; ++i) parts[part][i] = __ldcg(from + 32 * i);
      }
#pragma unroll
      for (int part = 0; part < kCount; ++part) {
#pragma unroll
        for (int i = 0; i < kPiece; ++i) {
          float* const v = value + 4 * (first + i);
          v[0] += parts[part][i].x;
          v[1] += parts[part][i].y;
          v[2] += parts[part][i].z;
          v[3] += parts[part][i].w;
        }
      }
    }
  }

  // All warps of both warpgroups.
  static __device__ __forceinline__ void SyncConsumers() {
    asm volatile("bar.sync 1, %0;" ::"n"(32 * kBf16Warps) : "memory");
  }

  // value = silu(value + bias) * (up + bias), rows `row` and 8 behind.
  __device__ __forceinline__ void MultiplyByUp(const Bf16Arguments& a, int64_t row,
                                               const float4* up) {
    float gate_bias[2] = {0, 0};
    float up_bias[2] = {0, 0};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row + 8 * r >= a.product[0].n) continue;
      if (a.product[0].bias != nullptr) gate_bias[r] = a.product[0].bias[row + 8 * r];
      if (a.product[1].bias != nullptr) up_bias[r] = a.product[1].bias[row + 8 * r];
    }
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const float4 u = up[32 * i];
      float* const v = value + 4 * i;
      v[0] = Silu(v[0] + gate_bias[0]) * (u.x + up_bias[0]);
      v[1] = Silu(v[1] + gate_bias[0]) * (u.y + up_bias[0]);
      v[2] = Silu(v[2] + gate_bias[1]) * (u.z + up_bias[1]);
      v[3] = Silu(v[3] + gate_bias[1]) * (u.w + up_bias[1]);
    }
  }

  // Lanes of two neighbouring rows have two tokens each, and change one against the other, so that
  // each writes two columns.
  __device__ __forceinline__ void StoreBf16(const Bf16Arguments& a, int64_t row) const {
    const int64_t n = a.product[0].n;
    const bool second = lane_ / 4 % 2 != 0;
    const int64_t column = second ? row - 1 : row;
    int token = 2 * (lane_ % 4) + (second ? 1 : 0);
    int64_t to = token * n + column;
#pragma unroll
    for (int i = 0; i < Shape::kTokens / 8; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float* const v = value + 4 * i + 2 * r;
        const float own = second ? v[1] : v[0];
        const float got = __shfl_xor_sync(~0u, second ? v[0] : v[1], 4);
        if (token < a.rows && column + 8 * r < n) {
          const float2 two = second ? make_float2(got, own) : make_float2(own, got);
          const __nv_bfloat162 high = __float22bfloat162_rn(two);
          *reinterpret_cast<__nv_bfloat162*>(a.gated + to + 8 * r) = high;
          if constexpr (Shape::kParts == 2) {
            *reinterpret_cast<__nv_bfloat162*>(a.gated_low + to + 8 * r) =
                __floats2bfloat162_rn(two.x - __low2float(high), two.y - __high2float(high));
          }
        }
      }
      token += 8;
      to += 8 * n;
    }
  }

  // use(i, row, place in out) for each value that has a place.
  template <typename Use>
  __device__ __forceinline__ void ForEach(const Bf16Arguments& a, const Bf16Item& item,
                                          const Use& use) const {
    const Bf16Product& product = a.product[item.product];
    const int first_token = 2 * (lane_ % 4);
    const int64_t row = item.first_row + 16 * warp_ + lane_ / 4;
    float* const out = product.out + first_token * product.out_stride + row;
#pragma unroll
    for (int i = 0; i < Shape::kSums; ++i) {
      const int token = 8 * (i / 4) + i % 2;
      const int down = 8 * (i / 2 % 2);
      if (first_token + token < a.rows && row + down < product.n) {
        use(i, row + down, out + token * product.out_stride + down);
      }
    }
  }

  __device__ __forceinline__ float4* Place(const Bf16Arguments& a, uint32_t block) const {
    return a.partials + (block * kBf16Warps + static_cast<uint32_t>(warp_)) * (32 * kQuads) +
           static_cast<uint32_t>(lane_);
  }
  __device__ __forceinline__ uint32_t* Flag(const Bf16Arguments& a, uint32_t block) const {
    return a.flags + block * kBf16Warps + static_cast<uint32_t>(warp_);
  }

  int warp_, lane_;
};

}  // namespace layercake::kernels::cuda
