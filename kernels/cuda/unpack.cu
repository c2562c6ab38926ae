#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/unit_reader.cuh"
#include "kernels/cuda/unpack.h"

namespace layercake::kernels::cuda {
namespace {

// Units to panel rows ---------------------------------------------------------------------------

constexpr int kUnpackWarps = 8;

template <bool kBf16>
__device__ uint32_t RoundTwo(float first, float second) {
  if constexpr (kBf16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(first, second);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

// One warp per unit. A lane holds rows lane / 4 and lane / 4 + 8; it writes 16 bytes at a time, and
// the four lanes of a row 64 bytes in a line.
template <WeightType kType>
__global__ void __launch_bounds__(32 * kUnpackWarps)
    UnpackKernel(const uint8_t* units, int64_t n, int k, int unit_row_begin, int unit_rows,
                 int64_t row_end, uint16_t* panel) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int blocks = static_cast<int>(ColumnBlocks(k));
  const int index =
      static_cast<int>(blockIdx.x) * kUnpackWarps + static_cast<int>(threadIdx.x) / 32;
  // kTileUnits unit rows at a time, column block after block: the order of memory where the panel
  // begins with a tile.
  const int tile = index / (kTileUnits * blocks);
  const int tile_units = min(kTileUnits, unit_rows - tile * kTileUnits);
  const int in_tile = index - tile * kTileUnits * blocks;
  GridLaunchDependents();
  if (tile_units <= 0 || in_tile >= tile_units * blocks) {
    GridDependencyWait();
    return;
  }
  const int block = in_tile / tile_units;
  const int local_unit_row = tile * kTileUnits + in_tile % tile_units;
  const uint8_t* unit =
      units + UnitIndex(n, k, unit_row_begin + local_unit_row, block) * UnitBytes(kType);
  const LanePlanes<kType> planes(unit, lane);
  const int row = lane / 4;
  const RowHeader<kType> headers[2] = {RowHeader<kType>(unit, row),
                                       RowHeader<kType>(unit, row + 8)};
  GridDependencyWait();
  const int64_t first_row = int64_t{kUnitRows} * (unit_row_begin + local_unit_row) + row;
#pragma unroll
  for (int lower = 0; lower < 2; ++lower) {
    const bool exists = first_row + 8 * lower < row_end;
    // Neighbours change halves of 32 columns, so that each has eight columns in a row.
    const bool odd = lane % 2 == 1;
    uint16_t* const out = panel + (int64_t{kUnitRows} * local_unit_row + row + 8 * lower) * k +
                          kUnitColumns * block + 4 * (lane % 4) + (odd ? 12 : 0);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (kUnitColumns * block + 32 * j >= k) break;
      uint2 packed[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const GroupScale group = headers[lower].Group(j, half);
        const uint32_t codes = PackedCodes<kType>(planes.Words(j, 2 * half + lower), j);
        constexpr bool kBf16 = UnpacksToBf16(kType);
        packed[half] = make_uint2(RoundTwo<kBf16>(WeightValue<kType>(group, codes, 0),
                                                  WeightValue<kType>(group, codes, 1)),
                                  RoundTwo<kBf16>(WeightValue<kType>(group, codes, 2),
                                                  WeightValue<kType>(group, codes, 3)));
      }
      const uint2 given = odd ? packed[0] : packed[1];
      const uint2 kept = odd ? packed[1] : packed[0];
      const uint2 got = make_uint2(__shfl_xor_sync(0xffffffffu, given.x, 1),
                                   __shfl_xor_sync(0xffffffffu, given.y, 1));
      if (!exists) continue;
      *reinterpret_cast<uint4*>(out + 32 * j) =
          odd ? make_uint4(got.x, got.y, kept.x, kept.y) : make_uint4(kept.x, kept.y, got.x, got.y);
    }
  }
}

// Rows of a table -------------------------------------------------------------------------------

constexpr int kGatherThreads = 256;

// blockIdx.x is the row of x, blockIdx.y a piece of it: four columns a thread.
template <WeightType kType>
__global__ void __launch_bounds__(kGatherThreads)
    GatherUnitsKernel(const uint8_t* units, int64_t n, int64_t k, const int32_t* tokens, float* x) {
  GridLaunchDependents();
  GridDependencyWait();
  const int64_t column = 4 * (int64_t{blockIdx.y} * kGatherThreads + static_cast<int>(threadIdx.x));
  if (column >= k) return;
  const int64_t row = tokens[blockIdx.x];
  constexpr UnitFormat kFormat = UnitFormatOf(kType);
  const uint8_t* unit =
      units + UnitIndex(n, k, row / kUnitRows, column / kUnitColumns) * UnitBytes(kType);
  const int j = static_cast<int>(column % kUnitColumns) / 32;
  const int half = static_cast<int>(column % 32) / 16;
  const int unit_row = static_cast<int>(row % kUnitRows);
  const int lane = 4 * (unit_row % 8) + static_cast<int>(column % 16) / 4;
  const int word = 4 * lane + 2 * half + unit_row / 8;
  const auto load = [&](int plane, int step) {
    return *reinterpret_cast<const uint32_t*>(unit + plane + 512 * step + 4 * word);
  };
  PlaneWords words = {};
  if constexpr (kFormat.main == MainPlane::kByte) words.main = load(0, j);
  if constexpr (kFormat.main == MainPlane::kNibble || kFormat.main == MainPlane::kTable) {
    words.main = load(0, j % 4);
  }
  if constexpr (kFormat.pair >= 0) words.pair = load(kFormat.pair, j % 4 / 2);
  if constexpr (kFormat.bit >= 0) words.bit = load(kFormat.bit, 0);
  const GroupScale group = RowHeader<kType>(unit, unit_row).Group(j, half);
  const uint32_t codes = PackedCodes<kType>(words, j);
  float* const out = x + blockIdx.x * k + column;
#pragma unroll
  for (int b = 0; b < 4; ++b) out[b] = WeightValue<kType>(group, codes, b);
}

__device__ float Widen(float value) { return value; }
__device__ float Widen(__half value) { return __half2float(value); }
__device__ float Widen(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename Element>
__global__ void __launch_bounds__(kGatherThreads)
    GatherFloatsKernel(const Element* table, int64_t k, const int32_t* tokens, float* x) {
  GridLaunchDependents();
  GridDependencyWait();
  const int64_t first = 4 * (int64_t{blockIdx.y} * kGatherThreads + static_cast<int>(threadIdx.x));
  const Element* from = table + int64_t{tokens[blockIdx.x]} * k;
  for (int64_t column = first; column < first + 4 && column < k; ++column) {
    x[blockIdx.x * k + column] = Widen(from[column]);
  }
}

template <typename Element>
cudaError_t GatherFloats(const Context& context, int64_t k, const std::byte* table,
                         const int32_t* tokens, dim3 grid, float* x) {
  return Launch(context, grid, dim3(kGatherThreads), 0, GatherFloatsKernel<Element>,
                reinterpret_cast<const Element*>(table), k, tokens, x);
}

constexpr int64_t kMaxK = int64_t{1} << 26;  // grid.y of the gather, ints of the unpack

}  // namespace

cudaError_t UnpackRows(const Context& context, WeightType type, int64_t n, int64_t k,
                       const std::byte* units, int64_t row_begin, int64_t row_end,
                       uint16_t* panel) {
  if (row_begin < 0 || row_begin % kUnitRows != 0 || row_end > n || row_begin >= row_end || k < 1 ||
      k > kMaxK) {
    return cudaErrorInvalidValue;
  }
  const int64_t unit_rows = UnitRowCount(row_end) - row_begin / kUnitRows;
  const int64_t warps = unit_rows * ColumnBlocks(k);
  if (warps >= int64_t{1} << 31) return cudaErrorInvalidValue;
  const auto grid = static_cast<unsigned>((warps + kUnpackWarps - 1) / kUnpackWarps);
  return ForQuantisedType(type, cudaErrorInvalidValue, [&]<WeightType kType>() {
    return Launch(context, dim3(grid), dim3(32 * kUnpackWarps), 0, UnpackKernel<kType>,
                  reinterpret_cast<const uint8_t*>(units), n, k, row_begin / kUnitRows, unit_rows,
                  row_end, panel);
  });
}

cudaError_t GatherRows(const Context& context, WeightType type, int64_t n, int64_t k,
                       const std::byte* table, const int32_t* tokens, int rows, float* x) {
  if (rows == 0) return cudaSuccess;
  if (rows < 0 || n < 1 || k < 1 || k > kMaxK) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(rows),
                  static_cast<unsigned>((k + 4 * kGatherThreads - 1) / (4 * kGatherThreads)));
  switch (type) {
    case WeightType::kF32:
      return GatherFloats<float>(context, k, table, tokens, grid, x);
    case WeightType::kF16:
      return GatherFloats<__half>(context, k, table, tokens, grid, x);
    case WeightType::kBF16:
      return GatherFloats<__nv_bfloat16>(context, k, table, tokens, grid, x);
    default:
      break;
  }
  return ForQuantisedType(type, cudaErrorInvalidValue, [&]<WeightType kType>() {
    return Launch(context, grid, dim3(kGatherThreads), 0, GatherUnitsKernel<kType>,
                  reinterpret_cast<const uint8_t*>(table), n, k, tokens, x);
  });
}

}  // namespace layercake::kernels::cuda
