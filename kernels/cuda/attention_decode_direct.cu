// The decode attention for the usual heads: f16 or bf16 caches, 64 or 128 wide, at most 8 query
// heads to a kv head.
//
// A product does not care in which order its dimensions stand, nor a result in which order its rows
// stand. So each lane loads those 16 bytes of keys and values that it will hand to the tensor cores
// itself, from the cache into registers: no tiles in shared memory, no barrier, no transposing
// load. cp.async, into tiles or into each lane's own places, brings a quarter fewer bytes a second
// (docs/performance.md).
#include <cuda_fp16.h>

#include "kernels/cuda/attention_bf16.cuh"
#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/mma.cuh"

namespace layercake::kernels::cuda {
namespace {

constexpr int kBlocksTogether = 4;  // on a multiprocessor: 128 registers a thread
constexpr int kHeads = 8;           // query heads: the columns of a tensor core tile
constexpr int kTile = 16;           // positions that a warp takes at once, every kWarps-th of them
constexpr int kTileStride = kWarps * kTile;
// So few blocks leave the memory idle when they ask for their first tiles only: 33 MB at most.
constexpr int kPrefetchBlocks = 256;

template <int kHeadDim>
struct DirectShape {
  static constexpr int kLines = kHeadDim / 64;     // of 128 bytes, by eight lanes
  static constexpr int kRowTiles = kHeadDim / 16;  // of the result: dimensions are its rows
  static constexpr int kQueryBytes = 2 * kHeads * kHeadDim * 2;
  static constexpr int kOffsetBytes = kSplitTokens * 8;
  static constexpr int kOutPitch = kHeadDim + 4;  // floats
  static constexpr int kOutFloats = kHeads * kOutPitch;
  static constexpr int kStateBytes = kWarps * kHeads * 8;
  static constexpr int kSharedBytes =
      kQueryBytes + kOffsetBytes + kStateBytes + kWarps * kOutFloats * 4;
  static_assert(kSharedBytes <= 48 << 10);  // no limit to raise
};

// float32 numbers as sums of the cache's type, two at a time: queries of both, probabilities too
// where kSplitWeights.
struct Halves {
  using Mma = F16Mma;
  static constexpr bool kSplitWeights = false;
  static __device__ __forceinline__ void Split(float x, float y, uint32_t& high, uint32_t& low) {
    high = PackHalves(x, y);
    const float2 rounded = UnpackHalves(high);
    low = PackHalves(x - rounded.x, y - rounded.y);
  }
};
struct Bf16s {
  using Mma = Bf16Mma;
  static constexpr bool kSplitWeights = true;
  static __device__ __forceinline__ void Split(float x, float y, uint32_t& high, uint32_t& low) {
    SplitPair(x, y, high, low);
  }
};

// 16 bytes that nobody else will ask for.
__device__ __forceinline__ void LoadOnce(const char* from, uint32_t (&to)[4]) {
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "l"(from));
}

// Each time anew: the compiler would keep the queries in registers, and has too few.
__device__ __forceinline__ uint4 LoadShared(uint32_t from) {
  uint4 to;
  asm volatile("ld.volatile.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
               : "r"(from));
  return to;
}

// A tile of one warp. Of lane (g = lane / 4, t = lane % 4), of a line's 64 dimensions:
//   keys[n][line]    position 4 n + g / 2, dimensions 32 (g % 2) + 8 t to + 7
//   values[line][n]  position 4 n + t, dimensions 8 g to + 7
template <int kHeadDim>
struct Tile {
  using Shape = DirectShape<kHeadDim>;
  uint32_t keys[4][Shape::kLines][4];
  uint32_t values[Shape::kLines][4][4];

  // offsets: of the tile's positions.
  __device__ __forceinline__ void LoadKeys(const KvView& cache, const int64_t* offsets) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const char* from =
          static_cast<const char*>(cache.keys) + offsets[4 * n + lane / 8] * 2 + lane % 8 * 16;
#pragma unroll
      for (int line = 0; line < Shape::kLines; ++line) LoadOnce(from + line * 128, keys[n][line]);
    }
  }
  __device__ __forceinline__ void LoadValues(const KvView& cache, const int64_t* offsets) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const char* from =
          static_cast<const char*>(cache.values) + offsets[4 * n + lane % 4] * 2 + lane / 4 * 16;
