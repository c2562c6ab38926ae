#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/fixed_point.h"
#include "kernels/cuda/operand_kernel.h"

namespace layercake::kernels::cuda {
namespace {

constexpr int kPieceWarps = 4;

using Kind = OperandSource::Kind;

struct OperandArguments {
  OperandSource source;
  OperandView out;
  int64_t k;
  OperandForms forms;
  bool vectors;  // 16-byte reads are aligned and within k
};

// A warp makes one column block of 256. A lane owns eight of its columns, in two runs of four:
// lane = 8 jj + 4 upper + t has columns 32 j + 4 t and 32 j + 16 + 4 t, j = jj + 4 upper.
struct LanePlace {
  int j;
  int t;
  __device__ explicit LanePlace(int lane) : j(lane / 8 + (lane & 4)), t(lane & 3) {}
  __device__ int64_t Column(int64_t block, int i) const {
    return block * kUnitColumns + 32 * j + 16 * (i / 4) + 4 * t + i % 4;
  }
};

__device__ __forceinline__ void Load8(const float* row, int64_t k, int64_t block,
                                      const LanePlace& place, bool vectors, float (&v)[8]) {
  if (vectors) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t column = place.Column(block, 4 * half);
      float4 four = make_float4(0, 0, 0, 0);
      if (column < k) four = *reinterpret_cast<const float4*>(row + column);
      v[4 * half] = four.x;
      v[4 * half + 1] = four.y;
      v[4 * half + 2] = four.z;
      v[4 * half + 3] = four.w;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int64_t column = place.Column(block, i);
    v[i] = column < k ? row[column] : 0.0f;
  }
}

// By the approximate exponential and quotient, which are off by 2 + |z| ulp: a thousandth of what
// the operand's rounding costs, in a quarter of the instructions.
__device__ __forceinline__ float Silu(float z) { return __fdividef(z, 1.0f + __expf(-z)); }

// The values of a block before the norm's factor.
template <Kind kKind>
__device__ __forceinline__ void RawValues(const OperandArguments& arguments, int64_t row,
                                          int64_t block, const LanePlace& place, float (&v)[8]) {
  const int64_t at = row * arguments.source.stride;
  Load8(arguments.source.x + at, arguments.k, block, place, arguments.vectors, v);
  if constexpr (kKind == Kind::kSwiglu) {
    float up[8];
    Load8(arguments.source.other + at, arguments.k, block, place, arguments.vectors, up);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = Silu(v[i]) * up[i];
  }
}

__device__ __forceinline__ void ApplyNorm(const float (&weight)[8], float factor, float (&v)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = v[i] * factor * weight[i];
}

__device__ __forceinline__ uint32_t LargestBits(const float (&v)[8]) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = max(largest, __float_as_uint(v[i]) & 0x7fffffffu);
  return largest;
}

__device__ __forceinline__ uint32_t PackBytes(const int* x) {
  return (static_cast<uint32_t>(x[0]) & 255u) | (static_cast<uint32_t>(x[1]) & 255u) << 8 |
         (static_cast<uint32_t>(x[2]) & 255u) << 16 | static_cast<uint32_t>(x[3]) << 24;
}

// Two sums / 64 as pairs of halves: high parts, low parts (exact: a sum has at most 21 bits).
struct SumPair {
  uint32_t high;
  uint32_t low;
};
__device__ __forceinline__ SumPair SplitSums(int first, int second) {
  const float a = static_cast<float>(first) * 0.015625f;
  const float b = static_cast<float>(second) * 0.015625f;
  const __half2 high = __floats2half2_rn(a, b);
  const __half2 low = __floats2half2_rn(a - __low2float(high), b - __high2float(high));
  return {*reinterpret_cast<const uint32_t*>(&high), *reinterpret_cast<const uint32_t*>(&low)};
}

