#include "cli/plan_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/format.h"
#include "nlohmann/json.hpp"
#include "proto/kv_cache_type.h"

namespace layercake::cli {
namespace {

using simulation::Figures;
using Json = nlohmann::ordered_json;

std::string Line(const Json& json) {
  return json.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
}

std::string LayersOf(const model::LayerRange& layers) {
  const model::LayerRange ranges[] = {layers};
  return model::FormatLayerRanges(ranges);
}

std::string NameOf(const PlannedDevice& device) {
  const double gbs = device.speed.bytes_per_second / 1e9;
  const double tflops = device.speed.operations_per_second / 1e12;
  std::string name = device.card;
  if (gbs > 0) absl::StrAppendFormat(&name, "%s%g GB/s", name.empty() ? "" : " ", gbs);
  if (tflops > 0) absl::StrAppendFormat(&name, "%s%g TFLOP/s", name.empty() ? "" : " ", tflops);
  return name.empty() ? "not said" : name;
}

Json JsonOfPlan(const coordinator::ServedModel& model, absl::Span<const PlannedStage> stages) {
  Json json = {{"kind", "plan"},
               {"model", model.name},
               {"weight_bytes", model.weight_bytes},
               {"context_tokens", model.plan.context_tokens},
               {"kv_type", KvCacheTypeName(model.plan.kv_type)},
               {"kv_blocks", model.plan.kv_blocks},
               {"kv_block_tokens", model.plan.kv_block_tokens},
               {"max_in_flight", model.plan.max_in_flight},
               {"max_rows", model.plan.max_rows},
               {"stages", Json::array()}};
  for (const PlannedStage& stage : stages) {
    Json line = {{"layers", LayersOf(stage.layers)},
                 {"card", stage.device.card},
                 {"memory_bytes", stage.device.memory_bytes},
                 {"weight_bytes", stage.work.weight_bytes},
                 {"kv_bytes_per_token", stage.work.kv_bytes_per_token},
                 {"kv_bytes", stage.kv_bytes},
                 {"buffer_bytes", stage.memory.buffers},
                 {"backend_bytes", stage.memory.backend}};
    line["kv_capacity_tokens"] = stage.kv_capacity ? Json(*stage.kv_capacity) : Json();
    json["stages"].push_back(std::move(line));
  }
  return json;
}

Json JsonOfFigures(absl::string_view policy, const SimulatedPlan& simulated, const Figures& f) {
  return {{"kind", "simulation"},
          {"policy", policy},
          {"from_seconds", simulated.begin},
          {"to_seconds", simulated.end},
          {"tokens_per_second", f.tokens_per_second},
          {"requests_per_second", f.requests_per_second},
          {"first_token_p50_seconds", f.first_p50},
          {"first_token_p99_seconds", f.first_p99},
          {"between_tokens_p50_seconds", f.gap_p50},
          {"between_tokens_p95_seconds", f.gap_p95},
          {"between_tokens_p99_seconds", f.gap_p99},
          {"busy", f.busy},
          {"kv_used", f.kv_share},
          {"kv_peak", f.kv_peak_share},
          {"failed", f.failed},
          {"waiting_at_end", f.waiting}};
}

std::string DescribeLoad(const simulation::ClientLoadOptions& load) {
  std::string text = load.streams > 0
                         ? absl::StrFormat("%d client%s, asking again when the answer has come",
                                           load.streams, load.streams == 1 ? "" : "s")
                         : absl::StrFormat("%g requests a second, at random times", load.rate);
  absl::StrAppendFormat(&text, "; prompts of %d to %d tokens, answers of %d to %d",
                        load.prompt.least, load.prompt.most, load.output.least, load.output.most);
  if (load.shared_prefix > 0) {
    absl::StrAppendFormat(&text, ", %.0f %% of each prompt common to all",
                          100 * load.shared_prefix);
  }
  return absl::StrFormat("%s; seed %d", text, load.seed);
}

}  // namespace

std::string FormatPlan(const coordinator::ServedModel& model, absl::Span<const PlannedStage> stages,
                       bool json) {
  if (json) return Line(JsonOfPlan(model, stages));
  const coordinator::ChainPlan& plan = model.plan;
  std::string text = absl::StrFormat(
      "%s: %d layers, %s of weights, %d stage%s\n%-5s  %-8s  %10s  %12s  %10s  %10s  %12s  %s\n",
      model.name, model.config.n_layers, FormatBytes(model.weight_bytes), stages.size(),
      stages.size() == 1 ? "" : "s", "stage", "layers", "weights", "KV per token", "KV cache",
      "in all", "tokens fit", "device");
  for (size_t i = 0; i < stages.size(); ++i) {
    const PlannedStage& stage = stages[i];
    absl::StrAppendFormat(&text, "%-5d  %-8s  %10s  %12s  %10s  %10s  %12s  %s\n", i,
                          LayersOf(stage.layers), FormatBytes(stage.work.weight_bytes),
                          FormatBytes(static_cast<uint64_t>(stage.work.kv_bytes_per_token)),
                          FormatBytes(stage.kv_bytes),
                          stage.kv_capacity ? FormatBytes(stage.memory.total()) : std::string("?"),
                          stage.kv_capacity ? absl::StrCat(*stage.kv_capacity) : std::string("?"),
                          NameOf(stage.device));
  }
  absl::StrAppendFormat(
      &text,
      "KV cache of the chain: %d blocks of %d tokens, %s: %d tokens over all sequences, "
      "at most %d each\n",
      plan.kv_blocks, plan.kv_block_tokens, KvCacheTypeName(plan.kv_type),
      int64_t{plan.kv_blocks} * plan.kv_block_tokens, plan.context_tokens);
  const bool known = std::all_of(stages.begin(), stages.end(),
                                 [](const PlannedStage& s) { return s.kv_capacity.has_value(); });
  absl::StrAppend(&text, known ? "In all: buffers and what the driver takes are counted in.\n"
                               : "Give --memory or --cards to see what fits.\n");
  return text;
}

std::string FormatSimulation(const PlanOptions& options, const SimulatedPlan& simulated,
                             bool json) {
  const Figures& ours = simulated.ours;
  const Figures& split = simulated.layer_split;
  if (json) {
    return Line(JsonOfFigures("layercake", simulated, ours)) +
           Line(JsonOfFigures("layer_split", simulated, split));
  }
  std::string text = absl::StrFormat(
      "\nSIMULATED: no device has run. The scheduler and the workers are the real ones, in "
      "virtual\n"
      "time; a step takes as long as its bytes and operations need at %.0f %% of the rates above,\n"
      "a hop %.0f us and its bytes at %g GB/s, the way to the coordinator %.0f us; the\n"
      "coordinator's own work takes no time.\n"
      "Load: %s.\nCounted from %g to %g s. \"Layer split\": one batch walks from stage to "
      "stage.\n\n",
      100 * options.efficiency, 1e6 * options.hop_seconds, options.hop_bytes_per_second / 1e9,
      1e6 * options.session_seconds, DescribeLoad(options.load), simulated.begin, simulated.end);
  const auto row = [&text](const std::string& name, int decimals, const char* unit, double a,
                           double b) {
    absl::StrAppendFormat(&text, "%-26s  %12s  %12s\n", name,
                          absl::StrFormat("%.*f%s", decimals, a, unit),
                          absl::StrFormat("%.*f%s", decimals, b, unit));
  };
  absl::StrAppendFormat(&text, "%-26s  %12s  %12s\n", "", "layercake", "layer split");
  row("tokens/s", 0, "", ours.tokens_per_second, split.tokens_per_second);
  row("requests/s", 2, "", ours.requests_per_second, split.requests_per_second);
  row("first token, p50", 3, " s", ours.first_p50, split.first_p50);
  row("first token, p99", 3, " s", ours.first_p99, split.first_p99);
  row("between tokens, p50", 2, " ms", 1e3 * ours.gap_p50, 1e3 * split.gap_p50);
  row("between tokens, p95", 2, " ms", 1e3 * ours.gap_p95, 1e3 * split.gap_p95);
  row("between tokens, p99", 2, " ms", 1e3 * ours.gap_p99, 1e3 * split.gap_p99);
  for (size_t i = 0; i < ours.busy.size(); ++i) {
    row(absl::StrCat("stage ", i, " busy"), 0, " %", 100 * ours.busy[i], 100 * split.busy[i]);
  }
  row("KV blocks used, on average", 0, " %", 100 * ours.kv_share, 100 * split.kv_share);
  row("KV blocks used, at most", 0, " %", 100 * ours.kv_peak_share, 100 * split.kv_peak_share);
  row("requests that failed", 0, "", static_cast<double>(ours.failed),
      static_cast<double>(split.failed));
  row("without a token at the end", 0, "", static_cast<double>(ours.waiting),
      static_cast<double>(split.waiting));
  return text;
}

}  // namespace layercake::cli
