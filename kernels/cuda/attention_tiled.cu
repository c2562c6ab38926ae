#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/attention_tile.cuh"

namespace layercake::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kTileQueries = 16 * kWarps;  // (rows of a sequence) x (query heads of a kv head)
constexpr int kStaticSharedBytes = 1024;   // the offsets of two tiles
constexpr float kLog2E = 1.4426950408889634f;

template <int kHeadDim>
struct TiledShape {
  static constexpr int kTokens = kHeadDim > 128 ? 32 : 64;  // positions of one tile of keys
  static constexpr int kPitch = kHeadDim * 2 + 16;
  static constexpr int kQueryBytes = kTileQueries * kPitch;
  static constexpr int kStageBytes = 2 * kTokens * kPitch;
  static constexpr int kSharedBytes = kQueryBytes + 2 * kStageBytes;
};

struct TiledBlock {
  RowTile tile;
  int kv_head;
  int group;
  int last_position;
  const int32_t* table;
};

template <int kHeadDim>
__device__ void FillQueries(const KvView& cache, const AttentionArguments& a,
                            const TiledBlock& block, char* queries) {
  for (int i = static_cast<int>(threadIdx.x); i < kTileQueries * kHeadDim; i += kThreads) {
    const int m = i / kHeadDim;
    const int d = i % kHeadDim;
    float value = 0;
    if (m < block.tile.row_count * block.group && d < cache.head_dim) {
      const int64_t row = block.tile.first_row + m / block.group;
      const int head = block.kv_head * block.group + m % block.group;
      value = a.q[(row * a.heads + head) * cache.head_dim + d];
    }
    reinterpret_cast<__half*>(queries + m * TiledShape<kHeadDim>::kPitch)[d] =
        __float2half_rn(value);
  }
}

// Offsets of the positions of one tile of keys; behind the last position they are 0 and unused.
template <int kHeadDim>
__device__ void FillOffsets(const KvView& cache, const TiledBlock& block, int first,
                            int64_t* offsets) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= TiledShape<kHeadDim>::kTokens) return;
  const int position = first + i;
  int64_t offset = 0;
  if (position <= block.last_position) {
    const int64_t id = block.table[position / cache.block_tokens];
    offset = ((id * cache.kv_heads + block.kv_head) * cache.block_tokens +
              position % cache.block_tokens) *
             cache.head_dim;
  }
  offsets[i] = offset;
}

template <int kHeadDim>
__device__ void IssueTile(const KvView& cache, const TiledBlock& block, const int64_t* offsets,
                          int first, uint32_t to) {
  using Shape = TiledShape<kHeadDim>;
  constexpr int kChunks = kHeadDim / 8;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < Shape::kTokens * kChunks; i += kThreads) {
    const int token = i / kChunks;
    const int chunk = i % kChunks;
    const bool present = first + token <= block.last_position && chunk * 8 < cache.head_dim;
    const int64_t offset = present ? offsets[token] + chunk * 8 : 0;
    const uint32_t place = to + static_cast<uint32_t>(token * Shape::kPitch + chunk * 16);
    CopyAsync(place, static_cast<const __half*>(cache.keys) + offset, present);
    CopyAsync(place + Shape::kTokens * Shape::kPitch,
              static_cast<const __half*>(cache.values) + offset, present);
  }
}

