// What the last stage knows of tokens beyond its plans: those that it sampled itself, which later
// steps may take up at once, and the past of sequences with penalties, its own tokens included.
//
// Thread rule: inside work submitted to the device, around Run, in the order of the steps. There a
// step finds every token before it, however far plans run ahead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "layercake/v1/control.pb.h"
#include "stage_worker/plan_check.h"
#include "stage_worker/sampled_tokens.h"
#include "stage_worker/token_history.h"

namespace layercake::stage_worker {

class TokenLedger {
 public:
  explicit TokenLedger(const StageLimits& limits) : limits_(limits) {}

  // Before the step runs: sets the tokens that earlier steps sampled, and StepSequence::seen.
  // Internal when a token is missing, which a checked plan in its turn cannot bring about.
  absl::Status Begin(StepPlan& plan);
  // After it ran.
  void End(const StepPlan& plan, absl::Span<const v1::SequenceResult> results);

  size_t histories() const { return histories_.size(); }

 private:
  const StageLimits limits_;
  SampledTokens sampled_;                       // of the latest max_in_flight steps
  std::map<uint64_t, TokenHistory> histories_;  // of sequences with penalties: max_sequences
};

}  // namespace layercake::stage_worker
