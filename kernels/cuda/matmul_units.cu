#include "kernels/cuda/matmul_units.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/unit_reader.cuh"

namespace layercake::kernels::cuda {
namespace {

constexpr int kItemUnits = 16;  // two tiles of the unit layout
constexpr int kItemRows = kItemUnits * kUnitRows;
constexpr int kMaxTokens = 128;
constexpr int kSharedLimit = 227 * 1024;
// A row of activations of a stage: 256 halves, and 32 bytes so that the eight bytes that each of
// sixteen lanes reads at once lie in different banks.
constexpr int kTokenBytes = 2 * kUnitColumns + 32;

// Units of a warp: more warps hide more where they fit into the registers, fewer read each
// activation less often.
template <WeightType kType, int kTokens>
struct Shape {
  static constexpr int kWarpUnits = kTokens <= 64 ? 1 : 2;
  static constexpr int kWarps = kItemUnits / kWarpUnits;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kTokenTiles = kTokens / 8;
  static constexpr int kWeightBytes = kItemUnits * UnitBytes(kType);
  static constexpr int kStageBytes = kWeightBytes + kTokens * kTokenBytes;
  // (scale, minimum) of each row's groups of 16 or 32 columns; the odd pitch keeps eight rows in
  // eight banks.
  static constexpr int kGroups = RowHeader<kType>::kHasMultiplier ? 16 : 8;
  static constexpr int kScalePitch = kGroups + 1;
  static constexpr int kScaleBytes = kItemRows * kScalePitch * 4;
  static constexpr int kFit = (kSharedLimit - kScaleBytes) / kStageBytes;
  static constexpr int kStages = kFit < 4 ? kFit : 4;
  static constexpr size_t kSharedBytes = size_t{kStages} * kStageBytes + kScaleBytes;
  static_assert(kStages >= 2);
};

struct Arguments {
  UnitProducts products;
  OperandView x;
  int rows;
  int token_tiles;  // of the launch
  int blocks;       // column blocks of 256
  int steps;        // of all items: blocks each
  float* partials;  // two of kMaxTokens x kItemRows per block of the grid
};

// The steps [StepBegin(i), StepBegin(i + 1)) belong to block i.
__device__ int StepBegin(const Arguments& a, int block, int grid) {
  return static_cast<int>(int64_t{a.steps} * block / grid);
}

struct Item {
  int product;
  int row_tile;  // of kItemRows
  int token_first;
};
__device__ Item ItemAt(const Arguments& a, int index, int tokens) {
  // Items that share weights stand side by side, to find them in L2.
  Item item = {0, index / a.token_tiles, index % a.token_tiles * tokens};
  while (item.product + 1 < a.products.count) {
    const int tiles =
        static_cast<int>((a.products.product[item.product].n + kItemRows - 1) / kItemRows);
    if (item.row_tile < tiles) break;
    item.row_tile -= tiles;
    ++item.product;
  }
  return item;
}

// A place in the steps: a column block of an item.
class Cursor {
 public:
  __device__ Cursor(const Arguments& a, int step, int tokens)
      : a_(&a), tokens_(tokens), index_(step / a.blocks), block_(step % a.blocks) {
    item_ = ItemAt(a, index_, tokens);
  }
  __device__ void Next() {
    if (++block_ < a_->blocks) return;
    block_ = 0;
    item_ = ItemAt(*a_, ++index_, tokens_);
  }
  __device__ const Item& item() const { return item_; }
  __device__ int block() const { return block_; }
  __device__ bool AtLast() const { return block_ + 1 == a_->blocks; }

