// What the chain is going to be: layers per stage, memory, buffers. Fixed before anything loads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/stage_memory.h"
#include "layercake/v1/control.pb.h"
#include "model/layer_split.h"
#include "model/model_config.h"

namespace layercake::coordinator {

struct ChainPlan {
  std::vector<model::LayerRange> stages;
  std::string model_path;
  uint64_t model_fingerprint = 0;
  int kv_blocks = 0;
  int host_kv_blocks = 0;  // of host memory of each stage, for sequences that give way
  int kv_block_tokens = 16;
  v1::KvCacheType kv_type = v1::KV_CACHE_TYPE_F16;
  int max_rows = 0;
  int max_sequences = 0;
  int context_tokens = 0;
  int max_in_flight = 0;
  std::string transport;
  v1::RingGeometry ring;
  double step_timeout_seconds = 60;
  std::vector<StageMemory> memory;  // promised, of each stage; zeros: its device is not known
};

// Blocks that one micro-batch may save, and likewise restore: those of one sequence. 0 without host
// memory for them.
int MaxBlockCopies(int host_kv_blocks, int context_tokens, int kv_block_tokens);

// Slots for max_in_flight plans and activations, each big enough for the largest one.
v1::RingGeometry PlanRing(const model::ModelConfig& config, int max_rows, int context_tokens,
                          int kv_block_tokens, int max_in_flight, int max_block_copies);

v1::Assignment MakeAssignment(const ChainPlan& plan, int stage, uint64_t term, uint32_t epoch);

}  // namespace layercake::coordinator