template <int kHeadDim>
__device__ void StoreRows(const KvView& cache, const AttentionArguments& a, const TiledBlock& block,
                          const SoftmaxState<kHeadDim>& state) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int m = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4 + h * 8;
    if (m >= block.tile.row_count * block.group) continue;
    const int64_t row = block.tile.first_row + m / block.group;
    const int head = block.kv_head * block.group + m % block.group;
    float* out = a.out + (row * a.heads + head) * cache.head_dim;
    const float factor = 1.0f / state.sum[h];
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      const int d = n * 8 + lane % 4 * 2;
      if (d >= cache.head_dim) continue;
      *reinterpret_cast<float2*>(out + d) =
          make_float2(state.out[n][2 * h] * factor, state.out[n][2 * h + 1] * factor);
    }
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, 2)
    TiledAttentionKernel(StepView step, KvView cache, AttentionArguments a) {
  using Shape = TiledShape<kHeadDim>;
  constexpr int kTokens = Shape::kTokens;
  extern __shared__ __align__(128) char shared[];
  __shared__ int64_t offsets[2][kTokens];
  GridDependencyWait();
  GridLaunchDependents();
  TiledBlock block;
  // The longest tiles first, or they would run alone at the end.
  block.tile = step.tiles[step.tile_count - 1 - static_cast<int>(blockIdx.x)];
  block.kv_head = static_cast<int>(blockIdx.y);
  block.group = a.heads / cache.kv_heads;
  block.last_position = step.kv_position[block.tile.first_row + block.tile.row_count - 1];
  block.table = step.tables +
                static_cast<int64_t>(step.table_index[block.tile.first_row]) * step.table_stride;

  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int limits[2];  // the last position that each of the lane's two query rows attends
  for (int h = 0; h < 2; ++h) {
    const int m = warp * 16 + lane / 4 + h * 8;
    limits[h] = m < block.tile.row_count * block.group
                    ? step.kv_position[block.tile.first_row + m / block.group]
                    : block.last_position;
  }
  const int first_limit = step.kv_position[block.tile.first_row];
  FillOffsets<kHeadDim>(cache, block, 0, offsets[0]);
  FillOffsets<kHeadDim>(cache, block, kTokens, offsets[1]);
  FillQueries<kHeadDim>(cache, a, block, shared);
  __syncthreads();
  const uint32_t stages = SharedAddress(shared + Shape::kQueryBytes);
  IssueTile<kHeadDim>(cache, block, offsets[0], 0, stages);
  CommitCopies();

  const uint32_t queries = SharedAddress(shared) + static_cast<uint32_t>(warp * 16 * Shape::kPitch);
  const float scale = a.scale * kLog2E;
  SoftmaxState<kHeadDim> state;
  state.Clear();
  const int tiles = block.last_position / kTokens + 1;
  for (int t = 0; t < tiles; ++t) {
    WaitCopies<0>();
    __syncthreads();
    const uint32_t keys = stages + static_cast<uint32_t>(t % 2 * Shape::kStageBytes);
    if (t + 1 < tiles) {
      IssueTile<kHeadDim>(cache, block, offsets[(t + 1) % 2], (t + 1) * kTokens,
                          stages + static_cast<uint32_t>((t + 1) % 2 * Shape::kStageBytes));
    }
    CommitCopies();
    FillOffsets<kHeadDim>(cache, block, (t + 2) * kTokens, offsets[t % 2]);
    float scores[kTokens / 8][4] = {};
    AddScores<kHeadDim, kTokens>(scores, queries, keys, Shape::kPitch);
    if (t * kTokens + kTokens - 1 > first_limit) {
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int position = t * kTokens + n * 8 + lane % 4 * 2 + j % 2;
          if (position > limits[j / 2]) scores[n][j] = -INFINITY;
        }
      }
    }
    state.template Add<kTokens>(scores, scale, keys + kTokens * Shape::kPitch, Shape::kPitch);
  }
  state.Finish();
  StoreRows<kHeadDim>(cache, a, block, state);
}

template <int kHeadDim>
TiledChoice Shaped() {
  return {TiledAttentionKernel<kHeadDim>, TiledShape<kHeadDim>::kSharedBytes};
}

TiledChoice ShapedFor(int head_dim) {
  if (head_dim <= 64) return Shaped<64>();
  if (head_dim <= 80) return Shaped<80>();
  if (head_dim <= 96) return Shaped<96>();
  if (head_dim <= 128) return Shaped<128>();
  if (head_dim <= 192) return Shaped<192>();
  return Shaped<256>();
}

TiledChoice Choose(KvElement element, int head_dim) {
  if (element != KvElement::kFloat16) return ChooseBf16Tiled(element, head_dim);
  return head_dim % 8 == 0 ? ShapedFor(head_dim) : TiledChoice{};
}

bool Runs(const Context& context, const TiledChoice& choice) {
  return choice.kernel != nullptr &&
         choice.shared_bytes + kStaticSharedBytes <= context.max_shared_bytes;
}

cudaError_t Allow(const Context& context, const TiledChoice& choice) {
  if (!Runs(context, choice)) return cudaSuccess;
  return AllowSharedBytes(choice.kernel, static_cast<size_t>(choice.shared_bytes));
}

}  // namespace

bool TiledAttentionTakes(const Context& context, const KvView& cache, int heads) {
  return heads / cache.kv_heads <= kTileQueries &&
         Runs(context, Choose(cache.element, cache.head_dim));
}

int RowsPerTile(int heads, int kv_heads) {
  const int rows = kTileQueries / (heads / kv_heads);
  return rows < 1 ? 1 : rows;
}

cudaError_t PrepareAttention(const Context& context) {
  for (const int head_dim : {64, 80, 96, 128, 192, 256}) {
    const cudaError_t error = Allow(context, ShapedFor(head_dim));
    if (error != cudaSuccess) return error;
  }
  for (const KvElement element : {KvElement::kBfloat16, KvElement::kQ8_0}) {
    for (const int head_dim : kBf16HeadDims) {
      const cudaError_t error = Allow(context, ChooseBf16Tiled(element, head_dim));
      if (error != cudaSuccess) return error;
    }
  }
  return PrepareDecodeAttention(context);
}

cudaError_t LaunchTiledAttention(const Context& context, const StepView& step, const KvView& cache,
                                 const AttentionArguments& arguments) {
  const TiledChoice choice = Choose(cache.element, cache.head_dim);
  const dim3 grid(static_cast<unsigned>(step.tile_count), static_cast<unsigned>(cache.kv_heads));
  return Launch(context, grid, dim3(kThreads), static_cast<size_t>(choice.shared_bytes),
                choice.kernel, step, cache, arguments);
}

}  // namespace layercake::kernels::cuda
