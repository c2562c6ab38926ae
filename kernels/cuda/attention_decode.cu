#include <cuda_bf16.h>

#include <type_traits>

#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/attention_tile.cuh"

namespace layercake::kernels::cuda {
namespace {

// kFolded: at most 8 query heads, whose high halves take the upper half of a tensor core tile and
// whose low halves the lower one: one product makes both scores, which lie in one thread.
template <int kHeadDim, bool kFolded>
struct DecodeShape {
  static constexpr int kStageTokens = 16;
  static constexpr int kStages = kWarpTokens / kStageTokens;
  // Two blocks on a multiprocessor (three when folded): one computes while the others' loads are on
  // their way.
  static constexpr int kBuffers = kHeadDim > 64 ? 2 : 4;
  static constexpr int kPitch = kHeadDim * 2 + 16;  // bytes; rows fall into different banks
  static constexpr int kStageBytes = 2 * kStageTokens * kPitch;
  static constexpr int kLowRow = kFolded ? 8 : kHeadsPerBlock;  // of the low halves of queries
  static constexpr int kQueryBytes = (kFolded ? 1 : 2) * kHeadsPerBlock * kPitch;
  static constexpr int kOffsetBytes = kSplitTokens * 8;
  static constexpr int kSharedBytes = kQueryBytes + kOffsetBytes + kWarps * kBuffers * kStageBytes;
  static_assert(kBuffers * kStageBytes >= kHeadsPerBlock * (kHeadDim + 2) * 4);
};

// q = high + low, both halves: 22 bits of each value.
template <int kHeadDim, bool kFolded>
__device__ void FillQueries(const AttentionArguments& a, const DecodeBlock& block, int head_dim,
                            char* queries) {
  using Shape = DecodeShape<kHeadDim, kFolded>;
  const float* q = a.q + (static_cast<int64_t>(block.row) * a.heads + block.first_head) * head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < Shape::kLowRow * kHeadDim; i += kThreads) {
    const int h = i / kHeadDim;
    const int d = i % kHeadDim;
    const float value =
        h < block.head_count && d < head_dim ? q[static_cast<int64_t>(h) * head_dim + d] : 0.0f;
    const __half high = __float2half_rn(value);
    __half* to = reinterpret_cast<__half*>(queries + h * Shape::kPitch) + d;
    *to = high;
    *(to + Shape::kLowRow * Shape::kPitch / 2) = __float2half_rn(value - __half2float(high));
  }
}

template <int kHeadDim, bool kFolded>
__device__ void IssueStage(const KvView& cache, const DecodeBlock& block, const int64_t* offsets,
                           int first, uint32_t to) {
  using Shape = DecodeShape<kHeadDim, kFolded>;
  constexpr int kChunks = kHeadDim / 8;
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 8
  for (int i = lane; i < Shape::kStageTokens * kChunks; i += 32) {
    const int token = i / kChunks;
    const int chunk = i % kChunks;
    const bool present = first + token < block.positions && chunk * 8 < cache.head_dim;
    const int64_t offset = present ? offsets[first + token] + chunk * 8 : 0;
    const uint32_t place = to + static_cast<uint32_t>(token * Shape::kPitch + chunk * 16);
    CopyAsync(place, static_cast<const __half*>(cache.keys) + offset, present);
    CopyAsync(place + Shape::kStageTokens * Shape::kPitch,
              static_cast<const __half*>(cache.values) + offset, present);
  }
}

// The first loads of a warp that are (not) of older steps: the old ones may be asked for while the
// kernels before this one still run.
template <int kHeadDim, bool kFolded>
__device__ void IssueFirst(const KvView& cache, const DecodeBlock& block, const int64_t* offsets,
                           uint32_t buffers, bool old) {
  using Shape = DecodeShape<kHeadDim, kFolded>;
  const int first = static_cast<int>(threadIdx.x) / 32 * kWarpTokens;
#pragma unroll
  for (int s = 0; s < Shape::kBuffers; ++s) {
    const int begin = first + s * Shape::kStageTokens;
    if ((begin + Shape::kStageTokens <= block.old_positions) != old) continue;
    IssueStage<kHeadDim, kFolded>(cache, block, offsets, begin,
                                  buffers + static_cast<uint32_t>(s * Shape::kStageBytes));
  }
}

// One warp's part of the split: kWarpTokens positions, of which the first are on their way.
template <int kHeadDim, bool kFolded>
__device__ void AttendWarp(const KvView& cache, const AttentionArguments& a,
                           const DecodeBlock& block, const int64_t* offsets, uint32_t queries,
                           uint32_t buffers, SoftmaxState<kHeadDim>& state) {
  using Shape = DecodeShape<kHeadDim, kFolded>;
  constexpr int kTokens = Shape::kStageTokens;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first = static_cast<int>(threadIdx.x) / 32 * kWarpTokens;
  const float scale = a.scale * kLog2E;
#pragma unroll
  for (int s = 0; s < Shape::kStages; ++s) {
    WaitCopies<Shape::kBuffers - 1>();
    __syncwarp();
    const uint32_t keys = buffers + static_cast<uint32_t>(s % Shape::kBuffers * Shape::kStageBytes);
    float scores[kTokens / 8][4] = {};
    AddScores<kHeadDim, kTokens>(scores, queries, keys, Shape::kPitch);
    if constexpr (!kFolded) {
      AddScores<kHeadDim, kTokens>(scores, queries + kHeadsPerBlock * Shape::kPitch, keys,
                                   Shape::kPitch);
    }
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int position = first + s * kTokens + n * 8 + lane % 4 * 2 + j % 2;
        const float score = kFolded && j < 2 ? scores[n][j] + scores[n][j + 2] : scores[n][j];
        const bool present = position < block.positions && (!kFolded || j < 2);
        scores[n][j] = present ? score : -INFINITY;
      }
    }
    state.template Add<kTokens>(scores, scale, keys + kTokens * Shape::kPitch, Shape::kPitch);
    __syncwarp();
    if (s + Shape::kBuffers < Shape::kStages) {
      IssueStage<kHeadDim, kFolded>(cache, block, offsets, first + (s + Shape::kBuffers) * kTokens,
                                    keys);
    }
    CommitCopies();
  }
}

