#include "stage_worker/stage_limits.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/kv_cache_type.h"
#include "stage_worker/activation_frame.h"

namespace layercake::stage_worker {
namespace {

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("assignment: ", field, " is ", value, ", must be in [", least, ", ", most, "]"));
}

}  // namespace

std::optional<kernels::KvType> KvTypeOf(v1::KvCacheType type) {
  switch (type) {
    case v1::KV_CACHE_TYPE_F32:
      return kernels::KvType::kF32;
    case v1::KV_CACHE_TYPE_F16:
      return kernels::KvType::kF16;
    case v1::KV_CACHE_TYPE_BF16:
      return kernels::KvType::kBF16;
    case v1::KV_CACHE_TYPE_Q8_0:
      return kernels::KvType::kQ8_0;
    default:
      return std::nullopt;
  }
}

absl::Status CheckAssignment(const v1::Assignment& a) {
  constexpr int64_t kMaxContext = model::ModelLimits::kMaxContextLength;
  for (const absl::Status& status : {
           CheckRange("stage_count", a.stage_count(), 1, kMaxStages),
           CheckRange("stage", a.stage(), 0, int64_t{a.stage_count()} - 1),
           CheckRange("layer_first", a.layer_first(), 0, model::ModelLimits::kMaxLayers - 1),
           CheckRange("layer_end", a.layer_end(), int64_t{a.layer_first()} + 1,
                      model::ModelLimits::kMaxLayers),
           CheckRange("kv_blocks", a.kv_blocks(), 1, kMaxKvBlocks),
           CheckRange("host_kv_blocks", a.host_kv_blocks(), 0, kMaxKvBlocks),
           CheckRange("kv_block_tokens", a.kv_block_tokens(), 1, 4096),
           CheckRange("max_rows", a.max_rows(), 1, kMaxRows),
           CheckRange("max_sequences", a.max_sequences(), 1, kMaxSequences),
           CheckRange("context_tokens", a.context_tokens(), 1, kMaxContext),
           CheckRange("max_in_flight", a.max_in_flight(), 1, kMaxInFlight),
       }) {
    if (!status.ok()) return status;
  }
  if (!KvTypeOf(a.kv_type())) {
    return absl::UnimplementedError(absl::StrCat("assignment: kv_type ", a.kv_type(),
                                                 " is not one that this worker has (",
                                                 absl::StrJoin(KvCacheTypeNames(), ", "), ")"));
  }
  const double timeout = a.step_timeout_seconds();
  if (!(timeout > 0) || !std::isfinite(timeout) || timeout > 86400) {
    return absl::InvalidArgumentError(
        absl::StrCat("assignment: step_timeout_seconds is ", timeout, ", must be in (0, 86400]"));
  }
  return absl::OkStatus();
}

absl::StatusOr<StageLimits> LimitsForModel(const v1::Assignment& a,
                                           const model::ModelConfig& config) {
  const auto layers = static_cast<int>(config.n_layers);
  const bool first = a.stage() == 0;
  const bool last = a.stage() + 1 == a.stage_count();
  if (a.layer_end() > layers || (first && a.layer_first() != 0) ||
      (last && a.layer_end() != layers) || (!first && a.layer_first() == 0) ||
      (!last && a.layer_end() == layers)) {
    return absl::InvalidArgumentError(
        absl::StrCat("assignment: stage ", a.stage(), " of ", a.stage_count(), " with layers [",
                     a.layer_first(), ", ", a.layer_end(), ") of a model with ", layers,
                     "; the first stage begins at 0, the last one ends at ", layers));
  }
  const std::optional<uint32_t> slot = MinActivationSlotBytes(a.max_rows(), config.hidden_size);
  if (a.stage_count() > 1 && (!slot || a.ring().activation_slot_bytes() < *slot)) {
    return absl::InvalidArgumentError(
        absl::StrCat("assignment: activation slots of ", a.ring().activation_slot_bytes(),
                     " bytes cannot hold ", a.max_rows(), " rows of ", config.hidden_size,
                     " floats and their header, which take ", slot.value_or(0)));
  }
  StageLimits limits;
  limits.term = a.term();
  limits.epoch = a.epoch();
  limits.stage = a.stage();
  limits.stage_count = a.stage_count();
  limits.layer_first = a.layer_first();
  limits.layer_end = a.layer_end();
  limits.kv_blocks = a.kv_blocks();
  limits.host_kv_blocks = a.host_kv_blocks();
  limits.kv_block_tokens = a.kv_block_tokens();
  limits.max_rows = a.max_rows();
  limits.max_sequences = a.max_sequences();
  limits.context_tokens = a.context_tokens();
  limits.max_in_flight = a.max_in_flight();
  limits.vocabulary = static_cast<int>(config.vocab_size);
  return limits;
}

}  // namespace layercake::stage_worker
