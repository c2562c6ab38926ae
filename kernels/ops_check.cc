#include "kernels/ops_check.h"

#include <algorithm>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status_macros.h"

namespace layercake::kernels {
namespace {

template <class... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::string_view SpaceName(MemorySpace space) {
  return space == MemorySpace::kHost ? "host" : "device";
}

absl::Status CheckNorm(absl::string_view what, const Vector* norm) {
  return norm != nullptr ? absl::OkStatus() : Invalid(what, " is missing");
}

absl::Status CheckRope(const Rope& rope, int head_dim) {
  if (rope.rope_dims >= 0 && rope.rope_dims <= head_dim && rope.rope_dims % 2 == 0 &&
      rope.inv_freq.size() == static_cast<size_t>(rope.rope_dims / 2)) {
    return absl::OkStatus();
  }
  return Invalid("rope turns ", rope.rope_dims, " of ", head_dim, " dimensions with ",
                 rope.inv_freq.size(), " frequencies");
}

absl::Status CheckSampleRequest(const SampleRequest& request, int64_t vocabulary) {
  const auto words = static_cast<size_t>((vocabulary + 31) / 32);
  const auto invalid = [&](const auto&... parts) {
    return Invalid("the sample request for logits row ", request.logits_row, " ", parts...);
  };
  if (request.logits_row < 0) return invalid("names no row");
  for (const SeenToken& seen : request.seen) {
    if (seen.token >= 0 && seen.token < vocabulary) continue;
    return invalid("has seen token ", seen.token, " outside a vocabulary of ", vocabulary);
  }
  if (!request.allowed.empty() && request.allowed.size() != words) {
    return invalid("has a mask of ", request.allowed.size(), " words; a vocabulary of ", vocabulary,
                   " takes ", words);
  }
  if (request.top_logprobs > kMaxTopLogprobs) {
    return invalid("wants ", request.top_logprobs, " log-probabilities; at most ", kMaxTopLogprobs,
                   " are reported");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckBuffer(absl::string_view what, const Buffer& buffer, MemorySpace space,
                         int64_t rows, int64_t width) {
  const std::optional<uint64_t> values =
      base::CheckedMul(static_cast<uint64_t>(rows), static_cast<uint64_t>(width));
  const std::optional<uint64_t> needed =
      values ? base::CheckedMul(*values, uint64_t{sizeof(float)}) : std::nullopt;
  if (needed && buffer.space == space && buffer.bytes >= *needed) return absl::OkStatus();
  return Invalid("buffer ", what, " of (", rows, ", ", width, ") floats needs ",
                 needed ? absl::StrCat(*needed) : "2^64 or more", " bytes of ", SpaceName(space),
                 " memory, got ", buffer.bytes, " of ", SpaceName(buffer.space), " memory");
}

absl::Status CheckMatrix(absl::string_view what, const Matrix* matrix, int64_t n, int64_t k) {
  if (matrix == nullptr) return Invalid(what, " is missing");
  if (matrix->n() == n && matrix->k() == k) return absl::OkStatus();
  return Invalid(what, " is (", matrix->n(), ", ", matrix->k(), ") where (", n, ", ", k,
                 ") belongs");
}

absl::Status CheckVector(absl::string_view what, const Vector* vector, int64_t size) {
  if (vector == nullptr || vector->size() == size) return absl::OkStatus();
  return Invalid(what, " has ", vector->size(), " values where ", size, " belong");
}

std::string KvCacheShape(const KvCacheSpec& spec) {
  return absl::StrCat("a KV cache of ", spec.layers, " layers, ", spec.blocks, " blocks of ",
                      spec.block_tokens, " tokens, ", spec.kv_heads, " kv heads of ",
                      spec.head_dim);
}

absl::Status CheckKvCacheSpec(const KvCacheSpec& spec, int most_head_dim) {
  if (spec.layers >= 1 && spec.blocks >= 1 && spec.block_tokens >= 1 && spec.kv_heads >= 1 &&
      spec.head_dim >= 2 && spec.head_dim % 2 == 0 &&
      (most_head_dim == 0 || spec.head_dim <= most_head_dim)) {
    return absl::OkStatus();
  }
  return Invalid(KvCacheShape(spec), ": every number must be positive and the head width even",
                 most_head_dim == 0 ? "" : absl::StrCat(" and at most ", most_head_dim));
}

absl::Status CheckStepRows(const StepRows& rows) {
  const auto count = static_cast<size_t>(std::max(rows.rows, 0));
  if (rows.rows >= 0 && rows.rope_position.size() == count && rows.kv_position.size() == count &&
      rows.table_index.size() == count) {
    return absl::OkStatus();
  }
  return Invalid("a step of ", rows.rows, " rows came with ", rows.rope_position.size(), ", ",
                 rows.kv_position.size(), ", ", rows.table_index.size(),
                 " rope positions, kv positions, table indices");
}

absl::Status CheckTokens(absl::Span<const int32_t> tokens, int64_t table_rows) {
  for (const int32_t token : tokens) {
    if (token >= 0 && token < table_rows) continue;
    return Invalid("token ", token, " is outside the embedding's ", table_rows, " rows");
  }
  return absl::OkStatus();
}

absl::Status CheckAttentionInput(const AttentionWeights& weights, const Rope& rope,
                                 const KvCacheSpec& spec, int layer) {
  LC_RETURN_IF_ERROR(CheckNorm("the attention norm", weights.norm));
  const int64_t hidden = weights.norm->size();
  const int64_t kv_width = int64_t{spec.kv_heads} * spec.head_dim;
  const int64_t q_width = weights.wq != nullptr ? weights.wq->n() : 0;
  LC_RETURN_IF_ERROR(CheckMatrix("wq", weights.wq, q_width, hidden));
  LC_RETURN_IF_ERROR(CheckMatrix("wk", weights.wk, kv_width, hidden));
  LC_RETURN_IF_ERROR(CheckMatrix("wv", weights.wv, kv_width, hidden));
  LC_RETURN_IF_ERROR(CheckVector("bq", weights.bq, q_width));
  LC_RETURN_IF_ERROR(CheckVector("bk", weights.bk, kv_width));
  LC_RETURN_IF_ERROR(CheckVector("bv", weights.bv, kv_width));
  LC_RETURN_IF_ERROR(CheckVector("q_norm", weights.q_norm, spec.head_dim));
  LC_RETURN_IF_ERROR(CheckVector("k_norm", weights.k_norm, spec.head_dim));
  if (q_width % kv_width != 0 || layer < 0 || layer >= spec.layers) {
    return Invalid("wq gives ", q_width, " values on ", spec.kv_heads, " kv heads of ",
                   spec.head_dim, ", layer ", layer, " of ", spec.layers);
  }
  return CheckRope(rope, spec.head_dim);
}

absl::Status CheckAttention(const KvCacheSpec& spec, int layer, int heads) {
  if (heads >= 1 && heads % spec.kv_heads == 0 && layer >= 0 && layer < spec.layers) {
    return absl::OkStatus();
  }
  return Invalid("attention of ", heads, " heads over ", spec.kv_heads, " kv heads, layer ", layer,
                 " of ", spec.layers);
}

absl::Status CheckFfn(const FfnWeights& weights) {
  LC_RETURN_IF_ERROR(CheckNorm("the ffn norm", weights.norm));
  const int64_t hidden = weights.norm->size();
  const int64_t ffn = weights.gate != nullptr ? weights.gate->n() : 0;
  LC_RETURN_IF_ERROR(CheckMatrix("gate", weights.gate, ffn, hidden));
  LC_RETURN_IF_ERROR(CheckMatrix("up", weights.up, ffn, hidden));
  LC_RETURN_IF_ERROR(CheckVector("the gate's bias", weights.gate_bias, ffn));
  return CheckVector("up's bias", weights.up_bias, ffn);
}

absl::StatusOr<int32_t> LargestSelected(absl::Span<const int32_t> selected) {
  int32_t largest = -1;
  for (const int32_t row : selected) {
    if (row < 0) return Invalid("selected row ", row);
    largest = std::max(largest, row);
  }
  return largest;
}

absl::Status CheckSampleRequests(const Buffer& logits, MemorySpace space, int64_t vocabulary,
                                 absl::Span<const SampleRequest> requests, size_t results) {
  if (vocabulary < 1 || requests.size() != results) {
    return Invalid(requests.size(), " sample requests with room for ", results,
                   " results over a vocabulary of ", vocabulary);
  }
  // Rows mostly ascend, and a set is not built for nothing once per step.
  const bool ascending = std::adjacent_find(requests.begin(), requests.end(),
                                            [](const SampleRequest& a, const SampleRequest& b) {
                                              return a.logits_row >= b.logits_row;
                                            }) == requests.end();
  absl::flat_hash_set<int32_t> rows;
  for (const SampleRequest& request : requests) {
    LC_RETURN_IF_ERROR(CheckSampleRequest(request, vocabulary));
    LC_RETURN_IF_ERROR(
        CheckBuffer("logits", logits, space, int64_t{request.logits_row} + 1, vocabulary));
    if (!ascending && !rows.insert(request.logits_row).second) {
      return Invalid("logits row ", request.logits_row, " is sampled twice");
    }
  }
  return absl::OkStatus();
}

}  // namespace layercake::kernels
