// From a plan that came over a wire to a step that can be run: everything is checked before it
// sizes or indexes anything, and what runs later is copied out of the sequence table, so that the
// table may go on to the next plans while a step waits for its activation. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/sampling.h"
#include "layercake/v1/control.pb.h"
#include "stage_worker/block_copies.h"
#include "stage_worker/sequence_table.h"
#include "stage_worker/stage_limits.h"

namespace layercake::stage_worker {

// The rows of one sequence in a step.
struct StepSequence {
  uint64_t id = 0;
  uint32_t branch = 0;
  int first_row = 0;  // of the step
  int row_count = 0;  // >= 1
  // The rows that are sampled are the last `sampled_rows` ones.
  int sampled_rows = 0;
  bool score_tokens = false;
  // Not 0: its one token is what that step samples. StepPlan::tokens has 0 there until the token is
  // known (sampled_tokens.h).
  uint64_t token_of_step = 0;
  std::vector<int32_t> blocks;  // the whole table
  // What sampling needs; set when sampled_rows > 0 or score_tokens.
  kernels::SamplingParams sampling;
  int32_t top_logprobs = -1;
  // Of the last row's prefix; empty without penalties. Set when the step begins (token_ledger.h).
  std::vector<kernels::SeenToken> seen;
};

// Where the past of a sequence with penalties begins. For the last stage.
struct StepHistory {
  uint64_t sequence = 0;
  uint32_t prompt_tokens = 0;
  std::vector<int32_t> tokens;  // before its first row
};

struct StepPlan {
  uint64_t step = 0;
  // Arrays are (rows) long.
  std::vector<int32_t> tokens;
  std::vector<int32_t> kv_positions;
  std::vector<int32_t> rope_positions;
  std::vector<int32_t> table_index;  // index into `sequences`
  std::vector<StepSequence> sequences;
  std::vector<uint64_t> begins;        // sequences that are new or begin again
  std::vector<StepHistory> histories;  // of those of `begins` with penalties
  std::vector<uint64_t> ends;          // forgotten after this step
  BlockCopies copies;                  // done before any row

  int rows() const { return static_cast<int>(tokens.size()); }
};

// OK when the plan may be run as the step after `previous_step`.
// FailedPrecondition: another (term, epoch), a gap or a repeat in steps, an unknown sequence, a
// position beyond what was computed, an older branch, a table_start that does not join, a
// token_of_step that does not sample the token of this position or is too long ago.
// ResourceExhausted: more sequences than max_sequences. Unimplemented: fields of speculation.
// InvalidArgument: everything else, with field, value and bound.
absl::Status CheckPlan(const v1::MicroBatchPlan& plan, const StageLimits& limits,
                       uint64_t previous_step, const SequenceTable& table);

// Takes a plan that CheckPlan let through into the table.
StepPlan ApplyPlan(const v1::MicroBatchPlan& plan, const StageLimits& limits, SequenceTable& table);

// CheckPlan, then ApplyPlan. The table is untouched on error.
absl::StatusOr<StepPlan> AdmitPlan(const v1::MicroBatchPlan& plan, const StageLimits& limits,
                                   uint64_t previous_step, SequenceTable& table);

}  // namespace layercake::stage_worker
