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

// The head in `values` (head_dim floats of shared memory of this warp): norm, then rope.
__device__ void NormAndTurn(float* values, int head_dim, const float* norm, float eps,
                            const float2* table, int pairs, bool adjacent) {
  const int lane = threadIdx.x % 32;
  if (norm != nullptr) {
    float sum = 0;
    for (int i = lane; i < head_dim; i += 32) sum += values[i] * values[i];
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    const float factor = 1.0f / sqrtf(sum / static_cast<float>(head_dim) + eps);
    for (int i = lane; i < head_dim; i += 32) values[i] *= factor * norm[i];
    __syncwarp();
  }
  for (int j = lane; j < pairs; j += 32) {
    const int a = adjacent ? 2 * j : j;
    const int b = adjacent ? 2 * j + 1 : j + pairs;
    const float2 turn = table[j];
    const float x = values[a];
    const float y = values[b];
    values[a] = x * turn.x - y * turn.y;
    values[b] = x * turn.y + y * turn.x;
  }
  __syncwarp();
}

__device__ void StoreHead(const float* values, int head_dim, bool half, void* to) {
  const int lane = threadIdx.x % 32;
  for (int i = lane; i < head_dim; i += 32) {
    if (half) {
      static_cast<uint16_t*>(to)[i] = HalfStored(values[i]);
    } else {
      static_cast<float*>(to)[i] = values[i];
    }
  }
}

// One warp per head: the q heads, then the k heads, then the v heads of a row. A key or value goes
// to store(values, is_key, kv_head, block, token of the block).
template <typename Store>
__device__ __forceinline__ void TurnHead(const StepView& step, const KvView& cache,
                                         const RopeCacheArguments& a, const Store& store) {
  __shared__ float head_values[kWarpsPerBlock][kMaxHeadDim];
  GridDependencyWait();
  GridLaunchDependents();
  const int row = blockIdx.y;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int head = blockIdx.x * kWarpsPerBlock + warp;
  const int head_dim = cache.head_dim;
  if (head >= a.heads + 2 * cache.kv_heads) return;
  float* values = head_values[warp];
  const bool is_q = head < a.heads;
  const bool is_k = !is_q && head < a.heads + cache.kv_heads;
  const int kv_head = is_k ? head - a.heads : head - a.heads - cache.kv_heads;
  const float* from =
      is_q ? a.q + (static_cast<int64_t>(row) * a.heads + head) * head_dim
           : (is_k ? a.k : a.v) + (static_cast<int64_t>(row) * cache.kv_heads + kv_head) * head_dim;
  for (int i = lane; i < head_dim; i += 32) values[i] = from[i];
  __syncwarp();
  const float2* table = a.table + static_cast<int64_t>(row) * a.pairs;
  if (is_q) {
    NormAndTurn(values, head_dim, a.q_norm, a.norm_eps, table, a.pairs, a.adjacent);
    StoreHead(values, head_dim, false,
              a.q + (static_cast<int64_t>(row) * a.heads + head) * head_dim);
    return;
  }
  if (is_k) NormAndTurn(values, head_dim, a.k_norm, a.norm_eps, table, a.pairs, a.adjacent);
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
             const bool half = cache.element == KvElement::kFloat16;
             StoreHead(values, cache.head_dim, half, base + place * (half ? 2 : 4));
           });
}

__global__ void RopeCacheBf16Kernel(StepView step, KvView cache, RopeCacheArguments a) {
  TurnHead(step, cache, a,
           [&](const float* values, bool is_key, int kv_head, int64_t block, int token) {
             const int64_t place =
                 ((block * cache.kv_heads + kv_head) * cache.block_tokens + token) * cache.head_dim;
             auto* to = static_cast<uint16_t*>(is_key ? cache.keys : cache.values) + place;
             for (int i = threadIdx.x % 32; i < cache.head_dim; i += 32) {
               to[i] = Bf16Stored(__float_as_uint(values[i]));
             }
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