template <int kHeadDim, bool kFolded>
__global__ void __launch_bounds__(kThreads)
    DecodeAttentionKernel(StepView step, KvView cache, AttentionArguments a, int first_row) {
  using Shape = DecodeShape<kHeadDim, kFolded>;
  extern __shared__ __align__(128) char shared[];
  // The step's data came before its first kernel began, and older keys in older steps: neither has
  // to wait for the kernel before this one.
  const DecodeBlock block(step, cache, a.heads, first_row);
  if (block.split >= block.splits) {
    GridDependencyWait();
    return;
  }
  char* queries = shared;
  auto* offsets = reinterpret_cast<int64_t*>(shared + Shape::kQueryBytes);
  char* buffers = shared + Shape::kQueryBytes + Shape::kOffsetBytes;
  char* own =
      buffers + static_cast<size_t>(threadIdx.x) / 32 * Shape::kBuffers * Shape::kStageBytes;
  FillOffsets(step, cache, block, offsets);
  __syncthreads();
  IssueFirst<kHeadDim, kFolded>(cache, block, offsets, SharedAddress(own), /*old=*/true);
  GridDependencyWait();
  GridLaunchDependents();
  IssueFirst<kHeadDim, kFolded>(cache, block, offsets, SharedAddress(own), /*old=*/false);
  // All first loads are one group; empty ones stand for the other buffers.
  for (int s = 0; s < Shape::kBuffers; ++s) CommitCopies();
  FillQueries<kHeadDim, kFolded>(a, block, cache.head_dim, queries);
  __syncthreads();

  SoftmaxState<kHeadDim> state;
  state.Clear();
  AttendWarp<kHeadDim, kFolded>(cache, a, block, offsets, SharedAddress(queries),
                                SharedAddress(own), state);
  state.Finish();
  WaitCopies<0>();
  __syncwarp();
  StoreState(state, reinterpret_cast<float*>(own));
  __syncthreads();
  MergeWarps<kHeadDim, Shape::kBuffers * Shape::kStageBytes>(cache, a, block, step.splits, buffers);
  if (block.splits > 1) {
    Combine(cache, a, block, step.splits);
  }
}