 private:
  const Arguments* a_;
  int tokens_, index_, block_;
  Item item_;
};

// out = sum / scales (+ bias) (+ out).
__device__ __forceinline__ void StoreResult(const Arguments& a, const UnitProduct& product,
                                            int64_t row, int token, float sum) {
  if (row >= product.n || token >= a.rows) return;
  float value = sum * (a.x.half_scale[token] * (1 / kUnitWeightScale));
  if (product.bias != nullptr) value += product.bias[row];
  float* const out = product.out + token * product.out_stride + row;
  *out = product.accumulate ? *out + value : value;
}

// Copies the units of one column block of an item. Units that do not exist stay as they are: their
// rows are never stored.
template <WeightType kType, int kThreads>
__device__ void CopyUnits(const Arguments& a, const Item& item, int block, std::byte* stage) {
  const UnitProduct& product = a.products.product[item.product];
  const int64_t first = int64_t{kItemUnits} * item.row_tile;
  const int64_t left = UnitRowCount(product.n) - first;
  constexpr int kPieces = kTileUnits * UnitBytes(kType) / 16;  // of a whole tile's block
#pragma unroll
  for (int tile = 0; tile < kItemUnits / kTileUnits; ++tile) {
    const int64_t units = left - tile * kTileUnits;
    if (units <= 0) break;
    const int pieces =
        units >= kTileUnits ? kPieces : static_cast<int>(units) * UnitBytes(kType) / 16;
    const std::byte* from =
        product.units +
        UnitIndex(product.n, a.products.k, first + tile * kTileUnits, block) * UnitBytes(kType);
    std::byte* to = stage + tile * kTileUnits * UnitBytes(kType);
    for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kThreads) {
      CopyAsync16(to + 16 * i, from + 16 * i, true);
    }
  }
}

// Copies 256 columns of the item's rows of activations; zeros beyond k, the last row again beyond
// the rows.
template <int kTokens, int kWarps>
__device__ void CopyTokens(const Arguments& a, const Item& item, int block, std::byte* to) {
  const int piece = static_cast<int>(threadIdx.x) % 32;
  const int64_t column = int64_t{kUnitColumns} * block + 8 * piece;
  const bool valid = column < a.products.k;
#pragma unroll
  for (int i = 0; i < kTokens / kWarps; ++i) {
    const int token = static_cast<int>(threadIdx.x) / 32 + kWarps * i;
    const int row = min(item.token_first + token, a.rows - 1);
    CopyAsync16(to + token * kTokenBytes + 16 * piece,
                a.x.half + row * a.products.k + (valid ? column : 0), valid);
  }
}

// The scales of the warp's rows: a lane makes those of a row, or of half a row where the warp has
// sixteen.
template <WeightType kType, typename S>
__device__ void PrepareScales(const std::byte* units, int lane, __half2* scales) {
  constexpr int kRows = kUnitRows * S::kWarpUnits;
  constexpr int kLaneGroups = S::kGroups * kRows / 32;
  constexpr int kHalves = S::kGroups / 8;
  const int row = lane % kRows;
  const auto* unit = reinterpret_cast<const uint8_t*>(units) + row / kUnitRows * UnitBytes(kType);
  RowHeader<kType> header(unit, row % kUnitRows);
  if constexpr (kRows < 32) header.SelectHalf(lane >= kRows);
  __half2* const to = scales + row * S::kScalePitch + lane / kRows * kLaneGroups;
#pragma unroll
  for (int group = 0; group < kLaneGroups; ++group) {
    const GroupScale s = header.Group(group / kHalves, group % kHalves);
    to[group] = __floats2half2_rn(s.scale * static_cast<float>(s.multiplier) * kUnitWeightScale,
                                  s.minimum * kUnitWeightScale);
  }
}

// Four weights of a row as two pairs of halves.
template <WeightType kType>
__device__ __forceinline__ void HalfWeights(uint32_t codes, __half2 scale, uint32_t* first,
                                            uint32_t* second) {
  // Byte c behind 0x64 is the half 1024 + c; the difference to 1024 + bias is exact.
  const __half2 zero = __half2half2(__int2half_rn(1024 + CodeBias<kType>()));
  const __half2 factor = __low2half2(scale);
  const __half2 addend = __high2half2(scale);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t bits = SelectBytes(codes, 0x64646464u, i == 0 ? 0x4140u : 0x4342u);
    const __half2 integers = __hsub2(*reinterpret_cast<const __half2*>(&bits), zero);
    __half2 weights;
    if constexpr (RowHeader<kType>::kHasMinimum) {
      weights = __hfma2(integers, factor, addend);
    } else {
      weights = __hmul2(integers, factor);
    }
    *(i == 0 ? first : second) = *reinterpret_cast<const uint32_t*>(&weights);
  }
}

// The four words of each plane that a lane needs for groups jj and jj + 4 of a unit.
template <WeightType kType>
struct LaneWords {
  uint4 main[UnitFormatOf(kType).main == MainPlane::kByte ? 2 : 1];
  uint4 pair, bit;

