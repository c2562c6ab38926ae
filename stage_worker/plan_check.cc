#include "stage_worker/plan_check.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/sampling.h"

namespace layercake::stage_worker {
namespace {

// What is known of a sequence when its rows of this plan are looked at.
struct Known {
  uint32_t branch = 0;
  size_t length = 0;
  absl::Span<const int32_t> blocks;
  uint64_t sampled_step = 0;
};

template <class... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

template <class... Parts>
absl::Status Wrong(const Parts&... parts) {
  return absl::FailedPreconditionError(absl::StrCat(parts...));
}

absl::Status CheckToken(int32_t token, const StageLimits& limits, absl::string_view where) {
  if (token >= 0 && token < limits.vocabulary) return absl::OkStatus();
  return Invalid(where, ": token ", token, " is not in [0, ", limits.vocabulary, ")");
}

absl::Status CheckSampling(const v1::ResolvedSampling& sampling, uint64_t sequence) {
  const auto out_of_range = [&](absl::string_view field, double value, absl::string_view range) {
    return Invalid("sequence ", sequence, ": sampling.", field, " is ", value, ", must be ", range);
  };
  // Written so that a NaN fails.
  if (!(sampling.temperature() >= 0) || !std::isfinite(sampling.temperature())) {
    return out_of_range("temperature", sampling.temperature(), "finite and >= 0");
  }
  if (sampling.top_k() < 0) return out_of_range("top_k", sampling.top_k(), ">= 0");
  if (!(sampling.top_p() > 0 && sampling.top_p() <= 1)) {
    return out_of_range("top_p", sampling.top_p(), "in (0, 1]");
  }
  if (!(sampling.min_p() >= 0 && sampling.min_p() <= 1)) {
    return out_of_range("min_p", sampling.min_p(), "in [0, 1]");
  }
  if (!(sampling.repetition_penalty() > 0) || !std::isfinite(sampling.repetition_penalty())) {
    return out_of_range("repetition_penalty", sampling.repetition_penalty(), "finite and > 0");
  }
  if (!(std::abs(sampling.presence_penalty()) <= 2)) {
    return out_of_range("presence_penalty", sampling.presence_penalty(), "in [-2, 2]");
  }
  if (!(std::abs(sampling.frequency_penalty()) <= 2)) {
    return out_of_range("frequency_penalty", sampling.frequency_penalty(), "in [-2, 2]");
  }
  if (sampling.top_logprobs() < -1 || sampling.top_logprobs() > kernels::kMaxTopLogprobs) {
    return out_of_range("top_logprobs", sampling.top_logprobs(),
                        absl::StrCat("in [-1, ", kernels::kMaxTopLogprobs, "]"));
  }
  return absl::OkStatus();
}

absl::Status CheckBegin(const v1::SequenceBegin& begin, const StageLimits& limits) {
  LC_RETURN_IF_ERROR(CheckSampling(begin.sampling(), begin.sequence()));
  if (begin.prompt_tokens() > static_cast<uint32_t>(limits.context_tokens)) {
    return Invalid("sequence ", begin.sequence(), ": prompt_tokens ", begin.prompt_tokens(),
                   " is over the context of ", limits.context_tokens);
  }
  if (begin.history_size() > limits.context_tokens) {
    return Invalid("sequence ", begin.sequence(), ": history of ", begin.history_size(),
                   " tokens is over the context of ", limits.context_tokens);
  }
  for (const int32_t token : begin.history()) {
    LC_RETURN_IF_ERROR(
        CheckToken(token, limits, absl::StrCat("history of sequence ", begin.sequence())));
  }
  return absl::OkStatus();
}

absl::Status CheckNoSpeculation(const v1::RowDescriptor& rows) {
  absl::string_view field;
  if (rows.known_tokens() != static_cast<uint32_t>(rows.tokens_size())) field = "known_tokens";
  if (rows.speculative()) field = "speculative";
  if (rows.droppable()) field = "droppable";
  if (rows.all_logits()) field = "all_logits";
  if (rows.feature_tap()) field = "feature_tap";
  if (rows.draft_source() != 0) field = "draft_source";
  if (rows.parent() != 0) field = "parent";
  if (rows.speculative_blocks() != 0) field = "speculative_blocks";
  if (!rows.token_mask().empty()) field = "token_mask";
  if (field.empty()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "sequence ", rows.sequence(), ": rows use `", field,
      "`, which this worker did not offer in its capabilities (known_tokens must equal the number "
      "of tokens, ",
      rows.tokens_size(), ")"));
}

absl::Status CheckBlocks(const v1::RowDescriptor& rows, const StageLimits& limits,
                         const Known& known) {
  const size_t table_start = rows.table_start();
  if (table_start != 0 && table_start != known.blocks.size()) {
    return Wrong("sequence ", rows.sequence(), ": table_start is ", table_start, ", but ",
                 known.blocks.size(), " blocks are known");
  }
  const size_t most = (static_cast<size_t>(limits.context_tokens) +
                       static_cast<size_t>(limits.kv_block_tokens) - 1) /
                      static_cast<size_t>(limits.kv_block_tokens);
  const auto given = static_cast<size_t>(rows.blocks_size());
  if (given > most || table_start + given > most) {
    return Invalid("sequence ", rows.sequence(), ": a block table of ", table_start, " + ", given,
                   " entries is over the ", most, " that a context of ", limits.context_tokens,
                   " tokens takes");
  }
  for (const uint32_t block : rows.blocks()) {
    if (block >= static_cast<uint32_t>(limits.kv_blocks)) {
      return Invalid("sequence ", rows.sequence(), ": block ", block, " is not in [0, ",
                     limits.kv_blocks, ")");
    }
  }
  return absl::OkStatus();
}

// The table that the rows of this plan see: the old one, with the given entries behind it or in
// its place. No entries leave it as it is.
int32_t BlockAt(const v1::RowDescriptor& rows, const Known& known, size_t index) {
  const size_t kept = rows.blocks_size() > 0 ? rows.table_start() : known.blocks.size();
  if (index < kept) return known.blocks[index];
  return static_cast<int32_t>(rows.blocks(static_cast<int>(index - kept)));
}

size_t TableSize(const v1::RowDescriptor& rows, const Known& known) {
  if (rows.blocks_size() == 0) return known.blocks.size();
  return rows.table_start() + static_cast<size_t>(rows.blocks_size());
}

absl::Status CheckPositions(const v1::RowDescriptor& rows, const StageLimits& limits,
                            const Known& known) {
  const auto count = static_cast<size_t>(rows.tokens_size());
  const size_t first = rows.kv_position();
  const auto context = static_cast<size_t>(limits.context_tokens);
  if (first > context || count > context - first) {
    return Invalid("sequence ", rows.sequence(), ": positions ", first, " + ", count,
                   " are over the context of ", context);
  }
  if (first > known.length) {
    return Wrong("sequence ", rows.sequence(), ": rows begin at position ", first, ", but only ",
                 known.length, " positions were computed");
  }
  const size_t covered = TableSize(rows, known) * static_cast<size_t>(limits.kv_block_tokens);
  if (first + count > covered) {
    return Invalid("sequence ", rows.sequence(), ": positions up to ", first + count,
                   " are beyond the ", covered, " that its block table covers");
  }
  if (rows.rope_positions_size() != 0 && rows.rope_positions_size() != rows.tokens_size()) {
    return Invalid("sequence ", rows.sequence(), ": ", rows.rope_positions_size(),
                   " rope_positions for ", count, " tokens");
  }
  for (const int32_t position : rows.rope_positions()) {
    if (position < 0 || position >= limits.context_tokens) {
      return Invalid("sequence ", rows.sequence(), ": rope position ", position, " is not in [0, ",
                     context, ")");
    }
  }
  return absl::OkStatus();
}

bool SampleBit(const v1::RowDescriptor& rows, int i) {
  const std::string& bits = rows.sample_bitmap();
  return !bits.empty() && ((static_cast<uint8_t>(bits[static_cast<size_t>(i / 8)]) >> (i % 8)) & 1);
}

int SampledRows(const v1::RowDescriptor& rows) {
  int sampled = 0;
  while (sampled < rows.tokens_size() && SampleBit(rows, rows.tokens_size() - 1 - sampled)) {
    ++sampled;
  }
  return sampled;
}

absl::Status CheckSampledRows(const v1::RowDescriptor& rows) {
  const int count = rows.tokens_size();
  const auto bytes = static_cast<size_t>((count + 7) / 8);
  const std::string& bits = rows.sample_bitmap();
  if (!bits.empty() && bits.size() != bytes) {
    return Invalid("sequence ", rows.sequence(), ": sample_bitmap has ", bits.size(),
                   " bytes, must be empty or ", bytes, " for ", count, " tokens");
  }
  if (count % 8 != 0 && !bits.empty() && (static_cast<uint8_t>(bits.back()) >> (count % 8)) != 0) {
    return Invalid("sequence ", rows.sequence(), ": sample_bitmap has bits beyond its ", count,
                   " tokens");
  }
  for (int i = 0; i + 1 < count; ++i) {
    // Tokens that are already known need no sampling; only their logits' scores can be asked for.
    if (SampleBit(rows, i)) {
      return absl::UnimplementedError(absl::StrCat(
          "sequence ", rows.sequence(), ": sample_bitmap asks for token ", i, " of ", count,
          "; without drafts only the last one can be sampled (score_tokens gives the others' "
          "log-probabilities)"));
    }
  }
  return absl::OkStatus();
}

// Two rows of a step that write the same place of the cache would race.
absl::Status CheckWrites(const v1::RowDescriptor& rows, const StageLimits& limits,
                         const Known& known, absl::flat_hash_set<uint64_t>& written) {
  const auto block_tokens = static_cast<uint64_t>(limits.kv_block_tokens);
  for (int i = 0; i < rows.tokens_size(); ++i) {
    const uint64_t position = rows.kv_position() + static_cast<uint64_t>(i);
    const auto block = static_cast<uint64_t>(BlockAt(rows, known, position / block_tokens));
    if (!written.insert(block * block_tokens + position % block_tokens).second) {
      return Invalid("sequence ", rows.sequence(), ": position ", position, " lies in block ",
                     block, ", where another row of this step writes too");
    }
  }
  return absl::OkStatus();
}

// A row whose token an earlier step samples, perhaps not yet.
absl::Status CheckTokenOfStep(const v1::RowDescriptor& rows, const StageLimits& limits,
                              uint64_t step, const Known& known) {
  const uint64_t of = rows.token_of_step();
  if (rows.tokens_size() != 1) {
    return Invalid("sequence ", rows.sequence(), ": token_of_step with ", rows.tokens_size(),
                   " tokens, must be one");
  }
  if (of >= step || step - of > static_cast<uint64_t>(limits.max_in_flight)) {
    return Wrong("sequence ", rows.sequence(), ": token_of_step ", of, " in step ", step,
                 " must be one of the ", limits.max_in_flight, " before it (max_in_flight)");
  }
  if (of != known.sampled_step || rows.kv_position() != known.length) {
    return Wrong(
        "sequence ", rows.sequence(), ": step ", of, " does not sample the token of position ",
        rows.kv_position(), "; known are ", known.length, " positions and ",
        known.sampled_step == 0 ? std::string("no sampling step")
                                : absl::StrCat("step ", known.sampled_step, " after them"));
  }
  return absl::OkStatus();
}

absl::Status CheckTokens(const v1::RowDescriptor& rows, const StageLimits& limits, uint64_t step,
                         const Known& known) {
  if (rows.tokens_size() == 0) return Invalid("sequence ", rows.sequence(), ": no tokens");
  if (rows.token_of_step() != 0) return CheckTokenOfStep(rows, limits, step, known);
  for (const int32_t token : rows.tokens()) {
    LC_RETURN_IF_ERROR(CheckToken(token, limits, absl::StrCat("sequence ", rows.sequence())));
  }
  return absl::OkStatus();
}

absl::Status CheckRows(const v1::RowDescriptor& rows, const StageLimits& limits, uint64_t step,
                       const Known& known, absl::flat_hash_set<uint64_t>& written) {
  LC_RETURN_IF_ERROR(CheckTokens(rows, limits, step, known));
  if (rows.branch() < known.branch) {
    return Wrong("sequence ", rows.sequence(), ": branch ", rows.branch(), " is older than ",
                 known.branch);
  }
  LC_RETURN_IF_ERROR(CheckNoSpeculation(rows));
  LC_RETURN_IF_ERROR(CheckBlocks(rows, limits, known));
  LC_RETURN_IF_ERROR(CheckPositions(rows, limits, known));
  LC_RETURN_IF_ERROR(CheckSampledRows(rows));
  return CheckWrites(rows, limits, known, written);
}

absl::Status CheckPlace(const v1::MicroBatchPlan& plan, const StageLimits& limits,
                        uint64_t previous_step) {
  if (plan.term() != limits.term || plan.epoch() != limits.epoch) {
    return Wrong("plan of term ", plan.term(), " epoch ", plan.epoch(), "; this stage runs term ",
                 limits.term, " epoch ", limits.epoch);
  }
  if (plan.step() != previous_step + 1) {
    return Wrong("plan of step ", plan.step(), " came after step ", previous_step,
                 plan.step() <= previous_step ? " (a repeat)" : " (a gap)");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPlan(const v1::MicroBatchPlan& plan, const StageLimits& limits,
                       uint64_t previous_step, const SequenceTable& table) {
  LC_RETURN_IF_ERROR(CheckPlace(plan, limits, previous_step));
  LC_RETURN_IF_ERROR(CheckBlockCopies(plan, limits, table.saved_blocks()));
  absl::flat_hash_map<uint64_t, const v1::SequenceBegin*> begun;
  size_t sequences = table.size();
  for (const v1::SequenceBegin& begin : plan.begins()) {
    LC_RETURN_IF_ERROR(CheckBegin(begin, limits));
    if (!begun.emplace(begin.sequence(), &begin).second) {
      return Invalid("sequence ", begin.sequence(), " begins twice in one plan");
    }
    if (!table.Contains(begin.sequence())) ++sequences;
    if (sequences > static_cast<size_t>(limits.max_sequences)) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "sequence ", begin.sequence(), " would be one more than the ", limits.max_sequences,
          " sequences that this chain was given (max_sequences)"));
    }
  }
  int64_t row_count = 0;
  absl::flat_hash_set<uint64_t> seen;
  absl::flat_hash_set<uint64_t> written;
  for (const v1::RowDescriptor& rows : plan.rows()) {
    if (!seen.insert(rows.sequence()).second) {
      return Invalid("sequence ", rows.sequence(), " has rows twice in one plan");
    }
    row_count += rows.tokens_size();
    if (row_count > limits.max_rows) {
      return Invalid("more than the ", limits.max_rows, " rows that a micro-batch may have");
    }
    Known known;
    if (const auto it = begun.find(rows.sequence()); it != begun.end()) {
      known.length = static_cast<size_t>(it->second->history_size());
    } else if (const Sequence* sequence = table.Find(rows.sequence()); sequence != nullptr) {
      known = {sequence->branch, sequence->length, sequence->blocks, sequence->sampled_step};
    } else {
      return Wrong("sequence ", rows.sequence(), " has rows but was not begun");
    }
    LC_RETURN_IF_ERROR(CheckRows(rows, limits, plan.step(), known, written));
  }
  absl::flat_hash_set<uint64_t> ended;
  for (const uint64_t id : plan.ends()) {
    if (!table.Contains(id) && !begun.contains(id)) {
      return Wrong("sequence ", id, " ends but is not known");
    }
    if (!ended.insert(id).second) return Invalid("sequence ", id, " ends twice in one plan");
  }
  return absl::OkStatus();
}

