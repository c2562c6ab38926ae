#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/attention_tile.cuh"

namespace layercake::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kWarpTokens = kSplitTokens / kWarps;
// Beside the dynamic shared memory of the tensor core kernels; with room to spare.
constexpr int kStaticSharedBytes = 256;
constexpr float kLog2E = 1.4426950408889634f;

struct DecodeBlock {
  int row;        // of the step
  int local_row;  // of the launch
  int split;
  int splits;  // of this row
  int kv_head;
  int first_head;
  int head_count;
  int first_position;
  int positions;      // of this split
  int old_positions;  // of which so many are older than this step

  __device__ DecodeBlock(const StepView& step, const KvView& cache, int heads, int first_row) {
    const int group = heads / cache.kv_heads;
    const int chunks = (group + kHeadsPerBlock - 1) / kHeadsPerBlock;
    split = static_cast<int>(blockIdx.x);
    kv_head = static_cast<int>(blockIdx.y) / chunks;
    const int chunk = static_cast<int>(blockIdx.y) % chunks;
    first_head = kv_head * group + chunk * kHeadsPerBlock;
    head_count = min(kHeadsPerBlock, group - chunk * kHeadsPerBlock);
    local_row = static_cast<int>(blockIdx.z);
    row = step.decode_rows[first_row + local_row];
    const int length = step.kv_position[row] + 1;
    splits = (length + kSplitTokens - 1) / kSplitTokens;
    first_position = split * kSplitTokens;
    positions = min(kSplitTokens, length - first_position);
    old_positions = min(positions, step.old_positions[row] - first_position);
  }
};

// Element offsets of the split's positions of one kv head into keys and values.
__device__ void FillOffsets(const StepView& step, const KvView& cache, const DecodeBlock& block,
                            int64_t* offsets) {
  const int32_t* table =
      step.tables + static_cast<int64_t>(step.table_index[block.row]) * step.table_stride;
  for (int i = static_cast<int>(threadIdx.x); i < block.positions; i += kThreads) {
    const int position = block.first_position + i;
    const int64_t id = table[position / cache.block_tokens];
    offsets[i] = ((id * cache.kv_heads + block.kv_head) * cache.block_tokens +
                  position % cache.block_tokens) *
                 cache.head_dim;
  }
}

// After the parts of this block's heads are written: the last block of the row adds them up.
__device__ void Combine(const KvView& cache, const AttentionArguments& a, const DecodeBlock& block,
                        int splits_bound, float* weights, int capacity) {
  const PartsView parts(a, static_cast<int>(gridDim.z), splits_bound, cache.head_dim);
  int32_t* counter = a.counters + block.local_row * static_cast<int>(gridDim.y) + blockIdx.y;
  if (!ArriveLast(counter, block.splits)) return;
  const int64_t head =
      (static_cast<int64_t>(block.local_row) * a.heads + block.first_head) * splits_bound;
  CombineHeads(
      parts.outputs + head * cache.head_dim, parts.states + head, block.head_count, splits_bound,
      block.splits, cache.head_dim, weights, capacity,
      a.out + (static_cast<int64_t>(block.row) * a.heads + block.first_head) * cache.head_dim);
}

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

// Adds up the four warps' states, in order, into the split's part or, alone, into the result.
template <int kHeadDim, bool kFolded>
__device__ void MergeWarps(const KvView& cache, const AttentionArguments& a,
                           const DecodeBlock& block, int splits_bound, const char* states) {
  using Shape = DecodeShape<kHeadDim, kFolded>;
  const PartsView parts(a, static_cast<int>(gridDim.z), splits_bound, cache.head_dim);
  for (int i = static_cast<int>(threadIdx.x); i < block.head_count * cache.head_dim;
       i += kThreads) {
    const int h = i / cache.head_dim;
    const int d = i % cache.head_dim;
    float max = -INFINITY;
    for (int w = 0; w < kWarps; ++w) {
      const auto* state = reinterpret_cast<const float*>(
          states + static_cast<size_t>(w) * Shape::kBuffers * Shape::kStageBytes);
      max = fmaxf(max, state[kHeadsPerBlock * kHeadDim + h]);
    }
    float value = 0;
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) {
      const auto* state = reinterpret_cast<const float*>(
          states + static_cast<size_t>(w) * Shape::kBuffers * Shape::kStageBytes);
      const float factor = exp2f(state[kHeadsPerBlock * kHeadDim + h] - max);
      value += factor * state[h * kHeadDim + d];
      sum += factor * state[kHeadsPerBlock * (kHeadDim + 1) + h];
    }
    if (block.splits == 1) {
      a.out[(static_cast<int64_t>(block.row) * a.heads + block.first_head + h) * cache.head_dim +
            d] = value / sum;
      continue;
    }
    const int64_t part =
        (static_cast<int64_t>(block.local_row) * a.heads + block.first_head + h) * splits_bound +
        block.split;
    parts.outputs[part * cache.head_dim + d] = value;
    if (d == 0) parts.states[part] = make_float2(max, sum);
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

  const int lane = static_cast<int>(threadIdx.x % 32);
  SoftmaxState<kHeadDim> state;
  state.Clear();
  AttendWarp<kHeadDim, kFolded>(cache, a, block, offsets, SharedAddress(queries),
                                SharedAddress(own), state);
  state.Finish();
  WaitCopies<0>();
  __syncwarp();
  auto* out = reinterpret_cast<float*>(own);
#pragma unroll
  for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      out[(lane / 4 + j / 2 * 8) * kHeadDim + n * 8 + lane % 4 * 2 + j % 2] = state.out[n][j];
    }
  }
  if (lane % 4 == 0) {
    for (int h = 0; h < 2; ++h) {
      out[kHeadsPerBlock * kHeadDim + lane / 4 + h * 8] = state.max[h];
      out[kHeadsPerBlock * (kHeadDim + 1) + lane / 4 + h * 8] = state.sum[h];
    }
  }
  __syncthreads();
  MergeWarps<kHeadDim, kFolded>(cache, a, block, step.splits, buffers);
  if (block.splits > 1) {
    Combine(cache, a, block, step.splits, reinterpret_cast<float*>(shared + Shape::kQueryBytes),
            (Shape::kSharedBytes - Shape::kQueryBytes) / 4);
  }
}

