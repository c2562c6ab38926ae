// What a stage takes of its device's memory, as the plan counts it before anything loads.
#pragma once

#include <cstdint>

namespace layercake::coordinator {

struct StageMemory {
  uint64_t weights = 0;
  uint64_t kv = 0;
  uint64_t buffers = 0;  // activations of one micro-batch, logits
  uint64_t backend = 0;  // the driver's context, kernels, workspaces: an estimate

  uint64_t total() const { return weights + kv + buffers + backend; }
};

}  // namespace layercake::coordinator