__device__ __forceinline__ void WriteFixed(const float (&v)[8], int lane, const LanePlace& place,
                                           FixedBlock* out) {
  const uint32_t largest = __reduce_max_sync(~0u, LargestBits(v));
  const FixedScale scale = FixedScaleOf(largest, __uint_as_float(largest));
  int high[8];
  int low[8];
  int sum[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    // Where the inverse is 0 a value may be an infinity, and 0 times it a NaN.
    const int x = scale.inverse == 0.0f ? 0 : FixedValue(v[i], scale.inverse);
    high[i] = FixedHigh(x);
    low[i] = FixedLow(x);
    sum[i / 4] += x;
  }
  // The lane 4 away has the other group of the pair: this one writes one part of both groups.
  const bool writes_low = (lane & 4) != 0;
  const uint32_t own[2][2] = {{PackBytes(high), PackBytes(high + 4)},
                              {PackBytes(low), PackBytes(low + 4)}};
  uint32_t other[2];
  other[0] = __shfl_xor_sync(~0u, writes_low ? own[0][0] : own[1][0], 4);
  other[1] = __shfl_xor_sync(~0u, writes_low ? own[0][1] : own[1][1], 4);
  const uint4 line = writes_low ? make_uint4(other[0], other[1], own[1][0], own[1][1])
                                : make_uint4(own[0][0], own[0][1], other[0], other[1]);
  *reinterpret_cast<uint4*>(out->quants + lane * 16) = line;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] += __shfl_xor_sync(~0u, sum[half], 1);
    sum[half] += __shfl_xor_sync(~0u, sum[half], 2);
  }
  const int j = place.j;
  if (place.t == 0) {
    const SumPair both = SplitSums(sum[0] + sum[1], 0);
    uint16_t* to = out->sums32 + (j / 2) * 4 + (j & 1);
    to[0] = static_cast<uint16_t>(both.high);
    to[2] = static_cast<uint16_t>(both.low);
  } else if (place.t == 1) {
    const SumPair halves = SplitSums(sum[0], sum[1]);
    auto* to = reinterpret_cast<uint32_t*>(out->sums16 + (j & 3) * 8 + 2 * (j / 4));
    to[0] = halves.high;
    to[2] = halves.low;
  }
  if (lane == 0) out->scale = scale.scale;
}

__device__ __forceinline__ void WriteFloats(const OperandArguments& arguments, int64_t row,
                                            int64_t block, const LanePlace& place,
                                            const float (&v)[8], float to_half) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int64_t column = place.Column(block, i);
    if (column >= arguments.k) continue;
    const int64_t at = row * arguments.k + column;
    if ((arguments.forms & kFloat32Form) != 0) arguments.out.values[at] = v[i];
    if ((arguments.forms & kFloat16Form) != 0) {
      arguments.out.half[at] = __half_as_ushort(__float2half_rn(v[i] * to_half));
    }
    if ((arguments.forms & kBfloat16Form) != 0) {
      const __nv_bfloat16 high = __float2bfloat16_rn(v[i]);
      arguments.out.bf16_high[at] = __bfloat16_as_ushort(high);
      arguments.out.bf16_low[at] =
          __bfloat16_as_ushort(__float2bfloat16_rn(v[i] - __bfloat162float(high)));
    }
  }
}

// Four bytes at a time: of each half of 16 columns, columns 4t and 4t + 2, then 4t + 1 and 4t + 3.
__device__ __forceinline__ void WriteTiles(const OperandView& out, int64_t row, int64_t block,
                                           const LanePlace& place, const float (&v)[8],
                                           float to_half) {
  uint16_t* const group =
      out.tiles + TilePieceIndex(out.tile_groups, block, place.j % 4, row / kTileTokens);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int chunk = 4 * (place.j / 4) + 2 * half;
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const __half2 pair =
          __floats2half2_rn(v[4 * half + odd] * to_half, v[4 * half + odd + 2] * to_half);
      *reinterpret_cast<__half2*>(group + (chunk + odd) * 64 + row % kTileTokens * 8 +
                                  2 * place.t) = pair;
    }
  }
}

// The forms that are made: kForms, known when compiled, or those of the arguments where that is
// kAnyForms. Code for one form alone is a third as long.
constexpr OperandForms kAnyForms = 0;
template <OperandForms kForms>
__device__ __forceinline__ OperandForms FormsOf(const OperandArguments& arguments) {
  return kForms == kAnyForms ? arguments.forms : kForms;
}

template <OperandForms kForms>
__device__ __forceinline__ void WriteBlock(const OperandArguments& arguments, int64_t row,
                                           int64_t block, int lane, const LanePlace& place,
                                           const float (&v)[8], float to_half) {
  const OperandForms forms = FormsOf<kForms>(arguments);
  if ((forms & kFixedForm) != 0) {
    WriteFixed(v, lane, place, arguments.out.fixed + FixedBlockIndex(arguments.k, row, block));
  }
  if ((forms & kTileForm) != 0) {
    WriteTiles(arguments.out, row, block, place, v, to_half);
  }
  if ((forms & ~(kFixedForm | kTileForm)) != 0) {
    WriteFloats(arguments, row, block, place, v, to_half);
  }
}

