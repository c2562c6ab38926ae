#include "kernels/cuda/operand_block.cuh"
#include "kernels/cuda/silu.cuh"

namespace layercake::kernels::cuda {
namespace {

constexpr int kPieceWarps = 4;

using Kind = OperandSource::Kind;

// The values of a block before the norm's factor.
template <Kind kKind, typename Place>
__device__ __forceinline__ void RawValues(const OperandArguments& arguments, int64_t row,
                                          int64_t block, const Place& place, float (&v)[8]) {
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
  const PlaceOf<kForms> place(lane);
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

__device__ __forceinline__ float AddSquares(const float (&v)[8], float sum) {
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = fmaf(v[i], v[i], sum);
  return sum;
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
  __shared__ float norm_sums[kWarps];
  __shared__ uint32_t largest[kWarps];
  GridLaunchDependents();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first = threadIdx.x / 32;
  const int64_t blocks = ColumnBlocks(arguments.k);
  const int64_t row = blockIdx.x;
  const PlaceOf<kForms> place(lane);
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
    const auto add = [&](int64_t, const float(&v)[8]) { sum = AddSquares(v, sum); };
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
  if constexpr (kKind == Kind::kNorm) {
    if ((FormsOf<kForms>(arguments) & kTileForm) != 0) {
      float squares = 0;
#pragma unroll
      for (int i = 0; i < kKept; ++i) squares = AddSquares(kept[i], squares);
      for_the_rest([&](int64_t block, float(&v)[8]) {
        finish(block, v);
        squares = AddSquares(v, squares);
      });
      squares = BlockSum<kWarps>(squares, norm_sums);
      if (threadIdx.x == 0) arguments.out.row_norm[row] = sqrtf(squares);
    }
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

// Many rows, in the one form that they read.
template <Kind kKind, OperandForms kForms>
cudaError_t LaunchMany(const Context& context, const OperandArguments& arguments, int rows) {
  constexpr bool kScaled = (kForms & (kFloat16Form | kTileForm)) != 0;
  if constexpr (kKind == Kind::kNorm || kScaled) {
    return ColumnBlocks(arguments.k) <= SmallRow::kWarps * SmallRow::kKept
               ? LaunchRows<kKind, SmallRow, kForms>(context, arguments, rows)
               : LaunchRows<kKind, WideLongRow, kForms>(context, arguments, rows);
  } else {
    return LaunchPieces<kKind, kForms>(context, arguments, rows);
  }
}

// Few rows.
template <Kind kKind, OperandForms kForms>
cudaError_t LaunchFew(const Context& context, const OperandArguments& arguments, int rows) {
  if constexpr (kKind != Kind::kNorm) {
    const bool scaled = (arguments.forms & (kFloat16Form | kTileForm)) != 0;
    if (kForms != kAnyForms || !scaled) {
      return LaunchPieces<kKind, kForms>(context, arguments, rows);
    }
  }
  if constexpr (kKind == Kind::kNorm || kForms == kAnyForms) {
    return ColumnBlocks(arguments.k) <= WideRow::kWarps
               ? LaunchRows<kKind, WideRow, kForms>(context, arguments, rows)
               : LaunchRows<kKind, WideLongRow, kForms>(context, arguments, rows);
  }
}

template <Kind kKind>
cudaError_t LaunchKind(const Context& context, const OperandArguments& arguments, int rows) {
  switch (arguments.forms) {
    case kTileForm:
      return LaunchMany<kKind, kTileForm>(context, arguments, rows);
    case kBfloat16HighForm:
      return LaunchMany<kKind, kBfloat16HighForm>(context, arguments, rows);
    case kFloat16Form:
      return LaunchMany<kKind, kFloat16Form>(context, arguments, rows);
    case kFixedForm:
      return LaunchFew<kKind, kFixedForm>(context, arguments, rows);
    case kBfloat16Form:
      return LaunchFew<kKind, kBfloat16Form>(context, arguments, rows);
    default:
      return LaunchFew<kKind, kAnyForms>(context, arguments, rows);
  }
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