// Any head width and element type, without tensor cores: one thread per position, then one per
// dimension. For float32 caches, where speed is not asked for.
template <typename Element>
__global__ void __launch_bounds__(kThreads)
    PlainAttentionKernel(StepView step, KvView cache, AttentionArguments a, int first_row) {
  extern __shared__ __align__(128) char shared[];
  __shared__ int64_t offsets[kSplitTokens];
  __shared__ float weights[kSplitTokens];
  __shared__ float reduced[kWarps];
  GridDependencyWait();
  GridLaunchDependents();
  const DecodeBlock block(step, cache, a.heads, first_row);
  if (block.split >= block.splits) return;
  FillOffsets(step, cache, block, offsets);
  const PartsView parts(a, static_cast<int>(gridDim.z), step.splits, cache.head_dim);
  const int tid = static_cast<int>(threadIdx.x);
  for (int h = 0; h < block.head_count; ++h) {
    const int64_t head = static_cast<int64_t>(block.row) * a.heads + block.first_head + h;
    const float* q = a.q + head * cache.head_dim;
    __syncthreads();
    float max = -INFINITY;
    for (int i = tid; i < block.positions; i += kThreads) {
      const Element* key = static_cast<const Element*>(cache.keys) + offsets[i];
      float score = 0;
      for (int d = 0; d < cache.head_dim; ++d) score += q[d] * static_cast<float>(key[d]);
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
        value += weights[i] *
                 static_cast<float>(static_cast<const Element*>(cache.values)[offsets[i] + d]);
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
    Combine(cache, a, block, step.splits, reinterpret_cast<float*>(shared), step.splits);
  }
}

using Kernel = void (*)(StepView, KvView, AttentionArguments, int);
struct Choice {
  Kernel kernel;
  int shared_bytes;
};

template <int kHeadDim>
Choice Shaped(bool folded) {
  return folded ? Choice{DecodeAttentionKernel<kHeadDim, true>,
                         DecodeShape<kHeadDim, true>::kSharedBytes}
                : Choice{DecodeAttentionKernel<kHeadDim, false>,
                         DecodeShape<kHeadDim, false>::kSharedBytes};
}

Choice ShapedFor(int head_dim, bool folded) {
  if (head_dim <= 64) return Shaped<64>(folded);
  if (head_dim <= 80) return Shaped<80>(folded);
  if (head_dim <= 96) return Shaped<96>(folded);
  if (head_dim <= 128) return Shaped<128>(folded);
  if (head_dim <= 192) return Shaped<192>(folded);
  return Shaped<256>(folded);
}

Choice Choose(const Context& context, const KvView& cache, int group, int splits) {
  const Choice plain = {cache.half ? PlainAttentionKernel<__half> : PlainAttentionKernel<float>,
                        splits * 4};
  if (!cache.half || cache.head_dim % 8 != 0) return plain;
  const Choice shaped = ShapedFor(cache.head_dim, group <= 8);
  return shaped.shared_bytes + kStaticSharedBytes <= context.max_shared_bytes ? shaped : plain;
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
      const Choice choice = ShapedFor(head_dim, folded);
      if (choice.shared_bytes + kStaticSharedBytes > context.max_shared_bytes) continue;
      const cudaError_t error =
          AllowSharedBytes(choice.kernel, static_cast<size_t>(choice.shared_bytes));
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

cudaError_t LaunchDecodeAttention(const Context& context, const StepView& step, const KvView& cache,
                                  const AttentionArguments& arguments) {
  const int group = arguments.heads / cache.kv_heads;
  const Choice choice = Choose(context, cache, group, step.splits);
  const int chunks = (group + kHeadsPerBlock - 1) / kHeadsPerBlock;
  const int per_launch =
      AttentionRowsPerLaunch(arguments.parts_bytes, arguments.heads, cache.head_dim, step.splits);
  for (int first = 0; first < step.decode_count; first += per_launch) {
    const int rows =
        step.decode_count - first < per_launch ? step.decode_count - first : per_launch;
    const dim3 grid(static_cast<unsigned>(step.splits),
                    static_cast<unsigned>(cache.kv_heads * chunks), static_cast<unsigned>(rows));
    const cudaError_t error =
        Launch(context, grid, dim3(kThreads), static_cast<size_t>(choice.shared_bytes),
               choice.kernel, step, cache, arguments, first);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace layercake::kernels::cuda