  __device__ __forceinline__ void Load(const std::byte* unit, int jj, int lane) {
    const auto load = [&](int plane, int step) {
      return *reinterpret_cast<const uint4*>(unit + plane + 512 * step + 16 * lane);
    };
    constexpr UnitFormat format = UnitFormatOf(kType);
    main[0] = load(0, jj);
    if constexpr (format.main == MainPlane::kByte) main[1] = load(0, jj + 4);
    if constexpr (format.pair >= 0) pair = load(format.pair, jj / 2);
    if constexpr (format.bit >= 0) bit = load(format.bit, 0);
  }
  static __device__ __forceinline__ uint32_t Word(const uint4& words, int i) {
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
  }
  __device__ __forceinline__ PlaneWords Words(int upper, int i) const {
    constexpr UnitFormat format = UnitFormatOf(kType);
    PlaneWords words = {};
    words.main = Word(main[format.main == MainPlane::kByte ? upper : 0], i);
    if constexpr (format.pair >= 0) words.pair = Word(pair, i);
    if constexpr (format.bit >= 0) words.bit = Word(bit, i);
    return words;
  }
};

// acc += the warp's units of one column block times the tokens. Of sixteen columns, lane t's four
// stand for columns 2t, 2t + 1, 2t + 8 and 2t + 9 of the instruction, on both sides.
template <WeightType kType, typename S>
__device__ void MultiplyBlock(const std::byte* units, const std::byte* tokens,
                              const __half2* scales, int lane,
                              float (&acc)[S::kWarpUnits][S::kTokenTiles][4]) {
  constexpr int kWarpUnits = S::kWarpUnits;
  constexpr int kTokenTiles = S::kTokenTiles;
  const int g = lane / 4;
  const std::byte* const token = tokens + g * kTokenBytes + 8 * (lane % 4);
#pragma unroll
  for (int jj = 0; jj < 4; ++jj) {
    LaneWords<kType> words[kWarpUnits];
#pragma unroll
    for (int unit = 0; unit < kWarpUnits; ++unit) {
      words[unit].Load(units + unit * UnitBytes(kType), jj, lane);
    }
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int j = jj + 4 * upper;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t a[kWarpUnits][4];
#pragma unroll
        for (int unit = 0; unit < kWarpUnits; ++unit) {
#pragma unroll
          for (int lower = 0; lower < 2; ++lower) {
            const int row = kUnitRows * unit + g + 8 * lower;
            const int group = S::kGroups == 8 ? j : 2 * j + half;
            const uint32_t codes =
                PackedCodes<kType>(words[unit].Words(upper, 2 * half + lower), j);
            HalfWeights<kType>(codes, scales[row * S::kScalePitch + group], &a[unit][lower],
                               &a[unit][2 + lower]);
          }
        }
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
          const uint2 b =
              *reinterpret_cast<const uint2*>(token + 8 * n * kTokenBytes + 64 * j + 32 * half);
#pragma unroll
          for (int unit = 0; unit < kWarpUnits; ++unit) {
            Mma16816(F16Mma{}, acc[unit][n], a[unit][0], a[unit][1], a[unit][2], a[unit][3], b.x,
                     b.y);
          }
        }
      }
    }
  }
}

// Writes an item's results, or what this block has of them as (token, row) of `partial`; acc = 0.
template <typename S>
__device__ void StoreItem(const Arguments& a, const Item& item, int warp, int lane,
                          float (&acc)[S::kWarpUnits][S::kTokenTiles][4], float* partial) {
  const UnitProduct& product = a.products.product[item.product];
#pragma unroll
  for (int unit = 0; unit < S::kWarpUnits; ++unit) {
#pragma unroll
    for (int n = 0; n < S::kTokenTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = kUnitRows * (S::kWarpUnits * warp + unit) + lane / 4 + 8 * (i / 2);
        const int token = 8 * n + 2 * (lane % 4) + i % 2;
        const float sum = acc[unit][n][i];
        if (partial != nullptr) {
          partial[token * kItemRows + row] = sum;
        } else {
          StoreResult(a, product, int64_t{kItemRows} * item.row_tile + row,
                      item.token_first + token, sum);
        }
        acc[unit][n][i] = 0;
      }
    }
  }
}

__device__ float* PartialOf(const Arguments& a, int block, bool begins_item) {
  return a.partials + int64_t{2 * block + (begins_item ? 1 : 0)} * (kMaxTokens * kItemRows);
}

