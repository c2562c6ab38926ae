// Everything that the coordinator knows of the model it serves, read and checked in full before a
// worker is asked to load anything.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/chain_plan.h"
#include "coordinator/coordinator_process.h"
#include "coordinator/engine_impl.h"
#include "layercake/v1/inference.pb.h"
#include "model/chat/chat_template.h"
#include "model/gguf/model_files.h"
#include "model/model_config.h"
#include "model/tokenizer/tokenizer.h"

namespace layercake::coordinator {

// Constant after construction.
struct ServedModel {
  std::string name;
  std::unique_ptr<model::ModelFiles> files;
  model::ModelConfig config;
  std::unique_ptr<model::Tokenizer> tokenizer;
  std::optional<model::ChatTemplate> chat_template;
  ChainPlan plan;
  uint64_t weight_bytes = 0;
  std::vector<std::string> warnings;  // of the plan; for the log of whoever serves it
};

// Errors name the file, the value and the option to change.
absl::StatusOr<std::unique_ptr<ServedModel>> OpenServedModel(
    const CoordinatorProcessOptions& options);

// What the engine and its chain are to do with this model. `term`: of this coordinator.
EngineOptions MakeEngineOptions(const CoordinatorProcessOptions& options, const ServedModel& model,
                                uint64_t term);

// The parts of GetModel that the model file decides.
v1::GetModelResponse DescribeModel(const ServedModel& model);

}  // namespace layercake::coordinator
