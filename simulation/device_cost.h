// How long a step takes on a device of which only two rates are known, and what cards' data sheets
// say of them. Pure.
//
// seconds = max(bytes / memory rate, operations / compute rate) / efficiency, where
//   bytes       the stage's weights once (of the embedding nothing), and the keys and values of
//   each
//               sequence once
//   operations  2 for each weight and row (of the output head: for each sampled row), 4 for each
//               row, entry that it attends to and element of a query
// Everything else (launches, norms, sampling) is in the efficiency.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/gguf/gguf_file.h"
#include "model/layer_split.h"
#include "model/model_config.h"
#include "simulation/digest_stage.h"

namespace layercake::simulation {

struct DeviceSpeed {
  double bytes_per_second = 0;
  double operations_per_second = 0;
};

// A card by its data sheet.
struct Card {
  absl::string_view name;  // "h200"
  double memory_gb = 0;    // 10^9 bytes
  double gb_per_second = 0;
  double tflops = 0;  // dense f16 on the tensor cores, sums in f32
};
absl::Span<const Card> KnownCards();
// InvalidArgument, with all names, for any other.
absl::StatusOr<Card> FindCard(absl::string_view name);

// What one stage holds and does.
struct StageWork {
  uint64_t weight_bytes = 0;      // in its memory
  double step_bytes = 0;          // of weights, read by each step
  double weights = 0;             // of its layers: each meets every row
  double head_weights = 0;        // of the output head: each meets every sampled row
  double kv_bytes_per_token = 0;  // keys and values of all its layers
  double attention_elements = 0;  // of the queries of all its layers, for one row
};

// `head_bytes`: of the key, or the value, of one position and one kv head (proto/kv_cache_type.h).
// Errors as model::PlanWeights.
absl::StatusOr<StageWork> WorkOfStage(const model::ModelConfig& config,
                                      absl::Span<const model::TensorInfo> tensors,
                                      const model::LayerRange& layers, uint64_t head_bytes);

// `efficiency`: the share of both rates that is reached, in (0, 1].
StageCost CostOfStage(const StageWork& work, const DeviceSpeed& speed, double efficiency);

}  // namespace layercake::simulation
