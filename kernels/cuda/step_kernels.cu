#include <cuda_fp16.h>

#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/step_kernels.h"

namespace layercake::kernels::cuda {
namespace {

constexpr int kWarpsPerBlock = 4;

__global__ void RopeTableKernel(StepView step, const float* inv_freq, int pairs, float magnitude,
                                float2* table) {
  GridDependencyWait();
  GridLaunchDependents();
  const int row = blockIdx.x;
  const double position = step.rope_position[row];
  for (int j = threadIdx.x; j < pairs; j += blockDim.x) {
    double sine = 0;
    double cosine = 0;
    sincos(position * static_cast<double>(inv_freq[j]), &sine, &cosine);
    table[static_cast<int64_t>(row) * pairs + j] =
        make_float2(static_cast<float>(cosine * magnitude), static_cast<float>(sine * magnitude));
  }
}

// A lane's turns: pairs lane, lane + 32 and so on.
constexpr int kLanePairs = kMaxHeadDim / 2 / 32;
struct LaneTurns {
  float2 turn[kLanePairs];
};
__device__ __forceinline__ LaneTurns ReadTurns(const float2* table, int pairs) {
  LaneTurns turns;
#pragma unroll
  for (int i = 0; i < kLanePairs; ++i) {
    const int j = static_cast<int>(threadIdx.x) % 32 + 32 * i;
    turns.turn[i] = j < pairs ? table[j] : make_float2(1, 0);
  }
  return turns;
}

// The head in `values` (head_dim floats of shared memory of this warp): norm, then rope.
__device__ __forceinline__ void NormAndTurn(float* values, int head_dim, const float* norm,
                                            float eps, const LaneTurns& turns, int pairs,
                                            bool adjacent) {
  const int lane = threadIdx.x % 32;
  if (norm != nullptr) {
    float sum = 0;
    for (int i = lane; i < head_dim; i += 32) sum += values[i] * values[i];
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    const float factor = 1.0f / sqrtf(sum / static_cast<float>(head_dim) + eps);
    for (int i = lane; i < head_dim; i += 32) values[i] *= factor * norm[i];
    __syncwarp();
  }
#pragma unroll
  for (int i = 0; i < kLanePairs; ++i) {
    const int j = lane + 32 * i;
    if (j >= pairs) continue;
    const int a = adjacent ? 2 * j : j;
    const int b = adjacent ? 2 * j + 1 : j + pairs;
    const float2 turn = turns.turn[i];
    const float x = values[a];
    const float y = values[b];
    values[a] = x * turn.x - y * turn.y;
    values[b] = x * turn.y + y * turn.x;
  }
  __syncwarp();
}

// head_dim values of `from` to `values`, plus those of `bias` unless it is null. Four at a time
// where addresses allow it: a loop of single values would wait for each before it asks for the
// next.
__device__ __forceinline__ void ReadHead(const float* from, const float* bias, int head_dim,
                                         bool vectors, float* values) {
  const int lane = threadIdx.x % 32;
  if (!vectors) {
    for (int i = lane; i < head_dim; i += 32) {
      values[i] = from[i] + (bias == nullptr ? 0.0f : bias[i]);
    }
    return;
  }
  for (int i = 4 * lane; i < head_dim; i += 128) {
    float4 four = *reinterpret_cast<const float4*>(from + i);
    if (bias != nullptr) {
      const float4 more = *reinterpret_cast<const float4*>(bias + i);
      four = make_float4(four.x + more.x, four.y + more.y, four.z + more.z, four.w + more.w);
    }
    *reinterpret_cast<float4*>(values + i) = four;
  }
}

__device__ __forceinline__ void StoreFloats(const float* values, int head_dim, bool vectors,
                                            float* to) {
  const int lane = threadIdx.x % 32;
  if (vectors) {
    for (int i = 4 * lane; i < head_dim; i += 128) {
      *reinterpret_cast<float4*>(to + i) = *reinterpret_cast<const float4*>(values + i);
    }
    return;
  }
  for (int i = lane; i < head_dim; i += 32) to[i] = values[i];
}

// As 16-bit floats made by `stored`.
template <typename Stored>
__device__ __forceinline__ void StoreHalves(const float* values, int head_dim, uint16_t* to,
                                            const Stored& stored) {
  const int lane = threadIdx.x % 32;
  if (head_dim % 4 == 0 && reinterpret_cast<uintptr_t>(to) % 8 == 0) {
    for (int i = 4 * lane; i < head_dim; i += 128) {
      const float4 four = *reinterpret_cast<const float4*>(values + i);
      *reinterpret_cast<uint2*>(to + i) =
          make_uint2(stored(four.x) | static_cast<uint32_t>(stored(four.y)) << 16,
                     stored(four.z) | static_cast<uint32_t>(stored(four.w)) << 16);
    }
    return;
  }
  for (int i = lane; i < head_dim; i += 32) to[i] = stored(values[i]);
}

__device__ __forceinline__ bool HasVectors(const void* address, int head_dim) {
  return head_dim % 4 == 0 && reinterpret_cast<uintptr_t>(address) % 16 == 0;
}

// One warp per head: the q heads, then the k heads, then the v heads of a row. A key or value goes
// to store(values, is_key, kv_head, block, token of the block).
template <typename Store>
__device__ __forceinline__ void TurnHead(const StepView& step, const KvView& cache,
                                         const RopeCacheArguments& a, const Store& store) {
  __shared__ __align__(16) float head_values[kWarpsPerBlock][kMaxHeadDim];
  GridDependencyWait();
  GridLaunchDependents();
  const int row = blockIdx.y;
  const int warp = threadIdx.x / 32;
  const int head = blockIdx.x * kWarpsPerBlock + warp;
  const int head_dim = cache.head_dim;
  if (head >= a.heads + 2 * cache.kv_heads) return;
  float* values = head_values[warp];
  const bool is_q = head < a.heads;
  const bool is_k = !is_q && head < a.heads + cache.kv_heads;
  const int kv_head = is_k ? head - a.heads : head - a.heads - cache.kv_heads;
  const int64_t in_row = static_cast<int64_t>(is_q ? head : kv_head) * head_dim;
  const int64_t row_width = static_cast<int64_t>(is_q ? a.heads : cache.kv_heads) * head_dim;
  const float* from = (is_q ? a.q : is_k ? a.k : a.v) + row * row_width + in_row;
  const float* bias = is_q ? a.q_bias : is_k ? a.k_bias : a.v_bias;
  if (bias != nullptr) bias += in_row;
  const LaneTurns turns =
      ReadTurns(a.table + static_cast<int64_t>(row) * a.pairs, is_q || is_k ? a.pairs : 0);
  const bool vectors = HasVectors(from, head_dim) && HasVectors(bias, head_dim);
  ReadHead(from, bias, head_dim, vectors, values);
  __syncwarp();
  if (is_q) {
    NormAndTurn(values, head_dim, a.q_norm, a.norm_eps, turns, a.pairs, a.adjacent);
    StoreFloats(values, head_dim, vectors, a.q + row * row_width + in_row);
    return;
  }
  if (is_k) NormAndTurn(values, head_dim, a.k_norm, a.norm_eps, turns, a.pairs, a.adjacent);
  const int position = step.kv_position[row];
  const int32_t* blocks =
      step.tables + static_cast<int64_t>(step.table_index[row]) * step.table_stride;
  const int64_t block = blocks[position / cache.block_tokens];
  store(values, is_k, kv_head, block, position % cache.block_tokens);
}

__global__ void RopeCacheKernel(StepView step, KvView cache, RopeCacheArguments a) {
  TurnHead(step, cache, a,
           [&](const float* values, bool is_key, int kv_head, int64_t block, int token) {
             const int64_t place =
                 ((block * cache.kv_heads + kv_head) * cache.block_tokens + token) * cache.head_dim;
             char* base = static_cast<char*>(is_key ? cache.keys : cache.values);
             if (cache.element == KvElement::kFloat16) {
               StoreHalves(values, cache.head_dim, reinterpret_cast<uint16_t*>(base) + place,
                           [](float value) { return HalfStored(value); });
             } else {
               float* const to = reinterpret_cast<float*>(base) + place;
               StoreFloats(values, cache.head_dim, HasVectors(to, cache.head_dim), to);
             }
           });
}

__global__ void RopeCacheBf16Kernel(StepView step, KvView cache, RopeCacheArguments a) {
  TurnHead(step, cache, a,
           [&](const float* values, bool is_key, int kv_head, int64_t block, int token) {
             const int64_t place =
                 ((block * cache.kv_heads + kv_head) * cache.block_tokens + token) * cache.head_dim;
             auto* to = static_cast<uint16_t*>(is_key ? cache.keys : cache.values) + place;
             StoreHalves(values, cache.head_dim, to,
                         [](float value) { return Bf16Stored(__float_as_uint(value)); });
           });
}

// A lane has one value of each group.
__global__ void RopeCacheQ8Kernel(StepView step, KvView cache, RopeCacheArguments a) {
  TurnHead(step, cache, a,
           [&](const float* values, bool is_key, int kv_head, int64_t block, int token) {
             const int lane = threadIdx.x % 32;
             auto* ints = static_cast<int8_t*>(is_key ? cache.keys : cache.values) +
                          Q8ValueOffset(cache, block, kv_head, token);
             auto* scales = reinterpret_cast<uint16_t*>(ints + Q8ScaleDistance(cache, token));
             for (int first = 0; first < cache.head_dim; first += kQ8Group) {
               const float value = first + lane < cache.head_dim ? values[first + lane] : 0.0f;
               const uint32_t largest =
                   __reduce_max_sync(0xffffffffu, __float_as_uint(value) & 0x7fffffffu);
               const Q8Scale scale = Q8ScaleOf(largest, __uint_as_float(largest));
               ints[first + lane] = Q8Value(value, scale.inverse);
               if (lane == 0) scales[first / kQ8Group] = scale.half;
             }
           });
}

__global__ void SwigluKernel(float* gate, const float* up, int64_t count) {
  GridDependencyWait();
  GridLaunchDependents();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float z = gate[i];
  gate[i] = z / (1.0f + expf(-z)) * up[i];
}

__global__ void FindNonFiniteKernel(const float* x, int64_t width, uint8_t* flags) {
  GridDependencyWait();
  GridLaunchDependents();
  const float* row = x + static_cast<int64_t>(blockIdx.x) * width;
  bool found = false;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) found |= !isfinite(row[i]);
  const int any = __syncthreads_or(found ? 1 : 0);
  if (threadIdx.x == 0) flags[blockIdx.x] = any != 0 ? 1 : 0;
}

__global__ void GatherRowsKernel(const float* x, const int32_t* selected, int64_t width,
                                 float* out) {
  GridDependencyWait();
  GridLaunchDependents();
  const int64_t from = selected[blockIdx.x];
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    out[static_cast<int64_t>(blockIdx.x) * width + i] = x[from * width + i];
  }
}

}  // namespace

