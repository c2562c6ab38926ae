// Blocks of the KV cache that a step saves to host memory or restores from it, and the check of
// what a plan says about them. Pure; one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "layercake/v1/control.pb.h"
#include "stage_worker/stage_limits.h"

namespace layercake::stage_worker {

struct BlockCopy {
  int32_t block = 0;
  int32_t host_block = 0;
};

// In the order in which they are done, before any row of the step.
struct BlockCopies {
  std::vector<BlockCopy> saves;
  std::vector<BlockCopy> restores;
};

// Which host blocks hold a block that was saved and not restored yet. Follows from the plans alone.
// Holds at most host_kv_blocks entries (CheckBlockCopies lets no others in).
class SavedBlocks {
 public:
  bool Contains(uint32_t host_block) const { return saved_.contains(host_block); }
  // The copies of a plan that CheckBlockCopies let through.
  BlockCopies Apply(const v1::MicroBatchPlan& plan);

 private:
  absl::flat_hash_set<uint32_t> saved_;  // never iterated
};

// InvalidArgument: an id out of range, a host block that is written twice or a block that is
// restored twice in one plan. FailedPrecondition: a host block to restore that holds nothing.
absl::Status CheckBlockCopies(const v1::MicroBatchPlan& plan, const StageLimits& limits,
                              const SavedBlocks& saved);

}  // namespace layercake::stage_worker