#pragma unroll
      for (int line = 0; line < Shape::kLines; ++line) LoadOnce(from + line * 128, values[line][n]);
    }
  }
};

// Where 16 bytes for each lane of a product's queries lie: dimensions 8 t + 4 half and the next of
// the first and of the other 32 of the line, then the two after them; part 0: high, 1: low.
__device__ constexpr uint32_t QueryOffset(int line, int half, int part) {
  return static_cast<uint32_t>(((line * 2 + half) * 2 + part) * 32 * 16);
}

// A warp's running softmax. Of a lane (g, t): max (log2) and sum of head g, the sum over its own
// positions only; out[4 line + r][j]: of the line dimension 8 g + 2 r + j / 2, head 2 t + j % 2.
template <typename Type, int kHeadDim>
struct WarpState {
  using Shape = DirectShape<kHeadDim>;
  float out[Shape::kRowTiles][4] = {};
  float max = -INFINITY;
  float sum = 0;

  // scores[n]: of head g and position 4 n + t. queries: where this lane's first 16 bytes are.
  //
  // Rows of the product: the heads with the first 32 dimensions of each line, then the heads with
  // the others. Columns: positions, each with its first, then with its other dimensions. What is of
  // use is where both are first or both are other, and those two lie in one lane.
  __device__ __forceinline__ void Score(const Tile<kHeadDim>& tile, uint32_t queries,
                                        float (&scores)[4]) const {
    float sums[4][4] = {};
#pragma unroll
    for (int line = 0; line < Shape::kLines; ++line) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          const uint4 q = LoadShared(queries + QueryOffset(line, half, part));
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            const uint32_t(&key)[4] = tile.keys[n][line];
            Mma16816(typename Type::Mma(), sums[n], q.x, q.y, q.z, q.w, key[2 * half],
                     key[2 * half + 1]);
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) scores[n] = sums[n][0] + sums[n][3];
  }

  // Scores become probabilities; positions from `count` on count for nothing.
  __device__ __forceinline__ void Weigh(float (&scores)[4], float scale, int count) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    float tile_max = -INFINITY;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (4 * n + lane % 4 >= count) scores[n] = -INFINITY;
      tile_max = fmaxf(tile_max, scores[n]);
    }
    const float new_max = fmaxf(max, QuadMax(tile_max) * scale);
    const float base = new_max == -INFINITY ? 0.0f : new_max;
    const float factor = Exp2(max - base);
    max = new_max;
    float tile_sum = 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      scores[n] = Exp2(fmaf(scores[n], scale, -base));
      tile_sum += scores[n];
    }
    sum = sum * factor + tile_sum;
    const float even = __shfl_sync(0xffffffffu, factor, lane % 4 * 8);
    const float odd = __shfl_sync(0xffffffffu, factor, lane % 4 * 8 + 4);
#pragma unroll
    for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
      for (int j = 0; j < 4; ++j) out[r][j] *= j % 2 == 0 ? even : odd;
    }
  }

  __device__ __forceinline__ void AddValues(const Tile<kHeadDim>& tile, const float (&weights)[4]) {
    uint32_t high[2];
    uint32_t low[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) Type::Split(weights[2 * n], weights[2 * n + 1], high[n], low[n]);
#pragma unroll
    for (int line = 0; line < Shape::kLines; ++line) {
      const auto& values = tile.values[line];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        // Two dimensions of one position become two positions of one dimension.
        const uint32_t a0 = __byte_perm(values[0][r], values[1][r], 0x5410);
        const uint32_t a1 = __byte_perm(values[0][r], values[1][r], 0x7632);
        const uint32_t a2 = __byte_perm(values[2][r], values[3][r], 0x5410);
        const uint32_t a3 = __byte_perm(values[2][r], values[3][r], 0x7632);
        float(&to)[4] = out[4 * line + r];
        Mma16816(typename Type::Mma(), to, a0, a1, a2, a3, high[0], high[1]);
        if constexpr (Type::kSplitWeights) {
          Mma16816(typename Type::Mma(), to, a0, a1, a2, a3, low[0], low[1]);
        }
      }
    }
  }

  // To shared memory: to[head * kOutPitch + dimension], states[head] = (max, sum).
  __device__ __forceinline__ void Store(int head_count, float* to, float2* states) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const float total = QuadSum(sum);
    if (lane % 4 == 0) states[lane / 4] = make_float2(max, total);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int head = lane % 4 * 2 + j;
      if (head >= head_count) continue;
