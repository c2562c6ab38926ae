#include "stage_worker/token_ledger.h"

#include "absl/strings/str_cat.h"

namespace layercake::stage_worker {

absl::Status TokenLedger::Begin(StepPlan& plan) {
  if (!sampled_.Fill(plan)) {
    return absl::InternalError(absl::StrCat("the token of step ", sampled_.MissingStep(plan),
                                            " is not here when step ", plan.step, " begins"));
  }
  for (const uint64_t id : plan.begins) histories_.erase(id);
  for (const StepHistory& begun : plan.histories) {
    TokenHistory& history = histories_.emplace(begun.sequence, begun.prompt_tokens).first->second;
    for (const int32_t token : begun.tokens) history.Append(token);
  }
  for (StepSequence& sequence : plan.sequences) {
    const auto it = histories_.find(sequence.id);
    if (it == histories_.end()) continue;
    const auto first = static_cast<size_t>(sequence.first_row);
    it->second.Truncate(static_cast<size_t>(plan.kv_positions[first]));
    for (size_t i = 0; i < static_cast<size_t>(sequence.row_count); ++i) {
      it->second.Append(plan.tokens[first + i]);
    }
    if (sequence.sampled_rows > 0) sequence.seen = it->second.seen();
  }
  return absl::OkStatus();
}

void TokenLedger::End(const StepPlan& plan, absl::Span<const v1::SequenceResult> results) {
  sampled_.ForgetBefore(OldestWanted(plan.step, limits_));
  for (const StepSequence& sequence : plan.sequences) {
    if (sequence.sampled_rows == 0) continue;
    sampled_.Record(plan.step, sequence.id, TokenOf(sequence, results));
  }
  for (const uint64_t id : plan.ends) histories_.erase(id);
}

}  // namespace layercake::stage_worker
