#include "coordinator/served_model.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/kv_budget.h"
#include "model/gguf/tokenizer_metadata.h"
#include "model/weights.h"
#include "proto/kv_cache_type.h"

namespace layercake::coordinator {
namespace {

constexpr int kRowsOnCpus = 256;
constexpr int kRowsOnGpus = 2048;
constexpr int kDefaultContext = 4096;
constexpr int kMaxContext = 1 << 20;
constexpr int kMaxRows = 4096;
constexpr int kMaxSequences = 4096;
// What a start may take longer for the sake of the first prompts.
constexpr absl::Duration kWarmUp = absl::Seconds(1);

std::string TokenText(const model::Tokenizer& tokenizer, std::optional<model::TokenId> id) {
  if (!id) return "";
  const auto piece = tokenizer.TokenToPiece(*id, /*show_control=*/true);
  return piece.ok() ? std::string(*piece) : "";
}

absl::Status CheckRange(absl::string_view option, int value, int low, int high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", option, " ", value, ": must be from ", low, " to ", high));
}

absl::Status CheckOptions(const CoordinatorProcessOptions& options) {
  LC_RETURN_IF_ERROR(CheckRange("stages", options.stages, 1, 1024));
  LC_RETURN_IF_ERROR(CheckRange("max-rows", options.max_rows, 0, kMaxRows));
  LC_RETURN_IF_ERROR(CheckRange("prefill-rows", options.prefill_rows, 0, kMaxRows));
  LC_RETURN_IF_ERROR(CheckRange("max-sequences", options.max_sequences, 1, kMaxSequences));
  LC_RETURN_IF_ERROR(CheckRange("max-queued", options.max_queued, 1, 1 << 20));
  LC_RETURN_IF_ERROR(CheckRange("context", options.context_tokens, 0, kMaxContext));
  LC_RETURN_IF_ERROR(CheckRange("max-in-flight", options.max_in_flight, 0, 1020));
  LC_RETURN_IF_ERROR(CheckRange("kv-blocks", options.kv_blocks, 0, 1 << 24));
  return CheckRange("max-output-tokens", options.max_output_tokens, 0, kMaxContext);
}

// In flight at once, at most.
int MicroBatches(const CoordinatorProcessOptions& options) {
  return options.max_in_flight > 0 ? options.max_in_flight : options.stages + 1;
}

absl::StatusOr<std::vector<model::LayerRange>> CutLayers(const CoordinatorProcessOptions& options,
                                                         const model::ModelConfig& config,
                                                         const model::WeightBytes& bytes) {
  if (!options.layers.empty()) {
    LC_ASSIGN_OR_RETURN(std::vector<model::LayerRange> ranges,
                        model::ParseLayerRanges(options.layers, config.n_layers));
    if (static_cast<int>(ranges.size()) != options.stages) {
      return absl::InvalidArgumentError(absl::StrCat("--layers ", options.layers, " makes ",
                                                     ranges.size(), " stages, --stages says ",
                                                     options.stages));
    }
    return ranges;
  }
  // By the bytes that a token reads, which is its time: of the embedding that is one row. What
  // each stage's memory holds beside that is for the planner.
  return model::SplitLayers(bytes.layers, /*embedding_bytes=*/0, bytes.head,
                            static_cast<uint32_t>(options.stages));
}

int RowsOfMicroBatch(const CoordinatorProcessOptions& options) {
  if (options.max_rows > 0) return options.max_rows;
  const auto& memory = options.stage_memory_bytes;
  const bool known =
      std::any_of(memory.begin(), memory.end(), [](uint64_t bytes) { return bytes > 0; });
  return known ? kRowsOnGpus : kRowsOnCpus;
}

// Blocks that every stage has room for in `memory_bytes` of its own, at most `most`.
absl::StatusOr<int> KvBlocksIn(absl::string_view flag, uint64_t memory_bytes,
                               const model::ModelConfig& config, const ChainPlan& plan,
                               int64_t most) {
  uint64_t largest = 0;
  for (const model::LayerRange& layers : plan.stages) {
    largest = std::max(largest, KvBlockBytes(config, layers, plan.kv_block_tokens,
                                             KvHeadBytes(plan.kv_type, config.head_dim)));
  }
  const uint64_t blocks = memory_bytes / std::max<uint64_t>(largest, 1);
  if (blocks == 0) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, " ", memory_bytes,
                                                   " bytes: one block of the KV cache takes ",
                                                   largest, " on the largest stage"));
  }
  return static_cast<int>(std::min(blocks, static_cast<uint64_t>(most)));
}

