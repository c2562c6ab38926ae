// The tokens that steps sampled, by step and sequence, for rows that were planned before their
// token was known (RowDescriptor.token_of_step). Pure; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/types/span.h"
#include "layercake/v1/control.pb.h"
#include "stage_worker/plan_check.h"

namespace layercake::stage_worker {

// In a feedback: the step sampled nothing for this sequence, which cannot go on.
inline constexpr int32_t kNoToken = -1;

// What a step sampled for a sequence, given all of its results.
int32_t TokenOf(const StepSequence& sequence, absl::Span<const v1::SequenceResult> results);

class SampledTokens {
 public:
  void Record(uint64_t step, uint64_t sequence, int32_t token);

  // The step whose token the plan still lacks; 0 when it has all of them.
  uint64_t MissingStep(const StepPlan& plan) const;
  // Sets the tokens that earlier steps sampled; one of kNoToken becomes token 0, whose row is
  // computed for nothing. False, and nothing is set, when one is missing.
  bool Fill(StepPlan& plan) const;

  // Tokens of steps before `step` are not asked for any more: this bounds the object.
  void ForgetBefore(uint64_t step);
  size_t size() const { return tokens_.size(); }

 private:
  std::optional<int32_t> Find(uint64_t step, uint64_t sequence) const;

  absl::btree_map<std::pair<uint64_t, uint64_t>, int32_t> tokens_;
};

// The oldest step whose tokens `step` and those after it may ask for (plan_check.h).
uint64_t OldestWanted(uint64_t step, const StageLimits& limits);

}  // namespace layercake::stage_worker
