// The decode attention over bf16 and q8_0 caches (attention_bf16.cuh).
#include <type_traits>

#include "kernels/cuda/attention_bf16.cuh"
#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/attention_parts.cuh"

namespace layercake::kernels::cuda {
namespace {

template <typename Kv, int kHeadDim>
struct DecodeShape {
  static constexpr int kStageTokens = 16;
  static constexpr int kStages = kWarpTokens / kStageTokens;
  static constexpr int kBuffers = kHeadDim > 64 ? 2 : 4;
  using Tile = typename Kv::template Tile<kHeadDim, kStageTokens>;
  static constexpr int kPitch = kHeadDim * 2 + 16;
  static constexpr int kQueryBytes = 2 * kHeadsPerBlock * kPitch;  // high, then low
  static constexpr int kOffsetBytes = kSplitTokens * 8;
  static constexpr int kMade = kBuffers * Tile::kLoadBytes;  // of a warp's memory
  static constexpr int kWarpBytes = kMade + Tile::kMadeBytes;
  static constexpr int kSharedBytes = kQueryBytes + kOffsetBytes + kWarps * kWarpBytes;
  static_assert(kWarpBytes >= kHeadsPerBlock * (kHeadDim + 2) * 4);
};

template <int kHeadDim>
__device__ void FillQueries(const AttentionArguments& a, const DecodeBlock& block, int head_dim,
                            char* queries) {
  constexpr int kPitch = kHeadDim * 2 + 16;
  const float* q = a.q + (static_cast<int64_t>(block.row) * a.heads + block.first_head) * head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < kHeadsPerBlock * kHeadDim / 2; i += kThreads) {
    const int h = i / (kHeadDim / 2);
    const int d = i % (kHeadDim / 2) * 2;
    const bool present = h < block.head_count && d < head_dim;  // head_dim is even
    const float* from = q + static_cast<int64_t>(h) * head_dim + d;
    uint32_t high;
    uint32_t low;
    SplitPair(present ? from[0] : 0.0f, present ? from[1] : 0.0f, high, low);
    auto* to = reinterpret_cast<uint32_t*>(queries + h * kPitch + d * 2);
    to[0] = high;
    to[kHeadsPerBlock * kPitch / 4] = low;
  }
}

// One warp's stage `s` of kWarpTokens positions into its buffer.
template <typename Kv, int kHeadDim>
__device__ __forceinline__ void IssueStage(const KvView& cache, const DecodeBlock& block,
                                           const int64_t* offsets, int s, const char* own) {
  using Shape = DecodeShape<Kv, kHeadDim>;
  const int begin = static_cast<int>(threadIdx.x) / 32 * kWarpTokens + s * Shape::kStageTokens;
  Kv::template Issue<kHeadDim, Shape::kStageTokens, 32>(
      cache, offsets + begin, block.first_position + begin, block.positions - begin,
      SharedAddress(own + s % Shape::kBuffers * Shape::Tile::kLoadBytes),
      static_cast<int>(threadIdx.x % 32));
}

// The first loads of a warp that are (not) of older steps.
template <typename Kv, int kHeadDim>
__device__ void IssueFirst(const KvView& cache, const DecodeBlock& block, const int64_t* offsets,
                           const char* own, bool old) {
  using Shape = DecodeShape<Kv, kHeadDim>;
  const int first = static_cast<int>(threadIdx.x) / 32 * kWarpTokens;
#pragma unroll
  for (int s = 0; s < Shape::kBuffers; ++s) {
    const int end = first + (s + 1) * Shape::kStageTokens;
    if ((end <= block.old_positions) != old) continue;
    IssueStage<Kv, kHeadDim>(cache, block, offsets, s, own);
  }
}

template <typename Kv, int kHeadDim>
__device__ __forceinline__ void AttendWarp(const KvView& cache, const AttentionArguments& a,
                                           const DecodeBlock& block, const int64_t* offsets,
                                           uint32_t queries, char* own,
                                           SoftmaxState<kHeadDim>& state) {
  using Shape = DecodeShape<Kv, kHeadDim>;
  using Tile = typename Shape::Tile;
  constexpr int kTokens = Shape::kStageTokens;
  constexpr bool kMakes = Tile::kMadeBytes > 0;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first = static_cast<int>(threadIdx.x) / 32 * kWarpTokens;
  // Unrolled or not: as either does not spill.
#pragma unroll(kMakes ? Shape::kStages : 1)
  for (int s = 0; s < Shape::kStages; ++s) {
    WaitCopies<Shape::kBuffers - 1>();
    __syncwarp();
    const char* tile = own + s % Shape::kBuffers * Tile::kLoadBytes;
    const auto issue_next = [&] {
      __syncwarp();
      if (s + Shape::kBuffers < Shape::kStages) {
        IssueStage<Kv, kHeadDim>(cache, block, offsets, s + Shape::kBuffers, own);
      }
      CommitCopies();
    };
    if constexpr (kMakes) {
      char* made = own + Shape::kMade;
      Kv::template Make<kHeadDim, kTokens, 32>(cache, tile, block.positions - first - s * kTokens,
                                               made, lane);
      tile = made;
      issue_next();  // the buffer is free, and the made tile complete
    }
    float scores[kTokens / 8][4] = {};
    Kv::template AddScores<kHeadDim, kTokens>(scores, queries,
                                              queries + kHeadsPerBlock * Shape::kPitch, tile);
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int position = first + s * kTokens + n * 8 + lane % 4 * 2 + j % 2;
        if (position >= block.positions) scores[n][j] = -INFINITY;
      }
    }
    state.template Weigh<kTokens>(scores, a.scale * kLog2E);
    Kv::template AddValues<kHeadDim, kTokens>(scores, tile, state.out);
    if constexpr (!kMakes) issue_next();
  }
}