// One position of a head as floats.
template <typename Element>
struct PlainHead {
  const Element* elements;

  __device__ PlainHead(const KvView&, const void* first, int64_t offset, int)
      : elements(static_cast<const Element*>(first) + offset) {}
  __device__ float operator[](int d) const { return static_cast<float>(elements[d]); }
};
// q8_0: as `token` of its block.
struct PlainQ8Head {
  const int8_t* ints;
  const __half* scales;

  __device__ PlainQ8Head(const KvView& cache, const void* first, int64_t offset, int token)
      : ints(static_cast<const int8_t*>(first) + offset),
        scales(reinterpret_cast<const __half*>(ints + Q8ScaleDistance(cache, token))) {}
  __device__ float operator[](int d) const {
    return __half2float(scales[d / kQ8Group]) * static_cast<float>(ints[d]);
  }
};

// Any head width and element type, without tensor cores: one thread per position, then one per
// dimension. For float32 caches, where speed is not asked for.
template <typename Head>
__global__ void __launch_bounds__(kThreads)
    PlainAttentionKernel(StepView step, KvView cache, AttentionArguments a, int first_row) {
  __shared__ int64_t offsets[kSplitTokens];
  __shared__ float weights[kSplitTokens];
  __shared__ float reduced[kWarps];
  GridDependencyWait();
  GridLaunchDependents();
  const DecodeBlock block(step, cache, a.heads, first_row);
  if (block.split >= block.splits) return;
  if constexpr (std::is_same_v<Head, PlainQ8Head>) {
    FillQ8Offsets(step, cache, block, offsets);
  } else {
    FillOffsets(step, cache, block, offsets);
  }
  const auto head_at = [&](const void* first, int i) {
    return Head(
        cache, first, offsets[i],
        std::is_same_v<Head, PlainQ8Head> ? (block.first_position + i) % cache.block_tokens : 0);
  };
  const PartsView parts(a, static_cast<int>(gridDim.z), step.splits, cache.head_dim);
  const int tid = static_cast<int>(threadIdx.x);
  for (int h = 0; h < block.head_count; ++h) {
    const int64_t head = static_cast<int64_t>(block.row) * a.heads + block.first_head + h;
    const float* q = a.q + head * cache.head_dim;
    __syncthreads();
    float max = -INFINITY;
    for (int i = tid; i < block.positions; i += kThreads) {
      const Head key = head_at(cache.keys, i);
      float score = 0;
      for (int d = 0; d < cache.head_dim; ++d) score += q[d] * key[d];
      weights[i] = score * a.scale * kLog2E;
      max = fmaxf(max, weights[i]);
    }
    for (int mask = 16; mask > 0; mask /= 2) {
      max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, mask));
    }
    if (tid % 32 == 0) reduced[tid / 32] = max;
    __syncthreads();
    max = fmaxf(fmaxf(reduced[0], reduced[1]), fmaxf(reduced[2], reduced[3]));
    for (int i = tid; i < block.positions; i += kThreads) weights[i] = exp2f(weights[i] - max);
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < block.positions; ++i) sum += weights[i];
    const int64_t part =
        (static_cast<int64_t>(block.local_row) * a.heads + block.first_head + h) * step.splits +
        block.split;
    for (int d = tid; d < cache.head_dim; d += kThreads) {
      float value = 0;
      for (int i = 0; i < block.positions; ++i) {
        value += weights[i] * head_at(cache.values, i)[d];
      }
      if (block.splits == 1) {
        a.out[head * cache.head_dim + d] = value / sum;
      } else {
        parts.outputs[part * cache.head_dim + d] = value;
      }
    }
    if (block.splits > 1 && tid == 0) parts.states[part] = make_float2(max, sum);
  }
  if (block.splits > 1) {
    Combine(cache, a, block, step.splits);
  }
}

template <int kHeadDim>
DecodeChoice Shaped(bool folded) {
  return folded ? DecodeChoice{DecodeAttentionKernel<kHeadDim, true>,
                               DecodeShape<kHeadDim, true>::kSharedBytes}
                : DecodeChoice{DecodeAttentionKernel<kHeadDim, false>,
                               DecodeShape<kHeadDim, false>::kSharedBytes};
}

