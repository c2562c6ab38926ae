#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "stage_worker/plan_check.h"
#include "stage_worker/plan_fuzz.h"
#include "stage_worker/token_ledger.h"

namespace layercake::stage_worker {
namespace {

void CheckPromises(const StepPlan& step, const StageLimits& limits) {
  const auto rows = static_cast<size_t>(step.rows());
  LC_CHECK(step.rows() <= limits.max_rows, "rows ", rows);
  LC_CHECK(step.kv_positions.size() == rows && step.rope_positions.size() == rows &&
               step.table_index.size() == rows,
           "arrays of another length");
  for (const std::vector<BlockCopy>* list : {&step.copies.saves, &step.copies.restores}) {
    LC_CHECK(list->size() <= static_cast<size_t>(limits.kv_blocks + limits.host_kv_blocks),
             "copies ", list->size());
    for (const BlockCopy& copy : *list) {
      LC_CHECK(copy.block >= 0 && copy.block < limits.kv_blocks, "block ", copy.block);
      LC_CHECK(copy.host_block >= 0 && copy.host_block < limits.host_kv_blocks, "host block ",
               copy.host_block);
    }
  }
  std::set<std::pair<int32_t, int32_t>> written;
  for (size_t row = 0; row < rows; ++row) {
    const auto table = static_cast<size_t>(step.table_index[row]);
    LC_CHECK(table < step.sequences.size(), "table ", table);
    const std::vector<int32_t>& blocks = step.sequences[table].blocks;
    const int32_t position = step.kv_positions[row];
    LC_CHECK(step.tokens[row] >= 0 && step.tokens[row] < limits.vocabulary, "token");
    LC_CHECK(position >= 0 && position < limits.context_tokens, "position ", position);
    LC_CHECK(step.rope_positions[row] >= 0, "rope position");
    const auto index = static_cast<size_t>(position / limits.kv_block_tokens);
    LC_CHECK(index < blocks.size(), "block index ", index);
    LC_CHECK(written.insert({blocks[index], position % limits.kv_block_tokens}).second,
             "two rows write one place");
  }
  int next_row = 0;
  for (const StepSequence& sequence : step.sequences) {
    LC_CHECK(sequence.first_row == next_row && sequence.row_count > 0, "rows of a sequence");
    LC_CHECK(sequence.sampled_rows >= 0 && sequence.sampled_rows <= sequence.row_count, "sampled");
    next_row += sequence.row_count;
    for (const int32_t block : sequence.blocks) {
      LC_CHECK(block >= 0 && block < limits.kv_blocks, "block ", block);
    }
    const uint64_t of = sequence.token_of_step;
    LC_CHECK(of == 0 || (sequence.row_count == 1 && of < step.step &&
                         step.step - of <= static_cast<uint64_t>(limits.max_in_flight)),
             "token of step ", of);
  }
  LC_CHECK(next_row == step.rows(), "rows without a sequence");
}

// What the last stage makes of an admitted step, in its turn: every token that it was promised is
// there.
void RunStep(StepPlan& step, const StageLimits& limits, TokenLedger& ledger) {
  const absl::Status begun = ledger.Begin(step);
  LC_CHECK(begun.ok(), begun.ToString());
  std::vector<v1::SequenceResult> results;
  for (const StepSequence& sequence : step.sequences) {
    for (const kernels::SeenToken& seen : sequence.seen) {
      LC_CHECK(seen.token >= 0 && seen.token < limits.vocabulary, "seen token");
    }
    if (sequence.sampled_rows == 0 || step.step % 5 == 0) continue;  // or it is not finite
    results.emplace_back().set_sequence(sequence.id);
    results.back().add_tokens()->set_token(static_cast<int32_t>(step.step) % limits.vocabulary);
  }
  ledger.End(step, results);
  LC_CHECK(ledger.histories() <= static_cast<size_t>(limits.max_sequences), "histories");
}

}  // namespace

void RunPlanFuzz(const uint8_t* bytes, size_t size) {
  const StageLimits limits = {.term = 7,
                              .epoch = 3,
                              .stage = 0,
                              .stage_count = 1,
                              .layer_first = 0,
                              .layer_end = 1,
                              .kv_blocks = 16,
                              .host_kv_blocks = 4,
                              .kv_block_tokens = 4,
                              .max_rows = 12,
                              .max_sequences = 4,
                              .context_tokens = 32,
                              .max_in_flight = 2,
                              .vocabulary = 100};
  SequenceTable table;
  TokenLedger ledger(limits);
  uint64_t step = 0;
  for (size_t at = 0; at < size;) {
    const size_t length = std::min<size_t>(bytes[at], size - at - 1);
    v1::MicroBatchPlan plan;
    const bool parsed = plan.ParseFromArray(bytes + at + 1, static_cast<int>(length));
    at += 1 + length;
    if (!parsed) continue;
    // Most inputs would end at these three.
    plan.set_term(limits.term);
    plan.set_epoch(limits.epoch);
    plan.set_step(step + 1);
    absl::StatusOr<StepPlan> admitted = AdmitPlan(plan, limits, step, table);
    if (!admitted.ok()) continue;
    ++step;
    CheckPromises(*admitted, limits);
    RunStep(*admitted, limits, ledger);
    LC_CHECK(table.size() <= static_cast<size_t>(limits.max_sequences), "sequences ", table.size());
  }
}

}  // namespace layercake::stage_worker
