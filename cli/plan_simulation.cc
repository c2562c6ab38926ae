#include "cli/plan_simulation.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "simulation/simulation.h"

namespace layercake::cli {
namespace {

// The first part of the time, while the chain fills, is not counted.
constexpr double kWarmUp = 0.2;

simulation::SimOptions MakeSimOptions(const PlanOptions& options,
                                      const coordinator::ServedModel& model,
                                      const std::vector<simulation::StageWork>& work) {
  simulation::SimOptions sim;
  for (size_t i = 0; i < work.size(); ++i) {
    sim.stages.push_back(
        simulation::CostOfStage(work[i], options.devices[i].speed, options.efficiency));
  }
  sim.reads = simulation::Reads::kChained;
  sim.hop_seconds = options.hop_seconds;
  sim.hop_row_seconds = model.config.hidden_size * sizeof(float) / options.hop_bytes_per_second;
  sim.session_seconds = options.session_seconds;
  sim.context_tokens = model.plan.context_tokens;
  sim.scheduler = coordinator::MakeEngineOptions(options.chain, model, /*term=*/1).scheduler;
  sim.limit = absl::Seconds(options.load.seconds);
  return sim;
}

absl::StatusOr<simulation::Figures> RunLoad(const simulation::SimOptions& sim,
                                            const simulation::ClientLoadOptions& load,
                                            const SimulatedPlan& plan) {
  const auto tokenizer = simulation::MakeSimTokenizer();
  simulation::Simulation simulation(sim, *tokenizer, load.seed);
  simulation::ClientLoad clients(load);
  simulation.AskNext([&clients](size_t, double now) { return clients.Next(now); });
  const simulation::SimReport report =
      simulation.Run(clients.First(), std::pair{plan.begin, plan.end});
  LC_RETURN_IF_ERROR(report.failure);
  return simulation::FiguresOf(report, sim.scheduler.kv_blocks, plan.begin, plan.end);
}

}  // namespace

absl::StatusOr<SimulatedPlan> SimulatePlan(const PlanOptions& options,
                                           const coordinator::ServedModel& model,
                                           const std::vector<simulation::StageWork>& work) {
  const simulation::ClientLoadOptions& load = options.load;
  if (load.prompt.most + load.output.most > model.plan.context_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("--prompt-tokens up to ", load.prompt.most, " and --output-tokens up to ",
                     load.output.most, " do not fit a context of ", model.plan.context_tokens,
                     " tokens; ask for less, or give a larger --context"));
  }
  SimulatedPlan plan;
  plan.begin = kWarmUp * load.seconds;
  plan.end = load.seconds;
  simulation::SimOptions sim = MakeSimOptions(options, model, work);
  LC_ASSIGN_OR_RETURN(plan.ours, RunLoad(sim, load, plan));
  sim.scheduler.max_in_flight = 1;
  sim.scheduler.run_ahead = false;
  sim.scheduler.throttle = false;
  LC_ASSIGN_OR_RETURN(plan.layer_split, RunLoad(sim, load, plan));
  return plan;
}

}  // namespace layercake::cli