// Blocks of the devices: as many as was asked for, or as fit, or enough for a few contexts.
absl::StatusOr<int> DeviceKvBlocks(const CoordinatorProcessOptions& options,
                                   const model::ModelConfig& config,
                                   const model::WeightBytes& bytes, const ChainPlan& plan,
                                   const KvBudget& budget, int per_context) {
  if (options.kv_blocks > 0 && options.kv_memory_bytes > 0) {
    return absl::InvalidArgumentError(absl::StrCat("--kv-blocks ", options.kv_blocks,
                                                   " and --kv-memory ", options.kv_memory_bytes,
                                                   " both size the KV cache; give one of them"));
  }
  if (options.kv_blocks > 0) return options.kv_blocks;
  if (options.kv_memory_bytes > 0) {
    return KvBlocksIn("kv-memory", options.kv_memory_bytes, config, plan, budget.most);
  }
  const std::optional<int> fitting = KvBlocksThatFit(config, bytes, plan.stages, budget);
  if (fitting.has_value()) return std::max(*fitting, per_context);
  return std::max(4 * per_context, options.max_sequences);
}

void WarnOfMemory(const CoordinatorProcessOptions& options, const StageDevices& devices,
                  int per_context, ServedModel& served) {
  const ChainPlan& plan = served.plan;
  served.warnings = TakenDeviceWarnings(plan.memory, devices);
  if (options.kv_blocks > 0 || options.kv_memory_bytes > 0) return;  // somebody's own choice
  const std::optional<std::string> small =
      SmallCacheWarning(plan.kv_blocks, per_context, plan.kv_block_tokens, options.max_sequences);
  if (small.has_value()) served.warnings.push_back(*small);
}

// Tokens, rows and blocks of the plan; the layers are cut already.
absl::Status PlanMemory(const CoordinatorProcessOptions& options, const model::WeightBytes& bytes,
                        ServedModel& served) {
  const model::ModelConfig& config = served.config;
  ChainPlan& plan = served.plan;
  const int trained = static_cast<int>(config.context_length);
  plan.context_tokens =
      options.context_tokens > 0 ? options.context_tokens : std::min(trained, kDefaultContext);
  if (plan.context_tokens > trained) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--context ", plan.context_tokens, ": the model was trained for ", trained, " tokens"));
  }
  plan.max_rows = RowsOfMicroBatch(options);
  const int per_context = (plan.context_tokens + plan.kv_block_tokens - 1) / plan.kv_block_tokens;
  // Full contexts for all sequences at once, as far as they fit.
  const int64_t most = std::min<int64_t>(int64_t{per_context} * options.max_sequences, 1 << 24);
  const KvBudget budget = {.stage_memory_bytes = options.stage_memory_bytes,
                           .block_tokens = plan.kv_block_tokens,
                           .head_bytes = KvHeadBytes(plan.kv_type, config.head_dim),
                           .max_rows = plan.max_rows,
                           .most = static_cast<int>(most)};
  LC_ASSIGN_OR_RETURN(plan.kv_blocks,
                      DeviceKvBlocks(options, config, bytes, plan, budget, per_context));
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const bool known = s < options.stage_memory_bytes.size() && options.stage_memory_bytes[s] > 0;
    plan.memory.push_back(
        known ? PromisedMemory(config, bytes, plan.stages, s, budget, plan.kv_blocks)
              : StageMemory{});
  }
  const StageDevices devices = {.free_bytes = options.stage_memory_bytes,
                                .total_bytes = options.stage_device_bytes};
  LC_RETURN_IF_ERROR(CheckMemory(plan.memory, devices));
  if (plan.kv_blocks < per_context) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.kv_memory_bytes > 0 ? "--kv-memory makes " : "--kv-blocks ", plan.kv_blocks,
        options.kv_memory_bytes > 0 ? " blocks" : "", ": one context of ", plan.context_tokens,
        " tokens needs ", per_context, " blocks of ", plan.kv_block_tokens));
  }
  WarnOfMemory(options, devices, per_context, served);
  if (options.kv_host_memory_bytes > 0) {
    LC_ASSIGN_OR_RETURN(
        plan.host_kv_blocks,
        KvBlocksIn("kv-host-memory", options.kv_host_memory_bytes, config, plan, most));
  }
  plan.max_sequences = options.max_sequences;
  const int computed = MicroBatches(options);
  plan.ring =
      PlanRing(config, plan.max_rows, plan.context_tokens, plan.kv_block_tokens, computed,
               MaxBlockCopies(plan.host_kv_blocks, plan.context_tokens, plan.kv_block_tokens));
  // The slots suffice for one that is planned ahead: it begins when another one has come back.
  plan.max_in_flight = computed + (options.run_ahead ? 1 : 0);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServedModel>> OpenServedModel(
    const CoordinatorProcessOptions& options) {
  LC_RETURN_IF_ERROR(CheckOptions(options));
  auto served = std::make_unique<ServedModel>();
  LC_ASSIGN_OR_RETURN(model::ModelFiles files, model::ModelFiles::Open(options.model_path));
  served->files = std::make_unique<model::ModelFiles>(std::move(files));
  const model::Metadata& metadata = served->files->metadata();
  const auto tensors = served->files->tensors();
  LC_ASSIGN_OR_RETURN(served->config, model::ReadModelConfig(metadata, tensors));
  LC_ASSIGN_OR_RETURN(const model::WeightMap weights,
                      model::PlanWeights(served->config, tensors, 0, served->config.n_layers));
  served->weight_bytes = weights.total_bytes;
  LC_ASSIGN_OR_RETURN(const model::WeightBytes bytes,
                      model::CountWeightBytes(served->config, tensors));

  LC_ASSIGN_OR_RETURN(model::TokenizerSpec spec, model::LoadTokenizerSpec(metadata));
  LC_ASSIGN_OR_RETURN(served->tokenizer, model::Tokenizer::Create(std::move(spec)));
  LC_ASSIGN_OR_RETURN(const model::ChatTemplates templates, model::LoadChatTemplates(metadata));
  if (!templates.default_template.empty()) {
    const model::Tokenizer& tokenizer = *served->tokenizer;
    LC_ASSIGN_OR_RETURN(served->chat_template,
                        model::ChatTemplate::Create(templates.default_template,
                                                    TokenText(tokenizer, tokenizer.bos_id()),
                                                    TokenText(tokenizer, tokenizer.eos_id())));
  }

  ChainPlan& plan = served->plan;
  LC_ASSIGN_OR_RETURN(plan.stages, CutLayers(options, served->config, bytes));
  LC_ASSIGN_OR_RETURN(plan.kv_type, ParseKvCacheType(options.kv_type));
  LC_RETURN_IF_ERROR(PlanMemory(options, bytes, *served));
  plan.model_path = options.model_path;
  plan.model_fingerprint = served->files->fingerprint();
  plan.transport = options.transport;
  plan.step_timeout_seconds = absl::ToDoubleSeconds(options.step_timeout);
  served->name = !options.model_name.empty()
                     ? options.model_name
                     : std::filesystem::path(options.model_path).stem().string();
  return served;
}

