// How many KV blocks a chain's devices have room for, when nobody says. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "model/layer_split.h"
#include "model/model_config.h"
#include "model/weights.h"

namespace layercake::coordinator {

struct KvBudget {
  // Of each stage: bytes of its device that it may use; 0: unknown, sets no bound. Shorter than the
  // chain: likewise.
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

// The blocks that the tightest stage has room for beside its weights, its buffers and what the
// backend takes for itself, at most `most`; nullopt when no stage's memory is known. 0 when a stage
// has no room at all.
std::optional<int> KvBlocksThatFit(const model::ModelConfig& config,
                                   const model::WeightBytes& weights,
                                   absl::Span<const model::LayerRange> stages,
                                   const KvBudget& budget);

}  // namespace layercake::coordinator
