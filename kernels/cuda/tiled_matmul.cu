#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/tiled_matmul.h"

namespace layercake::kernels::cuda {
namespace {

// A block computes 128 rows of x by 128 rows of w, 64 columns of k at a time; its eight warps 64 by
// 32 each.
constexpr int kThreads = 256;
constexpr int kTile = 128;
constexpr int kDepth = 64;  // columns of a stage: 128 bytes of a row
constexpr int kStages = 3;
constexpr int kOperandBytes = kTile * kDepth * 2;
constexpr int kStageBytes = 2 * kOperandBytes;
constexpr size_t kSharedBytes = size_t{kStages} * kStageBytes;
static_assert(kSharedBytes <= 99 << 10);  // the least that a block may have (8.6, 8.9)

// Where piece (16 bytes) `piece` of a row stands: pieces change places by row, so that eight rows'
// same piece lies in eight different bank groups.
__device__ __forceinline__ int PieceOffset(int row, int piece) {
  return 128 * row + 16 * (piece ^ (row % 8));
}

__device__ __forceinline__ void LoadMatricesAt(const std::byte* at, uint32_t (&r)[4]) {
  LoadMatrices(r, static_cast<uint32_t>(__cvta_generic_to_shared(at)));
}

// Rows [first, first + kTile) of m (row_count, k), columns [column, +kDepth), to shared memory.
// Rows behind the last are read as the last, and never stored; columns behind k are zeros.
__device__ void CopyTile(const uint16_t* m, int64_t first, int64_t row_count, int64_t k,
                         int64_t column, std::byte* to) {
#pragma unroll
  for (int i = 0; i < kTile * 8 / kThreads; ++i) {
    const int index = i * kThreads + static_cast<int>(threadIdx.x);
    const int row = index / 8;
    const int piece = index % 8;
    const int64_t from_row = min(first + row, row_count - 1);
    const int64_t from_column = column + 8 * piece;
    const bool valid = from_column < k;
    CopyAsync16(to + PieceOffset(row, piece), m + from_row * k + (valid ? from_column : 0), valid);
  }
}

template <typename Mma>
__device__ void MultiplyStage(const std::byte* x, const std::byte* w, int warp_m, int warp_n,
                              int lane, float (&acc)[4][4][4]) {
#pragma unroll
  for (int step = 0; step < kDepth / 16; ++step) {
    uint32_t b[2][4];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      LoadMatricesAt(
          w + PieceOffset(warp_n + 16 * n + lane % 8 + 8 * (lane / 16), 2 * step + lane / 8 % 2),
          b[n]);
    }
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      uint32_t a[4];
      LoadMatricesAt(x + PieceOffset(warp_m + 16 * m + lane % 16, 2 * step + lane / 16), a);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        Mma16816(Mma{}, acc[m][n], a[0], a[1], a[2], a[3], b[n / 2][2 * (n % 2)],
                 b[n / 2][2 * (n % 2) + 1]);
      }
    }
  }
}

__device__ void Store(const MatmulProblem& problem, int64_t row, int64_t column, float value) {
  if (row >= problem.rows || column >= problem.n) return;
  float* y = problem.y + row * problem.y_stride + column;
  *y = problem.accumulate ? *y + value : value;
}

template <typename Mma>
__global__ void __launch_bounds__(kThreads, 2)
    TiledKernel(const __grid_constant__ MatmulProblem problem) {
  extern __shared__ __align__(128) std::byte shared[];
  GridLaunchDependents();
  GridDependencyWait();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_m = 64 * (warp % 2);
  const int warp_n = 32 * (warp / 2);
  const int64_t row_first = int64_t{blockIdx.x} * kTile;
  const int64_t n_first = int64_t{blockIdx.y} * kTile;
  const int steps = static_cast<int>((problem.k + kDepth - 1) / kDepth);
  const auto copy = [&](int step) {
    if (step < steps) {
      std::byte* const stage = shared + (step % kStages) * kStageBytes;
      const int64_t column = int64_t{kDepth} * step;
      CopyTile(problem.x, row_first, problem.rows, problem.k, column, stage);
      CopyTile(problem.w, n_first, problem.n, problem.k, column, stage + kOperandBytes);
    }
    CopyAsyncCommit();
  };
  for (int step = 0; step < kStages - 1; ++step) copy(step);
  float acc[4][4][4] = {};
  for (int step = 0; step < steps; ++step) {
    CopyAsyncWait<kStages - 2>();
    // Everyone's copies have landed, and everyone is done with the stage that is filled next.
    __syncthreads();
    copy(step + kStages - 1);
    const std::byte* const stage = shared + (step % kStages) * kStageBytes;
    MultiplyStage<Mma>(stage, stage + kOperandBytes, warp_m, warp_n, lane, acc);
  }
#pragma unroll
  for (int m = 0; m < 4; ++m) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        Store(problem, row_first + warp_m + 16 * m + lane / 4 + 8 * (i / 2),
              n_first + warp_n + 8 * n + 2 * (lane % 4) + i % 2, acc[m][n][i]);
      }
    }
  }
}

