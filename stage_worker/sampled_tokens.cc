#include "stage_worker/sampled_tokens.h"

#include <algorithm>

namespace layercake::stage_worker {

int32_t TokenOf(const StepSequence& sequence, absl::Span<const v1::SequenceResult> results) {
  for (const v1::SequenceResult& result : results) {
    if (result.sequence() != sequence.id) continue;
    return result.tokens().empty() ? kNoToken : result.tokens().rbegin()->token();
  }
  return kNoToken;
}

void SampledTokens::Record(uint64_t step, uint64_t sequence, int32_t token) {
  tokens_[{step, sequence}] = token;
}

std::optional<int32_t> SampledTokens::Find(uint64_t step, uint64_t sequence) const {
  const auto it = tokens_.find({step, sequence});
  if (it == tokens_.end()) return std::nullopt;
  return it->second;
}

uint64_t SampledTokens::MissingStep(const StepPlan& plan) const {
  uint64_t missing = 0;
  for (const StepSequence& sequence : plan.sequences) {
    const uint64_t step = sequence.token_of_step;
    if (step > missing && !Find(step, sequence.id).has_value()) missing = step;
  }
  return missing;
}

bool SampledTokens::Fill(StepPlan& plan) const {
  if (MissingStep(plan) != 0) return false;
  for (const StepSequence& sequence : plan.sequences) {
    if (sequence.token_of_step == 0) continue;
    plan.tokens[static_cast<size_t>(sequence.first_row)] =
        std::max(0, *Find(sequence.token_of_step, sequence.id));
  }
  return true;
}

void SampledTokens::ForgetBefore(uint64_t step) {
  tokens_.erase(tokens_.begin(), tokens_.lower_bound({step, 0}));
}

uint64_t OldestWanted(uint64_t step, const StageLimits& limits) {
  const auto window = static_cast<uint64_t>(limits.max_in_flight);
  return step > window ? step - window : 0;
}

}  // namespace layercake::stage_worker
