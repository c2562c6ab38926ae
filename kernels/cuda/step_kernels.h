// The small kernels between the products. Each is one launch on the context's stream and waits for
// nothing; results of a row depend on that row alone.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/step_view.h"

namespace layercake::kernels::cuda {

// table (rows, pairs, 2): cosine and sine of position * inv_freq[pair] in double, each times
// magnitude.
cudaError_t LaunchRopeTable(const Context& context, const StepView& step, const float* inv_freq,
                            int pairs, float magnitude, float2* table);

struct RopeCacheArguments {
  float* q = nullptr;        // (rows, heads * head_dim), in place
  const float* k = nullptr;  // (rows, kv_heads * head_dim)
  const float* v = nullptr;
  const float* q_bias = nullptr;  // (heads * head_dim) or null; (kv_heads * head_dim) the others
  const float* k_bias = nullptr;
  const float* v_bias = nullptr;
  int heads = 0;
  const float* q_norm = nullptr;  // (head_dim) or null
  const float* k_norm = nullptr;
  float norm_eps = 0;
  const float2* table = nullptr;  // (rows, pairs)
  int pairs = 0;
  bool adjacent = false;  // pairs (2j, 2j + 1), else (j, j + pairs)
};
// Biases are added first; then q = rope(norm(q)), and rope(norm(k)) and v go to each row's place in
// the cache. One warp per head;
// head_dim at most kMaxHeadDim.
inline constexpr int kMaxHeadDim = 256;
cudaError_t LaunchRopeCache(const Context& context, const StepView& step, const KvView& cache,
                            const RopeCacheArguments& arguments);

// gate = silu(gate) * up over `count` values.
cudaError_t LaunchSwiglu(const Context& context, float* gate, const float* up, int64_t count);

// flags[r] = 1 when row r of x (rows, width) holds a NaN or an infinity, else 0.
cudaError_t LaunchFindNonFinite(const Context& context, const float* x, int rows, int64_t width,
                                uint8_t* flags);

// out[i] = x[selected[i]], rows of `width` floats, width % 4 == 0 or not.
cudaError_t LaunchGatherRows(const Context& context, const float* x, const int32_t* selected,
                             int count, int64_t width, float* out);

}  // namespace layercake::kernels::cuda