constexpr int kScaleThreads = 256;
constexpr int kScaleColumns = 8 * kScaleThreads;  // of one block

// blockIdx.x is the row, blockIdx.y a piece of it, blockIdx.z the product.
__global__ void __launch_bounds__(kScaleThreads)
    ScaleBeforeKernel(const __grid_constant__ RowScalings scalings) {
  GridLaunchDependents();
  GridDependencyWait();
  const RowScaling& scaling = scalings.product[blockIdx.z];
  const int64_t row = blockIdx.x;
  const float scale = scaling.scale == nullptr ? 1 : scaling.scale[row];
  if (scaling.bias == nullptr && scale == 1) return;
  const float inverse = scale == 0 ? 0 : 1 / scale;
  const int64_t first = int64_t{blockIdx.y} * kScaleColumns;
  const int64_t end = min(first + kScaleColumns, scaling.n);
  for (int64_t i = first + threadIdx.x; i < end; i += kScaleThreads) {
    float* const y = scaling.y + row * scaling.y_stride + i;
    float value = scaling.accumulate ? *y : 0;
    if (scaling.bias != nullptr) value += scaling.bias[i];
    *y = value * inverse;
  }
}

__global__ void __launch_bounds__(kScaleThreads)
    ScaleAfterKernel(const __grid_constant__ RowScalings scalings) {
  GridLaunchDependents();
  GridDependencyWait();
  const RowScaling& scaling = scalings.product[blockIdx.z];
  const int64_t row = blockIdx.x;
  const float scale = scaling.scale[row];
  if (scale == 1) return;
  const int64_t first = int64_t{blockIdx.y} * kScaleColumns;
  const int64_t end = min(first + kScaleColumns, scaling.n);
  for (int64_t i = first + threadIdx.x; i < end; i += kScaleThreads) {
    scaling.y[row * scaling.y_stride + i] *= scale;
  }
}

// The kernel for those products that `needs` it.
template <typename Needs>
cudaError_t LaunchScaling(const Context& context, const RowScalings& scalings, const Needs& needs,
                          void (*kernel)(RowScalings)) {
  RowScalings needed;
  needed.rows = scalings.rows;
  int64_t most_n = 0;
  for (int i = 0; i < scalings.count; ++i) {
    if (!needs(scalings.product[i])) continue;
    needed.product[needed.count++] = scalings.product[i];
    most_n = most_n < scalings.product[i].n ? scalings.product[i].n : most_n;
  }
  if (needed.count == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(scalings.rows),
                  static_cast<unsigned>((most_n + kScaleColumns - 1) / kScaleColumns),
                  static_cast<unsigned>(needed.count));
  return Launch(context, grid, dim3(kScaleThreads), 0, kernel, needed);
}

}  // namespace

cudaError_t PrepareTiledMatmul() {
  const cudaError_t error = AllowSharedBytes(TiledKernel<Bf16Mma>, kSharedBytes);
  return error != cudaSuccess ? error : AllowSharedBytes(TiledKernel<F16Mma>, kSharedBytes);
}

cudaError_t TiledMatmul(const Context& context, const MatmulProblem& problem) {
  if (problem.rows < 1 || problem.n < 1 || problem.k < 1 || problem.k % 8 != 0) {
    return cudaErrorInvalidValue;
  }
  // Blocks that share rows of w run side by side.
  const dim3 grid(static_cast<unsigned>((problem.rows + kTile - 1) / kTile),
                  static_cast<unsigned>((problem.n + kTile - 1) / kTile));
  if (grid.y > 65535) return cudaErrorInvalidValue;
  return problem.bf16
             ? Launch(context, grid, dim3(kThreads), kSharedBytes, TiledKernel<Bf16Mma>, problem)
             : Launch(context, grid, dim3(kThreads), kSharedBytes, TiledKernel<F16Mma>, problem);
}

cudaError_t ScaleBefore(const Context& context, const RowScalings& scalings) {
  const auto needs = [](const RowScaling& scaling) {
    return scaling.bias != nullptr || (scaling.accumulate && scaling.scale != nullptr);
  };
  return LaunchScaling(context, scalings, needs, ScaleBeforeKernel);
}

cudaError_t ScaleAfter(const Context& context, const RowScalings& scalings) {
  const auto needs = [](const RowScaling& scaling) { return scaling.scale != nullptr; };
  return LaunchScaling(context, scalings, needs, ScaleAfterKernel);
}

}  // namespace layercake::kernels::cuda