#pragma unroll
      for (int r = 0; r < Shape::kRowTiles; r += 2) {
        const int dim = r / 4 * 64 + lane / 4 * 8 + r % 4 * 2;
        *reinterpret_cast<float4*>(to + head * Shape::kOutPitch + dim) =
            make_float4(out[r][j], out[r][j + 2], out[r + 1][j], out[r + 1][j + 2]);
      }
    }
  }
};

// q = high + low, where QueryOffset says. Heads that are not there: zeros.
template <typename Type, int kHeadDim>
__device__ __forceinline__ void FillQueries(const AttentionArguments& a, const DecodeBlock& block,
                                            uint4* queries) {
  const float* q = a.q + (static_cast<int64_t>(block.row) * a.heads + block.first_head) * kHeadDim;
#pragma unroll
  for (int n = 0; n < kHeads * kHeadDim / 4 / kThreads; ++n) {
    const int i = n * kThreads + static_cast<int>(threadIdx.x);
    const int head = i / (kHeadDim / 4);
    const int dim = i % (kHeadDim / 4) * 4;
    float4 value = make_float4(0, 0, 0, 0);
    if (head < block.head_count) {
      value = *reinterpret_cast<const float4*>(q + head * kHeadDim + dim);
    }
    uint2 high;
    uint2 low;
    Type::Split(value.x, value.y, high.x, low.x);
    Type::Split(value.z, value.w, high.y, low.y);
    const int lane = head * 4 + dim % 32 / 8;
    auto* to = reinterpret_cast<uint32_t*>(queries + (dim / 64 * 2 + dim % 8 / 4) * 2 * 32 + lane) +
               dim / 32 % 2;
    to[0] = high.x;
    to[2] = high.y;
    to[32 * 4] = low.x;
    to[32 * 4 + 2] = low.y;
  }
}

// Of all positions of the split. Behind the last one: that one again, where the weight is 0.
__device__ __forceinline__ void FillAllOffsets(const StepView& step, const KvView& cache,
                                               const DecodeBlock& block, int64_t* offsets) {
  const int32_t* table = TableOf(step, block);
#pragma unroll
  for (int n = 0; n < kSplitTokens / kThreads; ++n) {
    const int i = n * kThreads + static_cast<int>(threadIdx.x);
    offsets[i] =
        HeadOffset(cache, block, table, block.first_position + min(i, block.positions - 1));
  }
}

// All but the first tiles into the L2 cache, which sees what earlier kernels still write.
template <int kHeadDim>
__device__ __forceinline__ void Prefetch(const KvView& cache, const DecodeBlock& block,
                                         const int64_t* offsets) {
  for (int i = kTileStride * 2 + static_cast<int>(threadIdx.x); i < block.positions * 2;
       i += kThreads) {
    const void* heads = i % 2 == 0 ? cache.keys : cache.values;
    const char* from = static_cast<const char*>(heads) + offsets[i / 2] * 2;
#pragma unroll
    for (int line = 0; line < kHeadDim * 2; line += 128) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(from + line));
    }
  }
}

