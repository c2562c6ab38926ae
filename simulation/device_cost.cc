#include "simulation/device_cost.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "model/weights.h"

namespace layercake::simulation {
namespace {

// NVIDIA's data sheets: H200 SXM, L40S, GeForce RTX 4090 and 3090, A30.
constexpr std::array<Card, 5> kCards = {{
    {.name = "h200", .memory_gb = 141, .gb_per_second = 4800, .tflops = 989},
    {.name = "l40s", .memory_gb = 48, .gb_per_second = 864, .tflops = 362},
    {.name = "4090", .memory_gb = 24, .gb_per_second = 1008, .tflops = 165},
    {.name = "3090", .memory_gb = 24, .gb_per_second = 936, .tflops = 71},
    {.name = "a30", .memory_gb = 24, .gb_per_second = 933, .tflops = 165},
}};

}  // namespace

absl::Span<const Card> KnownCards() { return kCards; }

absl::StatusOr<Card> FindCard(absl::string_view name) {
  for (const Card& card : kCards) {
    if (card.name == name) return card;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", name, "\" is no card that is known here (",
      absl::StrJoin(kCards, ", ",
                    [](std::string* out, const Card& card) { absl::StrAppend(out, card.name); }),
      "); give its rates with --memory-gbs and --tflops instead"));
}

absl::StatusOr<StageWork> WorkOfStage(const model::ModelConfig& config,
                                      absl::Span<const model::TensorInfo> tensors,
                                      const model::LayerRange& layers, uint64_t head_bytes) {
  LC_ASSIGN_OR_RETURN(const model::WeightMap map,
                      model::PlanWeights(config, tensors, layers.first, layers.end));
  StageWork work;
  work.weight_bytes = map.total_bytes;
  for (const model::Weight& weight : map.weights) {
    // A step reads a few rows of the embedding. Where that is the head too, it is here twice.
    if (weight.role == model::WeightRole::kTokenEmbedding) continue;
    work.step_bytes += static_cast<double>(weight.byte_size);
    if (weight.rows <= 1) continue;
    const double elements = static_cast<double>(weight.rows) * static_cast<double>(weight.columns);
    (weight.layer == model::Weight::kNoLayer ? work.head_weights : work.weights) += elements;
  }
  work.kv_bytes_per_token =
      2.0 * layers.size() * config.n_kv_heads * static_cast<double>(head_bytes);
  work.attention_elements = static_cast<double>(layers.size()) * config.q_size();
  return work;
}

StageCost CostOfStage(const StageWork& work, const DeviceSpeed& speed, double efficiency) {
  const double byte = 1 / (speed.bytes_per_second * efficiency);
  const double operation = 1 / (speed.operations_per_second * efficiency);
  StageCost cost;
  cost.fixed = work.step_bytes * byte;
  cost.per_entry = work.kv_bytes_per_token * byte;
  cost.compute_row = 2 * work.weights * operation;
  cost.compute_sample = 2 * work.head_weights * operation;
  cost.compute_read = 4 * work.attention_elements * operation;
  return cost;
}

}  // namespace layercake::simulation