// Blocks of a row that need to know nothing of each other: no norm, no common scale of halves.
// grid: (rows, pieces of kPieceWarps column blocks).
template <Kind kKind, OperandForms kForms>
__global__ void __launch_bounds__(kPieceWarps * 32)
    PieceOperandKernel(const __grid_constant__ OperandArguments arguments) {
  GridLaunchDependents();
  GridDependencyWait();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t block = int64_t{blockIdx.y} * kPieceWarps + threadIdx.x / 32;
  if (block >= ColumnBlocks(arguments.k)) return;
  const LanePlace place(lane);
  float v[8];
  RawValues<kKind>(arguments, blockIdx.x, block, place, v);
  WriteBlock<kForms>(arguments, blockIdx.x, block, lane, place, v, 0.0f);
}

// A row's block: kWarps warps, each of which keeps kKept column blocks of the row in registers.
template <int kWarpCount, int kKeptCount>
struct RowShape {
  static constexpr int kWarps = kWarpCount;
  static constexpr int kKept = kKeptCount;
};
// Few rows: a warp for each column block, or as many warps as there are.
using WideRow = RowShape<32, 1>;
using WideLongRow = RowShape<32, 4>;
// Many rows, which fill the device: blocks so small that a multiprocessor takes several.
using SmallRow = RowShape<8, 4>;

// The sum of every thread's value, in one fixed order. `shared`: a word for each warp.
template <int kWarps>
__device__ float BlockSum(float value, float* shared) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = threadIdx.x % 32 < kWarps ? shared[threadIdx.x % 32] : 0.0f;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}
template <int kWarps>
__device__ uint32_t BlockMax(uint32_t value, uint32_t* shared) {
  value = __reduce_max_sync(~0u, value);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  return __reduce_max_sync(~0u, threadIdx.x % 32 < kWarps ? shared[threadIdx.x % 32] : 0u);
}

// Powers of two for the row's halves, and back. 1, which costs the products of many rows nothing,
// for a largest magnitude in [2^-4, 2^15); others are brought into [512, 1024).
struct HalfScale {
  float to_half;
  float from_half;
};
__device__ HalfScale HalfScaleOf(uint32_t largest_bits) {
  if (largest_bits >= kInfinityBits) return {0.0f, NAN};
  // largest = m 2^e, m in [0.5, 1); what is smaller than 2^-100 may lose bits.
  const int e = max(static_cast<int>(largest_bits >> 23) - 126, -100);
  if (e > -4 && e <= 15) return {1.0f, 1.0f};
  return {__uint_as_float(static_cast<uint32_t>(10 - e + 127) << 23),
          __uint_as_float(static_cast<uint32_t>(e - 10 + 127) << 23)};
}

// grid: rows. Warp w of a row's block makes column blocks w, w + kWarps and so on; the first kKept
// of these are read once.
template <Kind kKind, typename Shape, OperandForms kForms>
__global__ void __launch_bounds__(32 * Shape::kWarps)
    RowOperandKernel(const __grid_constant__ OperandArguments arguments) {
  constexpr int kWarps = Shape::kWarps;
  constexpr int kKept = Shape::kKept;
  __shared__ float sums[kWarps];
  __shared__ uint32_t largest[kWarps];
  GridLaunchDependents();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first = threadIdx.x / 32;
  const int64_t blocks = ColumnBlocks(arguments.k);
  const int64_t row = blockIdx.x;
  const LanePlace place(lane);
  float weight[8];
  // Weights do not wait for the kernel before this one.
  if (kKind == Kind::kNorm) {
    Load8(arguments.source.other, arguments.k, first, place, arguments.vectors, weight);
  }
  GridDependencyWait();
  float kept[kKept][8] = {};
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int64_t block = first + i * kWarps;
    if (block < blocks) RawValues<kKind>(arguments, row, block, place, kept[i]);
  }
  // What is not kept is read again each time.
  const auto for_the_rest = [&](const auto& use) {
    for (int64_t block = first + kKept * kWarps; block < blocks; block += kWarps) {
      float v[8];
      RawValues<kKind>(arguments, row, block, place, v);
      use(block, v);
    }
  };
  float factor = 1.0f;
  if constexpr (kKind == Kind::kNorm) {
    float sum = 0;
    const auto add = [&](int64_t, const float(&v)[8]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum = fmaf(v[i], v[i], sum);
    };
#pragma unroll
    for (int i = 0; i < kKept; ++i) add(0, kept[i]);
    for_the_rest(add);
    sum = BlockSum<kWarps>(sum, sums);
    factor = 1.0f / sqrtf(sum / static_cast<float>(arguments.k) + arguments.source.eps);
  }
  const auto finish = [&](int64_t block, float(&v)[8]) {
    if constexpr (kKind == Kind::kNorm) {
      if (block != first) {
        Load8(arguments.source.other, arguments.k, block, place, arguments.vectors, weight);
      }
      ApplyNorm(weight, factor, v);
    }
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int64_t block = first + i * kWarps;
    if (block < blocks) finish(block, kept[i]);
  }
  HalfScale half = {0.0f, 0.0f};
  if ((FormsOf<kForms>(arguments) & (kFloat16Form | kTileForm)) != 0) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kKept; ++i) bits = max(bits, LargestBits(kept[i]));
    for_the_rest([&](int64_t block, float(&v)[8]) {
      finish(block, v);
      bits = max(bits, LargestBits(v));
    });
    half = HalfScaleOf(BlockMax<kWarps>(bits, largest));
    if (threadIdx.x == 0) arguments.out.half_scale[row] = half.from_half;
  }
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int64_t block = first + i * kWarps;
    if (block < blocks)
      WriteBlock<kForms>(arguments, row, block, lane, place, kept[i], half.to_half);
  }
  for_the_rest([&](int64_t block, float(&v)[8]) {
    finish(block, v);
    WriteBlock<kForms>(arguments, row, block, lane, place, v, half.to_half);
  });
}