namespace {

void ApplyBegin(const v1::SequenceBegin& begin, bool keep_history, SequenceTable& table,
                StepPlan& step) {
  Sequence sequence;
  const v1::ResolvedSampling& from = begin.sampling();
  sequence.sampling = {.temperature = from.temperature(),
                       .top_k = from.top_k(),
                       .top_p = from.top_p(),
                       .min_p = from.min_p(),
                       .repetition_penalty = from.repetition_penalty(),
                       .presence_penalty = from.presence_penalty(),
                       .frequency_penalty = from.frequency_penalty(),
                       .seed = from.seed()};
  sequence.top_logprobs = from.top_logprobs();
  sequence.length = static_cast<size_t>(begin.history_size());
  step.begins.push_back(begin.sequence());
  if (keep_history && HasPenalties(sequence.sampling)) {
    step.histories.push_back({.sequence = begin.sequence(),
                              .prompt_tokens = begin.prompt_tokens(),
                              .tokens = {begin.history().begin(), begin.history().end()}});
  }
  table.Begin(begin.sequence(), std::move(sequence));
}

void ApplyToSequence(const v1::RowDescriptor& rows, uint64_t step, Sequence& sequence) {
  sequence.branch = rows.branch();
  if (rows.blocks_size() > 0) {
    sequence.blocks.resize(rows.table_start());
    for (const uint32_t block : rows.blocks()) {
      sequence.blocks.push_back(static_cast<int32_t>(block));
    }
  }
  sequence.length = rows.kv_position() + static_cast<size_t>(rows.tokens_size());
  sequence.sampled_step = SampledRows(rows) > 0 ? step : 0;
}

void AppendRows(const v1::RowDescriptor& rows, StepPlan& step) {
  const auto index = static_cast<int32_t>(step.sequences.size());
  for (int i = 0; i < rows.tokens_size(); ++i) {
    const auto position = static_cast<int32_t>(rows.kv_position()) + i;
    step.tokens.push_back(rows.token_of_step() == 0 ? rows.tokens(i) : 0);
    step.kv_positions.push_back(position);
    step.rope_positions.push_back(rows.rope_positions_size() > 0 ? rows.rope_positions(i)
                                                                 : position);
    step.table_index.push_back(index);
  }
}

}  // namespace