template <typename Kv, int kHeadDim>
__global__ void __launch_bounds__(kThreads)
    Bf16DecodeKernel(StepView step, KvView cache, AttentionArguments a, int first_row) {
  using Shape = DecodeShape<Kv, kHeadDim>;
  extern __shared__ __align__(128) char shared[];
  // What may come before the wait: as in attention_decode.cu.
  const DecodeBlock block(step, cache, a.heads, first_row);
  if (block.split >= block.splits) {
    GridDependencyWait();
    return;
  }
  auto* offsets = reinterpret_cast<int64_t*>(shared + Shape::kQueryBytes);
  char* warps = shared + Shape::kQueryBytes + Shape::kOffsetBytes;
  char* own = warps + static_cast<size_t>(threadIdx.x) / 32 * Shape::kWarpBytes;
  if constexpr (std::is_same_v<Kv, Q8Kv>) {
    FillQ8Offsets(step, cache, block, offsets);
  } else {
    FillOffsets(step, cache, block, offsets);
  }
  __syncthreads();
  IssueFirst<Kv, kHeadDim>(cache, block, offsets, own, /*old=*/true);
  GridDependencyWait();
  GridLaunchDependents();
  IssueFirst<Kv, kHeadDim>(cache, block, offsets, own, /*old=*/false);
  // All first loads are one group; empty ones stand for the other buffers.
  for (int s = 0; s < Shape::kBuffers; ++s) CommitCopies();
  FillQueries<kHeadDim>(a, block, cache.head_dim, shared);
  __syncthreads();

  SoftmaxState<kHeadDim> state;
  state.Clear();
  AttendWarp<Kv, kHeadDim>(cache, a, block, offsets, SharedAddress(shared), own, state);
  state.Finish();
  WaitCopies<0>();
  __syncwarp();
  StoreState(state, reinterpret_cast<float*>(own));
  __syncthreads();
  MergeWarps<kHeadDim, Shape::kWarpBytes>(cache, a, block, step.splits, warps);
  if (block.splits > 1) {
    Combine(cache, a, block, step.splits);
  }
}

template <typename Kv>
DecodeChoice Choose(int head_dim) {
  if (head_dim <= 64) return {Bf16DecodeKernel<Kv, 64>, DecodeShape<Kv, 64>::kSharedBytes};
  if (head_dim <= 96) return {Bf16DecodeKernel<Kv, 96>, DecodeShape<Kv, 96>::kSharedBytes};
  if (head_dim <= 128) return {Bf16DecodeKernel<Kv, 128>, DecodeShape<Kv, 128>::kSharedBytes};
  return {Bf16DecodeKernel<Kv, 256>, DecodeShape<Kv, 256>::kSharedBytes};
}

}  // namespace

DecodeChoice ChooseBf16Decode(KvElement element, int head_dim) {
  if (element == KvElement::kQ8_0) return Choose<Q8Kv>(head_dim);
  // Heads come 16 bytes at a time.
  if (element == KvElement::kBfloat16 && head_dim % 8 == 0) return Choose<Bf16Kv>(head_dim);
  return {};
}

}  // namespace layercake::kernels::cuda