template <Kind kKind, typename Shape, OperandForms kForms>
cudaError_t LaunchRows(const Context& context, const OperandArguments& arguments, int rows) {
  return Launch(context, dim3(static_cast<unsigned>(rows)), dim3(32 * Shape::kWarps), 0,
                RowOperandKernel<kKind, Shape, kForms>, arguments);
}

template <Kind kKind, OperandForms kForms>
cudaError_t LaunchPieces(const Context& context, const OperandArguments& arguments, int rows) {
  const auto pieces =
      static_cast<unsigned>((ColumnBlocks(arguments.k) + kPieceWarps - 1) / kPieceWarps);
  return Launch(context, dim3(static_cast<unsigned>(rows), pieces), dim3(kPieceWarps * 32), 0,
                PieceOperandKernel<kKind, kForms>, arguments);
}

template <Kind kKind>
cudaError_t LaunchKind(const Context& context, const OperandArguments& arguments, int rows) {
  const int64_t blocks = ColumnBlocks(arguments.k);
  if (arguments.forms == kTileForm) {
    return blocks <= SmallRow::kWarps * SmallRow::kKept
               ? LaunchRows<kKind, SmallRow, kTileForm>(context, arguments, rows)
               : LaunchRows<kKind, WideLongRow, kTileForm>(context, arguments, rows);
  }
  const bool whole_rows =
      kKind == Kind::kNorm || (arguments.forms & (kFloat16Form | kTileForm)) != 0;
  if (arguments.forms == kFixedForm) {
    if (!whole_rows) return LaunchPieces<kKind, kFixedForm>(context, arguments, rows);
    if (blocks <= WideRow::kWarps) {
      return LaunchRows<kKind, WideRow, kFixedForm>(context, arguments, rows);
    }
  }
  if (!whole_rows) return LaunchPieces<kKind, kAnyForms>(context, arguments, rows);
  return blocks <= WideRow::kWarps
             ? LaunchRows<kKind, WideRow, kAnyForms>(context, arguments, rows)
             : LaunchRows<kKind, WideLongRow, kAnyForms>(context, arguments, rows);
}

bool Aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

}  // namespace

cudaError_t LaunchOperand(const Context& context, const OperandSource& source, int rows, int64_t k,
                          OperandForms forms, const OperandView& operand) {
  if (rows < 1 || k < 1) return cudaErrorInvalidValue;
  OperandArguments arguments = {source, operand, k, forms, false};
  arguments.vectors =
      k % 4 == 0 && source.stride % 4 == 0 && Aligned(source.x) && Aligned(source.other);
  switch (source.kind) {
    case Kind::kPlain:
      return LaunchKind<Kind::kPlain>(context, arguments, rows);
    case Kind::kNorm:
      return LaunchKind<Kind::kNorm>(context, arguments, rows);
    case Kind::kSwiglu:
      return LaunchKind<Kind::kSwiglu>(context, arguments, rows);
  }
  return cudaErrorInvalidValue;
}

}  // namespace layercake::kernels::cuda