template <WeightType kType, int kTokens>
__global__ void __launch_bounds__(Shape<kType, kTokens>::kThreads, 1)
    UnitKernel(const __grid_constant__ Arguments a) {
  using S = Shape<kType, kTokens>;
  extern __shared__ __align__(128) std::byte shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  auto* const scales = reinterpret_cast<__half2*>(shared + S::kStages * S::kStageBytes) +
                       warp * kUnitRows * S::kWarpUnits * S::kScalePitch;
  const int block = static_cast<int>(blockIdx.x);
  const int begin = StepBegin(a, block, static_cast<int>(gridDim.x));
  const int end = StepBegin(a, block + 1, static_cast<int>(gridDim.x));
  const auto copy_units = [&](const Cursor& at, int stage) {
    CopyUnits<kType, S::kThreads>(a, at.item(), at.block(), shared + stage * S::kStageBytes);
  };
  const auto copy_tokens = [&](const Cursor& at, int stage) {
    CopyTokens<kTokens, S::kWarps>(a, at.item(), at.block(),
                                   shared + stage * S::kStageBytes + S::kWeightBytes);
  };
  GridLaunchDependents();
  const Cursor first(a, begin, kTokens);
  Cursor copied = first;
  for (int i = 0; i < S::kStages - 1 && begin + i < end; ++i) {
    copy_units(copied, i);
    copied.Next();
  }
  GridDependencyWait();
  copied = first;
  for (int i = 0; i < S::kStages - 1; ++i) {
    if (begin + i < end) {
      copy_tokens(copied, i);
      copied.Next();
    }
    CopyAsyncCommit();
  }

  float acc[S::kWarpUnits][S::kTokenTiles][4] = {};
  Cursor at = first;
  bool begins_item = at.block() == 0;  // what acc holds
  int stage = 0;
  for (int step = begin; step < end; ++step) {
    CopyAsyncWait<S::kStages - 2>();
    // Everyone's copies have landed, and everyone is done with the stage that is filled next.
    __syncthreads();
    if (step + S::kStages - 1 < end) {
      const int free = stage == 0 ? S::kStages - 1 : stage - 1;
      copy_units(copied, free);
      copy_tokens(copied, free);
      copied.Next();
    }
    CopyAsyncCommit();
    const std::byte* const from = shared + stage * S::kStageBytes;
    const std::byte* const units = from + S::kWarpUnits * warp * UnitBytes(kType);
    PrepareScales<kType, S>(units, lane, scales);
    __syncwarp();
    MultiplyBlock<kType, S>(units, from + S::kWeightBytes, scales, lane, acc);
    __syncwarp();
    if (at.AtLast() || step + 1 == end) {
      float* const partial =
          begins_item && at.AtLast() ? nullptr : PartialOf(a, block, begins_item);
      StoreItem<S>(a, at.item(), warp, lane, acc, partial);
      begins_item = true;
    }
    at.Next();
    stage = stage + 1 == S::kStages ? 0 : stage + 1;
  }
}

// Adds up the items that were cut: block x looks at the boundary before the steps of block x + 1 of
// the grid before; block y takes eight rows of activations.
__global__ void __launch_bounds__(kItemRows)
    AddPartialsKernel(const __grid_constant__ Arguments a, int grid, int tokens) {
  GridLaunchDependents();
  GridDependencyWait();
  const int second = static_cast<int>(blockIdx.x) + 1;
  const int boundary = StepBegin(a, second, grid);
  const int index = boundary / a.blocks;
  const int item_begin = index * a.blocks;
  // Not cut here, or cut by an earlier boundary as well, whose block does it.
  if (boundary == item_begin || StepBegin(a, second - 1, grid) > item_begin) return;
  const Item item = ItemAt(a, index, tokens);
  const UnitProduct& product = a.products.product[item.product];
  const int row = static_cast<int>(threadIdx.x);
  const int token_first = 8 * static_cast<int>(blockIdx.y);
  float sums[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    sums[i] = PartialOf(a, second - 1, true)[(token_first + i) * kItemRows + row];
  }
  for (int block = second; block < grid && StepBegin(a, block, grid) < item_begin + a.blocks;
       ++block) {
    const float* const partial = PartialOf(a, block, false);
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] += partial[(token_first + i) * kItemRows + row];
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    StoreResult(a, product, int64_t{kItemRows} * item.row_tile + row,
                item.token_first + token_first + i, sums[i]);
  }
}

