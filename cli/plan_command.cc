// `layercake plan`: what a chain would hold, from the model's header alone, and with --simulate how
// it would do under a load.
#include <iostream>
#include <limits>
#include <memory>

#include "base/status_macros.h"
#include "cli/chain_flags.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/model_path.h"
#include "cli/plan_options.h"
#include "cli/plan_report.h"
#include "cli/plan_simulation.h"
#include "coordinator/kv_budget.h"
#include "coordinator/served_model.h"
#include "model/gguf/model_files.h"
#include "model/weights.h"
#include "proto/kv_cache_type.h"
#include "simulation/device_cost.h"
#include "spdlog/spdlog.h"

namespace layercake::cli {
namespace {

int Fail(const absl::Status& status, int code) {
  std::cerr << "layercake plan: " << status.message() << "\n";
  return code;
}

// A file that is no sound model is not the command line's fault.
absl::Status CheckModelFile(const std::string& path) {
  LC_ASSIGN_OR_RETURN(const model::ModelFiles files, model::ModelFiles::Open(path));
  LC_ASSIGN_OR_RETURN(const model::ModelConfig config,
                      model::ReadModelConfig(files.metadata(), files.tensors()));
  return model::PlanWeights(config, files.tensors(), 0, config.n_layers).status();
}

absl::StatusOr<std::vector<PlannedStage>> PlanStages(const PlanOptions& options,
                                                     const coordinator::ServedModel& model) {
  const coordinator::ChainPlan& plan = model.plan;
  const uint64_t head_bytes = KvHeadBytes(plan.kv_type, model.config.head_dim);
  LC_ASSIGN_OR_RETURN(const model::WeightBytes bytes,
                      model::CountWeightBytes(model.config, model.files->tensors()));
  std::vector<PlannedStage> stages;
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    PlannedStage stage;
    stage.layers = plan.stages[i];
    stage.device = options.devices[i];
    LC_ASSIGN_OR_RETURN(stage.work, simulation::WorkOfStage(model.config, model.files->tensors(),
                                                            stage.layers, head_bytes));
    const uint64_t block_bytes =
        coordinator::KvBlockBytes(model.config, stage.layers, plan.kv_block_tokens, head_bytes);
    stage.kv_bytes = block_bytes * static_cast<uint64_t>(plan.kv_blocks);
    stage.memory = plan.memory[i];
    std::vector<uint64_t> memory(plan.stages.size(), 0);
    memory[i] = options.chain.stage_memory_bytes[i];
    const std::optional<int> blocks =
        coordinator::KvBlocksThatFit(model.config, bytes, plan.stages,
                                     {.stage_memory_bytes = memory,
                                      .block_tokens = plan.kv_block_tokens,
                                      .head_bytes = head_bytes,
                                      .max_rows = plan.max_rows,
                                      .most = std::numeric_limits<int>::max()});
    if (blocks) stage.kv_capacity = int64_t{*blocks} * plan.kv_block_tokens;
    stages.push_back(std::move(stage));
  }
  return stages;
}

int Plan(const PlanFlags& flags, const Environment& environment) {
  spdlog::set_level(spdlog::level::warn);
  const auto path = ResolveModelPath(flags.chain.model_path, environment);
  if (!path.ok()) return Fail(path.status(), kExitFailed);
  const auto options = MakePlanOptions(flags, *path);
  if (!options.ok()) return Fail(options.status(), kExitUsage);
  if (const absl::Status sound = CheckModelFile(*path); !sound.ok()) {
    return Fail(sound, kExitFailed);
  }
  // What is wrong from here on is what was asked of this model, or that it does not fit.
  const auto fail = [](const absl::Status& status) {
    return Fail(status, absl::IsInvalidArgument(status) ? kExitUsage : ExitCodeOf(status));
  };
  const auto model = coordinator::OpenServedModel(options->chain);
  if (!model.ok()) return fail(model.status());
  const auto stages = PlanStages(*options, **model);
  if (!stages.ok()) return fail(stages.status());
  std::cout << FormatPlan(**model, *stages, options->json) << std::flush;
  if (!options->simulate) return kExitOk;
  std::vector<simulation::StageWork> work;
  for (const PlannedStage& stage : *stages) work.push_back(stage.work);
  const auto simulated = SimulatePlan(*options, **model, work);
  if (!simulated.ok()) return fail(simulated.status());
  std::cout << FormatSimulation(*options, *simulated, options->json) << std::flush;
  return kExitOk;
}

void AddDeviceFlags(FlagTable& table, PlanFlags* flags) {
  table.OptionalInteger("--stages", &flags->stages, 1, 1024, "Stages (default 1)");
  table.List("--cards", &flags->cards,
             "Card of each stage, or one for all, by its data sheet (dense f16): h200 141 GB, "
             "4800 GB/s, 989 TFLOP/s; l40s 48, 864, 362; 4090 24, 1008, 165; 3090 24, 936, 71; "
             "a30 24, 933, 165");
  table.NumberList("--memory", &flags->memory_gib, 0.001, 1 << 20,
                   "Memory of each stage's device in GiB, or one for all; nine tenths are used");
}

void AddSimulationFlags(FlagTable& table, PlanFlags* flags) {
  table.Switch("--simulate", &flags->simulate,
               "Run a load on the chain in virtual time; nothing is computed, no device is used");
  table.NumberList("--memory-gbs", &flags->memory_gbs, 0.1, 1e6,
                   "Memory rate of each stage's device in GB/s, or one for all (over --cards)");
  table.NumberList("--tflops", &flags->tflops, 0.001, 1e6,
                   "Its operations in 10^12 a second, likewise");
  table.Number(
      "--efficiency", &flags->efficiency, 0.01, 1,
      "Share of both rates that is reached (default 0.7). A step takes the longer of "
      "(weights once + keys and values) / memory rate and (2 x weights x rows + attention) "
      "/ operations");
  table.Number("--hop-us", &flags->hop_us, 0, 1e6, "A hop between stages (default 30)");
  table.Number("--hop-gbs", &flags->hop_gbs, 0.001, 1e4, "And its bytes, in GB/s (default 10)");
  table.Number("--session-us", &flags->session_us, 0, 1e6,
               "Between a worker and the coordinator (default 100)");
  table.OptionalInteger("--streams", &flags->streams, 1, 4096,
                        "Clients that ask again when their answer has come (default 16)");
  table.OptionalNumber("--rate", &flags->rate, 0.001f, 1e5f,
                       "Instead: requests a second, at random times");
  table.Text("--prompt-tokens", &flags->prompt_tokens,
             "Length of prompts, as in 100 or 100-2000, log-uniform (default 128-1024)");
  table.Text("--output-tokens", &flags->output_tokens,
             "Length of answers, uniform (default 64-256)");
  table.Number("--shared-prefix", &flags->shared_prefix, 0, 1,
               "Share of each prompt that all have in common (default 0)");
  table.Integer("--duration", &flags->duration_seconds, 1, 3600,
                "Seconds of virtual time (default 30); the first fifth is not counted");
  table.OptionalUnsigned("--seed", &flags->seed, "Of the load (default 1)");
}

}  // namespace

void AddPlanCommand(Program& program, const Environment& environment) {
  auto flags = std::make_shared<PlanFlags>();
  FlagTable& table = program.Command(
      "plan", "Say what a chain would hold, and with --simulate how it would do under load",
      [flags, &environment] { return Plan(*flags, environment); });
  table.Positional("MODEL", &flags->chain.model_path, true,
                   "A GGUF file, a folder with one, or hf:user/repo[:quant]");
  AddDeviceFlags(table, flags.get());
  AddCutFlags(table, &flags->chain);
  AddSimulationFlags(table, flags.get());
  table.Switch("--json", &flags->json, "JSON lines: the plan, then a line for each policy");
}

}  // namespace layercake::cli
