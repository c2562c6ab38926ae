// The checks of arguments that every backend of kernels/ops.h makes, with the same words: shapes
// that do not fit each other are refused before anything is computed. What only one backend can
// know (its limits, its memory) it checks itself.
//
// Every function gives OK, or InvalidArgument that names the argument, what it is and what it must
// be. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/ops.h"

namespace layercake::kernels {

// Room for (rows, width) floats in memory of this kind. rows and width are not negative.
absl::Status CheckBuffer(absl::string_view what, const Buffer& buffer, MemorySpace space,
                         int64_t rows, int64_t width);
// The matrix is there and is (n, k).
absl::Status CheckMatrix(absl::string_view what, const Matrix* matrix, int64_t n, int64_t k);
// No vector, or one of `size` values.
absl::Status CheckVector(absl::string_view what, const Vector* vector, int64_t size);

// Every number positive, the head width even; `most_head_dim` 0: any width.
absl::Status CheckKvCacheSpec(const KvCacheSpec& spec, int most_head_dim);
// For messages: "a KV cache of 4 layers, 10 blocks of 16 tokens, 2 kv heads of 64".
std::string KvCacheShape(const KvCacheSpec& spec);

// As many positions and table indices as rows.
absl::Status CheckStepRows(const StepRows& rows);
// Every token in [0, table_rows).
absl::Status CheckTokens(absl::Span<const int32_t> tokens, int64_t table_rows);
// Ops::AttentionInput: norm, matrices, biases, rope and layer fit the cache and each other.
absl::Status CheckAttentionInput(const AttentionWeights& weights, const Rope& rope,
                                 const KvCacheSpec& spec, int layer);
// Ops::Attention.
absl::Status CheckAttention(const KvCacheSpec& spec, int layer, int heads);
// Ops::FfnInput.
absl::Status CheckFfn(const FfnWeights& weights);
// Ops::Logits: no row is negative. The largest one comes out (-1: none).
absl::StatusOr<int32_t> LargestSelected(absl::Span<const int32_t> selected);
// Ops::Sample: rows within `logits`, none twice; seen tokens, mask words and the number of
// log-probabilities (at most kMaxTopLogprobs) as sampling.h says.
absl::Status CheckSampleRequests(const Buffer& logits, MemorySpace space, int64_t vocabulary,
                                 absl::Span<const SampleRequest> requests, size_t results);

}  // namespace layercake::kernels
