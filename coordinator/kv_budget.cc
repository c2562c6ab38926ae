#include "coordinator/kv_budget.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace layercake::coordinator {
namespace {

// A context of the driver with loaded kernels, workspaces of the matrix library, and the room that
// weights are unpacked to: measured below 1.5 GiB on an H200.
constexpr uint64_t kBackendBytes = uint64_t{3} << 29;
// Rows of logits that a stage makes at a time (stage_worker/stage.cc).
constexpr uint64_t kLogitRows = 64;

uint64_t WeightsOf(const model::WeightBytes& weights, const model::LayerRange& range, bool first,
                   bool last) {
  uint64_t bytes =
      weights.every_stage + (first ? weights.embedding : 0) + (last ? weights.head : 0);
  for (uint32_t layer = range.first; layer < range.end; ++layer) bytes += weights.layers[layer];
  return bytes;
}

uint64_t BuffersOf(const model::ModelConfig& config, uint64_t max_rows, bool last) {
  // Floats per row: the residual stream, queries and their results, keys and values, gate and up,
  // and the left side of products in two forms.
  const uint64_t widest = std::max<uint64_t>(config.ffn_size, config.hidden_size);
  const uint64_t row = config.hidden_size + 2 * uint64_t{config.q_size()} +
                       2 * uint64_t{config.kv_size()} + 2 * uint64_t{config.ffn_size} + 2 * widest;
  const uint64_t logits =
      last ? kLogitRows * (uint64_t{config.vocab_size} + 2 * config.hidden_size) : 0;
  return sizeof(float) * (max_rows * row + logits);
}

uint64_t At(absl::Span<const uint64_t> bytes, size_t s) { return s < bytes.size() ? bytes[s] : 0; }

double GiB(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

}  // namespace

uint64_t KvBlockBytes(const model::ModelConfig& config, const model::LayerRange& layers,
                      int block_tokens, uint64_t head_bytes) {
  return 2 * uint64_t{layers.size()} * config.n_kv_heads * head_bytes *
         static_cast<uint64_t>(block_tokens);
}

StageMemory PromisedMemory(const model::ModelConfig& config, const model::WeightBytes& weights,
                           absl::Span<const model::LayerRange> stages, size_t s,
                           const KvBudget& budget, int blocks) {
  const bool first = s == 0;
  const bool last = s + 1 == stages.size();
  const uint64_t block_bytes =
      KvBlockBytes(config, stages[s], budget.block_tokens, budget.head_bytes);
  return {.weights = WeightsOf(weights, stages[s], first, last),
          .kv = block_bytes * static_cast<uint64_t>(blocks),
          .buffers = BuffersOf(config, static_cast<uint64_t>(budget.max_rows), last),
          .backend = kBackendBytes};
}

std::optional<int> KvBlocksThatFit(const model::ModelConfig& config,
                                   const model::WeightBytes& weights,
                                   absl::Span<const model::LayerRange> stages,
                                   const KvBudget& budget) {
  std::optional<int> blocks;
  for (size_t s = 0; s < std::min(stages.size(), budget.stage_memory_bytes.size()); ++s) {
    if (budget.stage_memory_bytes[s] == 0) continue;
    // What is kept back is for what the sum does not know: fragments, a desktop that grows.
    const uint64_t memory = budget.stage_memory_bytes[s] / 10 * 9;
    const uint64_t taken = PromisedMemory(config, weights, stages, s, budget, 0).total();
    const uint64_t block_bytes =
        KvBlockBytes(config, stages[s], budget.block_tokens, budget.head_bytes);
    const uint64_t room =
        taken < memory ? (memory - taken) / std::max<uint64_t>(block_bytes, 1) : 0;
    const int here = static_cast<int>(std::min<uint64_t>(room, static_cast<uint64_t>(budget.most)));
    blocks = std::min(blocks.value_or(budget.most), here);
  }
  return blocks;
}

std::string DescribeMemory(const StageMemory& memory) {
  return absl::StrFormat("%.1f GiB (weights %.1f, KV cache %.1f, buffers %.1f, CUDA %.1f)",
                         GiB(memory.total()), GiB(memory.weights), GiB(memory.kv),
                         GiB(memory.buffers), GiB(memory.backend));
}

absl::Status CheckMemory(absl::Span<const StageMemory> promised, const StageDevices& devices) {
  for (size_t s = 0; s < promised.size(); ++s) {
    const uint64_t there = At(devices.free_bytes, s);
    if (there == 0 || promised[s].total() <= there) continue;
    const uint64_t total = At(devices.total_bytes, s);
    const std::string of_total = total > there ? absl::StrFormat(" (of %.1f; others hold %.1f)",
                                                                 GiB(total), GiB(total - there))
                                               : "";
    return absl::ResourceExhaustedError(absl::StrFormat(
        "stage %d would take %s of its device, which has %.1f GiB free for it%s; use more stages, "
        "a smaller --context, --max-rows, --kv-memory or --kv-blocks, --kv-type q8_0, or end what "
        "else runs on the device (nvidia-smi)",
        s, DescribeMemory(promised[s]), GiB(there), of_total));
  }
  return absl::OkStatus();
}

bool MuchIsTaken(uint64_t free_bytes, uint64_t total_bytes) {
  constexpr uint64_t kLittle = uint64_t{2} << 30;  // a desktop
  return total_bytes > free_bytes && total_bytes - free_bytes > std::max(total_bytes / 10, kLittle);
}

std::vector<std::string> TakenDeviceWarnings(absl::Span<const StageMemory> promised,
                                             const StageDevices& devices) {
  std::vector<std::string> warnings;
  for (size_t s = 0; s < promised.size(); ++s) {
    const uint64_t there = At(devices.free_bytes, s);
    const uint64_t total = At(devices.total_bytes, s);
    if (there == 0 || !MuchIsTaken(there, total)) continue;
    warnings.push_back(absl::StrFormat(
        "stage %d: of the %.1f GiB that its device has for it, %.1f GiB are free and other "
        "processes hold %.1f (nvidia-smi names them); it takes %s of what is free",
        s, GiB(total), GiB(there), GiB(total - there), DescribeMemory(promised[s])));
  }
  return warnings;
}

std::optional<std::string> SmallCacheWarning(int blocks, int blocks_per_context, int block_tokens,
                                             int max_sequences) {
  constexpr int kEnough = 4;
  const int wanted = std::min(kEnough, max_sequences);
  if (blocks >= int64_t{wanted} * blocks_per_context) return std::nullopt;
  return absl::StrFormat(
      "the KV cache has room for %.1f full contexts of %d tokens, and %d sequences may run at once "
      "(--max-sequences): longer ones will give way to each other; free memory on the devices, "
      "use more stages, a smaller --context, or --kv-type q8_0",
      static_cast<double>(blocks) / blocks_per_context, blocks_per_context * block_tokens,
      max_sequences);
}

}  // namespace layercake::coordinator