// The warps' states, added up in order, into the split's part or, alone, into the result.
template <int kHeadDim>
__device__ __forceinline__ void Merge(const AttentionArguments& a, const DecodeBlock& block,
                                      int splits_bound, const float* outs, const float2* states) {
  using Shape = DirectShape<kHeadDim>;
  const PartsView parts(a, static_cast<int>(gridDim.z), splits_bound, kHeadDim);
  for (int i = static_cast<int>(threadIdx.x); i < block.head_count * kHeadDim / 4; i += kThreads) {
    const int head = i / (kHeadDim / 4);
    const int dim = i % (kHeadDim / 4) * 4;
    float max = -INFINITY;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) max = fmaxf(max, states[w * kHeads + head].x);
    float4 value = make_float4(0, 0, 0, 0);
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float2 state = states[w * kHeads + head];
      const float4 out = *reinterpret_cast<const float4*>(outs + w * Shape::kOutFloats +
                                                          head * Shape::kOutPitch + dim);
      const float factor = exp2f(state.x - max);
      sum += factor * state.y;
      value.x += factor * out.x;
      value.y += factor * out.y;
      value.z += factor * out.z;
      value.w += factor * out.w;
    }
    if (block.splits == 1) {
      const int64_t row_head = static_cast<int64_t>(block.row) * a.heads + block.first_head + head;
      *reinterpret_cast<float4*>(a.out + row_head * kHeadDim + dim) =
          make_float4(value.x / sum, value.y / sum, value.z / sum, value.w / sum);
      continue;
    }
    const int64_t part =
        (static_cast<int64_t>(block.local_row) * a.heads + block.first_head + head) * splits_bound +
        block.split;
    *reinterpret_cast<float4*>(parts.outputs + part * kHeadDim + dim) = value;
    if (dim == 0) parts.states[part] = make_float2(max, sum);
  }
}

template <typename Type, int kHeadDim>
__global__ void __launch_bounds__(kThreads, kBlocksTogether)
    DirectDecodeKernel(StepView step, KvView cache, AttentionArguments a, int first_row) {
  using Shape = DirectShape<kHeadDim>;
  extern __shared__ __align__(128) char shared[];
  // What may come before the wait: as in attention_decode.cu.
  const DecodeBlock block(step, cache, a.heads, first_row);
  if (block.split >= block.splits) {
    GridDependencyWait();
    return;
  }
  auto* queries = reinterpret_cast<uint4*>(shared);
  auto* offsets = reinterpret_cast<int64_t*>(shared + Shape::kQueryBytes);
  auto* states = reinterpret_cast<float2*>(shared + Shape::kQueryBytes + Shape::kOffsetBytes);
  auto* outs = reinterpret_cast<float*>(states + kWarps * kHeads);
  FillAllOffsets(step, cache, block, offsets);
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool old = (warp + 1) * kTile <= block.old_positions;
  Tile<kHeadDim> tile;
  if (old) {
    tile.LoadKeys(cache, offsets + warp * kTile);
    tile.LoadValues(cache, offsets + warp * kTile);
  }
  if (gridDim.x * gridDim.y * gridDim.z <= kPrefetchBlocks) {
    Prefetch<kHeadDim>(cache, block, offsets);
  }
  GridDependencyWait();
  GridLaunchDependents();
  if (!old) {
    tile.LoadKeys(cache, offsets + warp * kTile);
    tile.LoadValues(cache, offsets + warp * kTile);
  }
  FillQueries<Type, kHeadDim>(a, block, queries);
  __syncthreads();

  WarpState<Type, kHeadDim> state;
  const float scale = a.scale * kLog2E;
  const uint32_t own_queries = SharedAddress(queries + lane);
#pragma unroll 1
  for (int first = warp * kTile; first < block.positions; first += kTileStride) {
    const bool more = first + kTileStride < block.positions;
    float scores[4];
    state.Score(tile, own_queries, scores);
    if (more) tile.LoadKeys(cache, offsets + first + kTileStride);
    state.Weigh(scores, scale, block.positions - first);
    state.AddValues(tile, scores);
    if (more) tile.LoadValues(cache, offsets + first + kTileStride);
  }
  state.Store(block.head_count, outs + warp * Shape::kOutFloats, states + warp * kHeads);
  __syncthreads();
  Merge<kHeadDim>(a, block, step.splits, outs, states);
  if (block.splits > 1) Combine(cache, a, block, step.splits);
}

template <int kHeadDim>
DecodeChoice Choose(KvElement element) {
  constexpr int kBytes = DirectShape<kHeadDim>::kSharedBytes;
  if (element == KvElement::kFloat16) return {DirectDecodeKernel<Halves, kHeadDim>, kBytes};
  if (element == KvElement::kBfloat16) return {DirectDecodeKernel<Bf16s, kHeadDim>, kBytes};
  return {};
}

}  // namespace

DecodeChoice ChooseDirectDecode(KvElement element, int head_dim, int group) {
  if (group > kHeads) return {};
  if (head_dim == 64) return Choose<64>(element);
  if (head_dim == 128) return Choose<128>(element);
  return {};
}

}  // namespace layercake::kernels::cuda