cudaError_t LaunchRopeTable(const Context& context, const StepView& step, const float* inv_freq,
                            int pairs, float magnitude, float2* table) {
  return Launch(context, dim3(static_cast<unsigned>(step.rows)), dim3(64), 0, RopeTableKernel, step,
                inv_freq, pairs, magnitude, table);
}

cudaError_t LaunchRopeCache(const Context& context, const StepView& step, const KvView& cache,
                            const RopeCacheArguments& arguments) {
  const int heads = arguments.heads + 2 * cache.kv_heads;
  const dim3 grid(static_cast<unsigned>((heads + kWarpsPerBlock - 1) / kWarpsPerBlock),
                  static_cast<unsigned>(step.rows));
  const auto kernel = cache.element == KvElement::kBfloat16 ? RopeCacheBf16Kernel
                      : cache.element == KvElement::kQ8_0   ? RopeCacheQ8Kernel
                                                            : RopeCacheKernel;
  return Launch(context, grid, dim3(32 * kWarpsPerBlock), 0, kernel, step, cache, arguments);
}

cudaError_t LaunchSwiglu(const Context& context, float* gate, const float* up, int64_t count) {
  return Launch(context, dim3(static_cast<unsigned>((count + 255) / 256)), dim3(256), 0,
                SwigluKernel, gate, up, count);
}

cudaError_t LaunchFindNonFinite(const Context& context, const float* x, int rows, int64_t width,
                                uint8_t* flags) {
  return Launch(context, dim3(static_cast<unsigned>(rows)), dim3(256), 0, FindNonFiniteKernel, x,
                width, flags);
}

cudaError_t LaunchGatherRows(const Context& context, const float* x, const int32_t* selected,
                             int count, int64_t width, float* out) {
  return Launch(context, dim3(static_cast<unsigned>(count)), dim3(256), 0, GatherRowsKernel, x,
                selected, width, out);
}

}  // namespace layercake::kernels::cuda
