// What the stages of a chain take of their devices' memory, and how many KV blocks these have room
// for when nobody says. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "coordinator/stage_memory.h"
#include "model/layer_split.h"
#include "model/model_config.h"
#include "model/weights.h"

namespace layercake::coordinator {

struct KvBudget {
  // Of each stage: bytes of its device that are there for it; 0: unknown, sets no bound. Shorter
  // than the chain: likewise.
  absl::Span<const uint64_t> stage_memory_bytes;
  int block_tokens = 16;
  // Of the key, or the value, of one position and one kv head (proto/kv_cache_type.h).
  uint64_t head_bytes = 0;
  int max_rows = 0;
  // No use beyond this many blocks.
  int most = 0;
};

// Keys and values of `block_tokens` positions in these layers. `head_bytes` as in KvBudget.
uint64_t KvBlockBytes(const model::ModelConfig& config, const model::LayerRange& layers,
                      int block_tokens, uint64_t head_bytes);

// What stage `s` takes with a cache of `blocks` blocks.
StageMemory PromisedMemory(const model::ModelConfig& config, const model::WeightBytes& weights,
                           absl::Span<const model::LayerRange> stages, size_t s,
                           const KvBudget& budget, int blocks);

// The blocks that nine tenths of the tightest stage's memory have room for beside its weights, its
// buffers and what the backend takes for itself, at most `most`; nullopt when no stage's memory is
// known. 0 when a stage has no room at all.
std::optional<int> KvBlocksThatFit(const model::ModelConfig& config,
                                   const model::WeightBytes& weights,
                                   absl::Span<const model::LayerRange> stages,
                                   const KvBudget& budget);

// For people: "27.9 GiB (weights 18.9, KV cache 7.1, buffers 0.4, CUDA 1.5)".
std::string DescribeMemory(const StageMemory& memory);

// What the devices of the stages hold and have free; 0, or shorter than the chain: unknown.
struct StageDevices {
  absl::Span<const uint64_t> free_bytes;   // stage_memory_bytes of KvBudget
  absl::Span<const uint64_t> total_bytes;  // the stage's share of the whole device
};

// ResourceExhausted when a stage takes more than its device has for it, with the numbers and the
// flags that help.
absl::Status CheckMemory(absl::Span<const StageMemory> promised, const StageDevices& devices);

// Others hold so much of a device that somebody should hear of it: a tenth and 2 GiB.
bool MuchIsTaken(uint64_t free_bytes, uint64_t total_bytes);

// A line for each stage on such a device: what it has, what others hold, what the stage takes.
std::vector<std::string> TakenDeviceWarnings(absl::Span<const StageMemory> promised,
                                             const StageDevices& devices);

// Of a cache whose size was chosen by what is free: nullopt when it has room for four contexts, or
// for as many as may run where that is less; else for how many, and what to do.
std::optional<std::string> SmallCacheWarning(int blocks, int blocks_per_context, int block_tokens,
                                             int max_sequences);

}  // namespace layercake::coordinator
