// The sequences that a stage knows: their block tables and, for the last stage, what sampling needs
// of their past; and which blocks were saved to host memory. Everything follows from the plans
// alone, so every stage has the same table after the same step. Pure; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "kernels/sampling.h"
#include "stage_worker/block_copies.h"

namespace layercake::stage_worker {

struct Sequence {
  uint32_t branch = 0;
  size_t length = 0;            // positions whose keys and values are written or on their way
  std::vector<int32_t> blocks;  // the block table, in position order
  kernels::SamplingParams sampling;
  int32_t top_logprobs = -1;
  uint64_t sampled_step = 0;  // samples the token of position `length`; 0: none does
};

// Holds at most as many sequences as its caller lets in (plan_check.h does).
class SequenceTable {
 public:
  // nullptr when unknown.
  const Sequence* Find(uint64_t id) const;
  Sequence* Find(uint64_t id);
  bool Contains(uint64_t id) const { return sequences_.contains(id); }
  size_t size() const { return sequences_.size(); }

  // A new sequence, or one that begins again: replaces what was known.
  Sequence& Begin(uint64_t id, Sequence sequence);
  void End(uint64_t id) { sequences_.erase(id); }

  SavedBlocks& saved_blocks() { return saved_blocks_; }
  const SavedBlocks& saved_blocks() const { return saved_blocks_; }

 private:
  std::map<uint64_t, Sequence> sequences_;
  SavedBlocks saved_blocks_;
};

// True when sampling looks at the tokens so far.
inline bool HasPenalties(const kernels::SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
         params.frequency_penalty != 0;
}

}  // namespace layercake::stage_worker
