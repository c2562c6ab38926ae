// A plan, and what its simulation showed, as people and as scripts read it. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "cli/plan_options.h"
#include "cli/plan_simulation.h"
#include "coordinator/served_model.h"
#include "coordinator/stage_memory.h"
#include "simulation/device_cost.h"

namespace layercake::cli {

struct PlannedStage {
  model::LayerRange layers;
  PlannedDevice device;
  simulation::StageWork work;
  uint64_t kv_bytes = 0;               // of the chain's KV blocks, on this stage
  coordinator::StageMemory memory;     // zeros: its device's memory is not known
  std::optional<int64_t> kv_capacity;  // tokens that its own memory has room for
};

// Tables end with a line end; JSON is one object per line.
std::string FormatPlan(const coordinator::ServedModel& model, absl::Span<const PlannedStage> stages,
                       bool json);
std::string FormatSimulation(const PlanOptions& options, const SimulatedPlan& simulated, bool json);

}  // namespace layercake::cli