template <WeightType kType, int kTokens>
cudaError_t LaunchUnits(const Context& context, Arguments a) {
  int row_tiles = 0;
  for (int i = 0; i < a.products.count; ++i) {
    row_tiles += static_cast<int>((a.products.product[i].n + kItemRows - 1) / kItemRows);
  }
  a.token_tiles = (a.rows + kTokens - 1) / kTokens;
  a.blocks = static_cast<int>(ColumnBlocks(a.products.k));
  const int64_t steps = int64_t{row_tiles} * a.token_tiles * a.blocks;
  if (steps >= int64_t{1} << 31) return cudaErrorInvalidValue;
  a.steps = static_cast<int>(steps);
  const int grid = steps < context.sm_count ? a.steps : context.sm_count;
  const cudaError_t error =
      Launch(context, dim3(static_cast<unsigned>(grid)), dim3(Shape<kType, kTokens>::kThreads),
             Shape<kType, kTokens>::kSharedBytes, UnitKernel<kType, kTokens>, a);
  if (error != cudaSuccess || grid == 1) return error;
  return Launch(context, dim3(static_cast<unsigned>(grid - 1), kTokens / 8), dim3(kItemRows), 0,
                AddPartialsKernel, a, grid, kTokens);
}

// 128 rows at once where shared memory holds two stages of them.
template <WeightType kType>
constexpr bool TakesMaxTokens() {
  return 2 * (kItemUnits * UnitBytes(kType) + kMaxTokens * kTokenBytes) +
             Shape<kType, 32>::kScaleBytes <=
         kSharedLimit;
}

template <WeightType kType>
cudaError_t LaunchType(const Context& context, const Arguments& a) {
  if (a.rows <= 32) return LaunchUnits<kType, 32>(context, a);
  if constexpr (TakesMaxTokens<kType>()) {
    if (a.rows > 64) return LaunchUnits<kType, kMaxTokens>(context, a);
  }
  return LaunchUnits<kType, 64>(context, a);
}

template <WeightType kType>
cudaError_t PrepareType() {
  cudaError_t error = AllowSharedBytes(UnitKernel<kType, 32>, Shape<kType, 32>::kSharedBytes);
  if (error != cudaSuccess) return error;
  error = AllowSharedBytes(UnitKernel<kType, 64>, Shape<kType, 64>::kSharedBytes);
  if (error != cudaSuccess) return error;
  if constexpr (TakesMaxTokens<kType>()) {
    error = AllowSharedBytes(UnitKernel<kType, kMaxTokens>, Shape<kType, kMaxTokens>::kSharedBytes);
  }
  return error;
}

}  // namespace

size_t UnitPartialBytes(int sm_count) {
  return sizeof(float) * 2 * static_cast<size_t>(sm_count) * kMaxTokens * kItemRows;
}

cudaError_t PrepareUnitMatmul(const Context& context, bool* available) {
  *available = context.max_shared_bytes >= kSharedLimit;
  if (!*available) return cudaSuccess;
  cudaError_t error = PrepareType<WeightType::kQ4_K>();
  if (error == cudaSuccess) error = PrepareType<WeightType::kQ5_K>();
  if (error == cudaSuccess) error = PrepareType<WeightType::kQ6_K>();
  if (error == cudaSuccess) error = PrepareType<WeightType::kQ8_0>();
  return error;
}

cudaError_t MultiplyUnits(const Context& context, WeightType type, const UnitProducts& products,
                          const OperandView& x, int rows, float* partials) {
  if (rows < 1 || products.count < 1 || products.count > kUnitMaxProducts || products.k < 1 ||
      products.k % 32 != 0) {
    return cudaErrorInvalidValue;
  }
  Arguments a = {};
  a.products = products;
  a.x = x;
  a.rows = rows;
  a.partials = partials;
  switch (type) {
    case WeightType::kQ4_K:
      return LaunchType<WeightType::kQ4_K>(context, a);
    case WeightType::kQ5_K:
      return LaunchType<WeightType::kQ5_K>(context, a);
    case WeightType::kQ6_K:
      return LaunchType<WeightType::kQ6_K>(context, a);
    case WeightType::kQ8_0:
      return LaunchType<WeightType::kQ8_0>(context, a);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace layercake::kernels::cuda