EngineOptions MakeEngineOptions(const CoordinatorProcessOptions& options, const ServedModel& model,
                                uint64_t term) {
  EngineOptions engine;
  ChainOptions& chain = engine.chain;
  chain.plan = model.plan;
  chain.term = term;
  chain.test_token = model.tokenizer->bos_id().value_or(0);
  chain.warm_up = kWarmUp;
  chain.worker_wait = options.worker_wait;
  chain.load_silence = options.load_silence;
  chain.connect_timeout = options.connect_timeout;
  chain.step_timeout = options.step_timeout;
  SchedulerOptions& scheduler = engine.scheduler;
  scheduler.stages = static_cast<int>(model.plan.stages.size());
  scheduler.max_in_flight = MicroBatches(options);
  scheduler.run_ahead = options.run_ahead;
  scheduler.max_history_tokens = model.plan.context_tokens;
  scheduler.max_rows = model.plan.max_rows;
  scheduler.prefill_rows = options.prefill_rows > 0
                               ? std::min(options.prefill_rows, model.plan.max_rows)
                               : model.plan.max_rows;
  scheduler.max_sequences = model.plan.max_sequences;
  scheduler.max_queued = options.max_queued;
  scheduler.kv_blocks = model.plan.kv_blocks;
  scheduler.block_tokens = model.plan.kv_block_tokens;
  scheduler.host_blocks = model.plan.host_kv_blocks;
  scheduler.max_block_copies = MaxBlockCopies(model.plan.host_kv_blocks, model.plan.context_tokens,
                                              model.plan.kv_block_tokens);
  engine.model_name = model.name;
  return engine;
}

v1::GetModelResponse DescribeModel(const ServedModel& model) {
  v1::GetModelResponse response;
  response.set_name(model.name);
  response.set_architecture(std::string(model::ArchitectureName(model.config.architecture)));
  response.set_trained_context(static_cast<int>(model.config.context_length));
  response.set_layers(static_cast<int>(model.config.n_layers));
  response.set_parameters_bytes(model.weight_bytes);
  response.add_capabilities("completion");
  response.add_capabilities("logprobs");
  if (model.chat_template) {
    response.add_capabilities("chat");
    response.add_capabilities("tools");
  }
  return response;
}

}  // namespace layercake::coordinator
