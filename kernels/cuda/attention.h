// Attention of the rows of a step over the paged cache.
//
// Rows of StepView::decode_rows: one block per row, kv head and kSplitTokens positions; the block
// that ends last adds the parts up in ascending order. A row's bits depend on its own query, keys
// and values only. Rows of StepView::tiles: tiles of query rows walk over the keys (prefill).
// Float16 caches go through the tensor cores: products of float16 (decode: with the query in two
// halves, tiles: rounded once), sums in float32, probabilities rounded to float16. Against the
// exact result that is a relative error near 2e-4 (measured by attention_test). bf16 and q8_0
// caches go there as bf16, with queries and probabilities in two halves everywhere, so that only
// those are rounded, to 16 bits (attention_bf16.cuh).
#pragma once

#include <cstddef>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/step_view.h"

namespace layercake::kernels::cuda {

struct AttentionArguments {
  const float* q = nullptr;  // (rows, heads * head_dim)
  float* out = nullptr;      // (rows, heads * head_dim)
  int heads = 0;
  float scale = 0;  // on q k: 1 / sqrt(head_dim)
  // Scratch of the decode rows: parts and counters (AttentionScratch).
  float* parts = nullptr;
  size_t parts_bytes = 0;
  int32_t* counters = nullptr;  // zero before and after
};

// Floats that the parts of one row take: per split and head an output, a maximum and a sum.
size_t AttentionPartFloats(int heads, int head_dim, int splits);
// How many rows share one launch so that their parts fit.
int AttentionRowsPerLaunch(size_t parts_bytes, int heads, int head_dim, int splits);
// Counters of one row (of one launch).
int AttentionCounters(int heads);

// Raise shared memory limits, of the kernels that fit the device; once per device. The first does
// both.
cudaError_t PrepareAttention(const Context& context);
cudaError_t PrepareDecodeAttention(const Context& context);
// Takes every cache. Where a head is too wide for the device's shared memory (over 128 on cards
// with 99 KB), without tensor cores and slowly.
cudaError_t LaunchDecodeAttention(const Context& context, const StepView& step, const KvView& cache,
                                  const AttentionArguments& arguments);
// For caches of TiledAttentionTakes.
cudaError_t LaunchTiledAttention(const Context& context, const StepView& step, const KvView& cache,
                                 const AttentionArguments& arguments);
// Whether a tiled kernel takes such a cache (not float32; float16 and bf16 with head_dim a multiple
// of 8; within the device's shared memory) and so many query heads; the decode kernels take all.
bool TiledAttentionTakes(const Context& context, const KvView& cache, int heads);
// Query rows of one tile: rows of one sequence times query heads of one kv head are packed into it.
int RowsPerTile(int heads, int kv_heads);

}  // namespace layercake::kernels::cuda