StepPlan ApplyPlan(const v1::MicroBatchPlan& plan, const StageLimits& limits,
                   SequenceTable& table) {
  StepPlan step;
  step.step = plan.step();
  step.copies = table.saved_blocks().Apply(plan);
  for (const v1::SequenceBegin& begin : plan.begins()) {
    ApplyBegin(begin, limits.last(), table, step);
  }
  for (const v1::RowDescriptor& rows : plan.rows()) {
    Sequence& sequence = *table.Find(rows.sequence());
    ApplyToSequence(rows, plan.step(), sequence);
    StepSequence part;
    part.id = rows.sequence();
    part.branch = rows.branch();
    part.first_row = step.rows();
    part.row_count = rows.tokens_size();
    part.sampled_rows = SampledRows(rows);
    part.score_tokens = rows.score_tokens();
    part.token_of_step = rows.token_of_step();
    part.blocks = sequence.blocks;
    part.sampling = sequence.sampling;
    part.top_logprobs = sequence.top_logprobs;
    AppendRows(rows, step);
    step.sequences.push_back(std::move(part));
  }
  for (const uint64_t id : plan.ends()) {
    table.End(id);
    step.ends.push_back(id);
  }
  return step;
}

absl::StatusOr<StepPlan> AdmitPlan(const v1::MicroBatchPlan& plan, const StageLimits& limits,
                                   uint64_t previous_step, SequenceTable& table) {
  const absl::Status checked = CheckPlan(plan, limits, previous_step, table);
  if (!checked.ok()) {
    return absl::Status(checked.code(), absl::StrCat("plan of step ", plan.step(),
                                                     " refused: ", checked.message()));
  }
  return ApplyPlan(plan, limits, table);
}

}  // namespace layercake::stage_worker