DecodeChoice ShapedFor(int head_dim, bool folded) {
  if (head_dim <= 64) return Shaped<64>(folded);
  if (head_dim <= 80) return Shaped<80>(folded);
  if (head_dim <= 96) return Shaped<96>(folded);
  if (head_dim <= 128) return Shaped<128>(folded);
  if (head_dim <= 192) return Shaped<192>(folded);
  return Shaped<256>(folded);
}

DecodeKernel PlainFor(KvElement element) {
  switch (element) {
    case KvElement::kFloat32:
      return PlainAttentionKernel<PlainHead<float>>;
    case KvElement::kFloat16:
      return PlainAttentionKernel<PlainHead<__half>>;
    case KvElement::kBfloat16:
      return PlainAttentionKernel<PlainHead<__nv_bfloat16>>;
    case KvElement::kQ8_0:
      break;
  }
  return PlainAttentionKernel<PlainQ8Head>;
}

bool Fits(const Context& context, const DecodeChoice& choice) {
  return choice.kernel != nullptr &&
         choice.shared_bytes + kStaticSharedBytes <= context.max_shared_bytes;
}

DecodeChoice Choose(const Context& context, const KvView& cache, int group) {
  const DecodeChoice direct = ChooseDirectDecode(cache.element, cache.head_dim, group);
  if (Fits(context, direct)) return direct;
  const bool half = cache.element == KvElement::kFloat16 && cache.head_dim % 8 == 0;
  const DecodeChoice shaped = half ? ShapedFor(cache.head_dim, group <= 8)
                                   : ChooseBf16Decode(cache.element, cache.head_dim);
  return Fits(context, shaped) ? shaped : DecodeChoice{PlainFor(cache.element), 0};
}

// OK too for kernels that the device cannot run.
cudaError_t Allow(const Context& context, const DecodeChoice& choice) {
  if (!Fits(context, choice)) return cudaSuccess;
  return AllowSharedBytes(choice.kernel, static_cast<size_t>(choice.shared_bytes));
}

}  // namespace

size_t AttentionPartFloats(int heads, int head_dim, int splits) {
  return static_cast<size_t>(heads) * static_cast<size_t>(splits) *
         (static_cast<size_t>(head_dim) + 2);
}

int AttentionRowsPerLaunch(size_t parts_bytes, int heads, int head_dim, int splits) {
  const size_t row_bytes = AttentionPartFloats(heads, head_dim, splits) * sizeof(float);
  const size_t rows = parts_bytes / row_bytes;
  return rows < 1 ? 1 : (rows > 65535 ? 65535 : static_cast<int>(rows));
}

int AttentionCounters(int heads) { return heads; }

cudaError_t PrepareDecodeAttention(const Context& context) {
  for (const bool folded : {false, true}) {
    for (const int head_dim : {64, 80, 96, 128, 192, 256}) {
      const cudaError_t error = Allow(context, ShapedFor(head_dim, folded));
      if (error != cudaSuccess) return error;
    }
  }
  for (const KvElement element : {KvElement::kBfloat16, KvElement::kQ8_0}) {
    for (const int head_dim : kBf16HeadDims) {
      const cudaError_t error = Allow(context, ChooseBf16Decode(element, head_dim));
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

cudaError_t LaunchDecodeAttention(const Context& context, const StepView& step, const KvView& cache,
                                  const AttentionArguments& arguments) {
  const int group = arguments.heads / cache.kv_heads;
  const DecodeChoice choice = Choose(context, cache, group);
  const int chunks = (group + kHeadsPerBlock - 1) / kHeadsPerBlock;
  const int per_launch =
      AttentionRowsPerLaunch(arguments.parts_bytes, arguments.heads, cache.head_dim, step.splits);
  for (int first = 0; first < step.decode_count; first += per_launch) {
    const int rows =
        step.decode_count - first < per_launch ? step.decode_count - first : per_launch;
    const dim3 grid(static_cast<unsigned>(cache.kv_heads * chunks),
                    static_cast<unsigned>(step.splits), static_cast<unsigned>(rows));
    const cudaError_t error =
        Launch(context, grid, dim3(kThreads), static_cast<size_t>(choice.shared_bytes),
               choice.kernel, step, cache, arguments, first);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace layercake::kernels::cuda
