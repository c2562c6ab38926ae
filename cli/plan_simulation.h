// The simulated half of `layercake plan`: the planned chain under a load, in virtual time.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "cli/plan_options.h"
#include "coordinator/served_model.h"
#include "simulation/device_cost.h"
#include "simulation/figures.h"

namespace layercake::cli {

struct SimulatedPlan {
  simulation::Figures ours;
  // The same load, with one batch that walks from stage to stage: each stage works while the others
  // wait, as where a model is merely split by layers.
  simulation::Figures layer_split;
  double begin = 0;  // seconds that the figures are counted in
  double end = 0;
};

// `work`: of each stage. InvalidArgument when the load does not fit the context. Takes seconds of
// real time; the same options give the same figures.
absl::StatusOr<SimulatedPlan> SimulatePlan(const PlanOptions& options,
                                           const coordinator::ServedModel& model,
                                           const std::vector<simulation::StageWork>& work);

}  // namespace layercake::cli
