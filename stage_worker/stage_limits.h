// What one stage of one plan may be asked to do: the numbers that every check of a step uses.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "layercake/v1/control.pb.h"
#include "model/model_config.h"

namespace layercake::stage_worker {

struct StageLimits {
  uint64_t term = 0;
  uint32_t epoch = 0;
  int stage = 0;
  int stage_count = 1;
  int layer_first = 0;
  int layer_end = 0;
  int kv_blocks = 0;
  int host_kv_blocks = 0;  // of host memory, for blocks that are saved
  int kv_block_tokens = 0;
  int max_rows = 0;       // of one micro-batch
  int max_sequences = 0;  // known at once
  int context_tokens = 0;
  int max_in_flight = 0;
  int vocabulary = 0;

  bool first() const { return stage == 0; }
  bool last() const { return stage + 1 == stage_count; }
};

// Bounds on what an Assignment may ask for, far above every real chain.
inline constexpr int kMaxStages = 1024;
inline constexpr int kMaxRows = 1 << 16;
inline constexpr int kMaxSequences = 1 << 16;
inline constexpr int kMaxKvBlocks = 1 << 28;
inline constexpr int kMaxInFlight = 1024;

// The kernels' name of a type; nullopt for a number that is none.
std::optional<kernels::KvType> KvTypeOf(v1::KvCacheType type);

// An Assignment came over a wire. InvalidArgument names the field, its value and what is allowed.
// The parts that need the model (layers, vocabulary) are in LimitsForModel.
absl::Status CheckAssignment(const v1::Assignment& assignment);

// Limits of an assignment that passed CheckAssignment, for this model. InvalidArgument when the
// layers are not the model's, or when the first or last stage does not hold the first or last
// layer, or when a slot of the ring is too small for max_rows rows (activation_frame.h).
absl::StatusOr<StageLimits> LimitsForModel(const v1::Assignment& assignment,
                                           const model::ModelConfig& config);

}  // namespace layercake::stage_worker
