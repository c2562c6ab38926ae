#include "stage_worker/stage.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "stage_worker/activation_frame.h"

namespace layercake::stage_worker {
namespace {

constexpr int kMaxLogitRows = 64;
constexpr int kMeasuredBlocks = 16;  // as many as a few hundred tokens have
constexpr int kMeasuredRounds = 3;

bool OnDevice(const kernels::Buffer& buffer) {
  return buffer.space == kernels::MemorySpace::kDevice;
}

bool IsFinite(const v1::SequenceResult& result) { return !result.has_non_finite_stage(); }

void FillLogprob(const kernels::SampleResult& sampled, v1::TokenLogprob& logprob) {
  logprob.set_token(sampled.token);
  logprob.set_logprob(sampled.logprob);
  for (const kernels::TokenLogprob& entry : sampled.top) {
    v1::TokenLogprob* top = logprob.add_top();
    top->set_token(entry.token);
    top->set_logprob(entry.logprob);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Stage>> Stage::Create(kernels::Device& device, kernels::Ops& ops,
                                                     const model::ModelConfig& config,
                                                     StageWeights weights,
                                                     const StageLimits& limits,
                                                     kernels::KvType kv_type) {
  std::unique_ptr<Stage> stage(new Stage(device, ops, config, std::move(weights), limits));
  const kernels::KvCacheSpec spec = {.layers = limits.layer_end - limits.layer_first,
                                     .blocks = limits.kv_blocks,
                                     .block_tokens = limits.kv_block_tokens,
                                     .kv_heads = static_cast<int>(config.n_kv_heads),
                                     .head_dim = static_cast<int>(config.head_dim),
                                     .type = kv_type,
                                     .host_blocks = limits.host_kv_blocks};
  LC_ASSIGN_OR_RETURN(stage->cache_, ops.CreateKvCache(spec));
  stage->kv_bytes_ = kernels::KvCacheBytes(spec);
  LC_RETURN_IF_ERROR(stage->AllocateBuffers());
  LC_RETURN_IF_ERROR(ops.Prepare({.max_rows = limits.max_rows,
                                  .max_sequences = limits.max_sequences,
                                  .context_tokens = limits.context_tokens,
                                  .logit_rows = stage->logit_rows_,
                                  .vocabulary = config.vocab_size,
                                  .hidden = config.hidden_size,
                                  .q_width = static_cast<int64_t>(config.q_size()),
                                  .kv_width = static_cast<int64_t>(config.kv_size()),
                                  .ffn = config.ffn_size}));
  stage->buffer_bytes_ += ops.scratch_bytes();
  return stage;
}

Stage::Stage(kernels::Device& device, kernels::Ops& ops, const model::ModelConfig& config,
             StageWeights weights, const StageLimits& limits)
    : device_(device),
      ops_(ops),
      held_(dynamic_cast<kernels::HeldOps*>(&ops)),
      config_(config),
      weights_(std::move(weights)),
      limits_(limits) {}

absl::StatusOr<kernels::Buffer> Stage::AllocateRows(uint64_t rows, uint64_t width) {
  const auto elements = base::CheckedMul(rows, width);
  const auto bytes = elements ? base::CheckedMul(*elements, sizeof(float)) : std::nullopt;
  if (!bytes || *bytes > std::numeric_limits<size_t>::max() / 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("a buffer of ", rows, " x ", width, " floats does not fit an address space"));
  }
  LC_ASSIGN_OR_RETURN(std::unique_ptr<kernels::DeviceMemory> memory, device_.Allocate(*bytes));
  const kernels::Buffer buffer = memory->buffer();
  memory_.push_back(std::move(memory));
  buffer_bytes_ += *bytes;
  return buffer;
}

absl::Status Stage::AllocateBuffers() {
  const auto rows = static_cast<uint64_t>(limits_.max_rows);
  LC_ASSIGN_OR_RETURN(x_, AllocateRows(rows, config_.hidden_size));
  LC_ASSIGN_OR_RETURN(q_, AllocateRows(rows, config_.q_size()));
  LC_ASSIGN_OR_RETURN(attention_, AllocateRows(rows, config_.q_size()));
  LC_ASSIGN_OR_RETURN(ffn_, AllocateRows(rows, config_.ffn_size));
  non_finite_.resize(rows);
  if (!limits_.last()) return absl::OkStatus();
  logit_rows_ = std::min(limits_.max_rows, kMaxLogitRows);
  const auto logit_rows = static_cast<uint64_t>(logit_rows_);
  LC_ASSIGN_OR_RETURN(logits_, AllocateRows(logit_rows, config_.vocab_size));
  LC_ASSIGN_OR_RETURN(carried_, AllocateRows(logit_rows, config_.hidden_size));
  score_masks_.resize(logit_rows * ((config_.vocab_size + 31) / 32));
  return absl::OkStatus();
}

kernels::Buffer Stage::Rows(const kernels::Buffer& buffer, int rows, uint64_t width) const {
  return {buffer.address, static_cast<size_t>(rows) * width * sizeof(float), buffer.space};
}

absl::StatusOr<double> Stage::MeasureHostCopies(const base::Clock& clock) {
  const kernels::KvCacheSpec& spec = cache_->spec();
  const int blocks = std::min({spec.blocks, spec.host_blocks, kMeasuredBlocks});
  if (blocks == 0) return 0.0;
  // A copy that is waited for, behind all others.
  std::byte last{};
  const auto wait = [&] { return device_.CopyOut(x_, &last, 1); };
  LC_RETURN_IF_ERROR(wait());
  double seconds = std::numeric_limits<double>::infinity();  // of the best round
  for (int round = 0; round < kMeasuredRounds; ++round) {
    const base::Instant begin = clock.Now();
    for (int block = 0; block < blocks; ++block) {
      LC_RETURN_IF_ERROR(cache_->SaveBlock(block, block));
    }
    for (int block = 0; block < blocks; ++block) {
      LC_RETURN_IF_ERROR(cache_->RestoreBlock(block, block));
    }
    LC_RETURN_IF_ERROR(wait());
    seconds = std::min(seconds, absl::ToDoubleSeconds(clock.Now() - begin));
  }
  const double block_bytes =
      static_cast<double>(host_kv_bytes()) / static_cast<double>(spec.host_blocks);
  return seconds > 0 ? 2 * block_bytes * blocks / seconds / 1e9 : 0.0;
}

absl::Status Stage::ReadActivation(kernels::Buffer rows, size_t at) {
  if (rows.bytes == 0) return absl::OkStatus();
  const kernels::Buffer to = {x_.address + at, rows.bytes, x_.space};
  if (OnDevice(rows)) return device_.Copy(rows, to, rows.bytes);
  return device_.CopyIn(rows.address, to, rows.bytes);
}

absl::Status Stage::Prepare(const StepPlan& plan) {
  LC_RETURN_IF_ERROR(CopyBlocks(plan.copies));
  prepared_step_ = plan.step;
  if (plan.rows() == 0) return absl::OkStatus();
  // Until they are here others stand for the tokens.
  const std::vector<int32_t> tokens(static_cast<size_t>(plan.rows()), 0);
  LC_RETURN_IF_ERROR(RunLayers(plan, tokens));
  return held_->Hold();
}

absl::Status Stage::Run(const StepPlan& plan, std::vector<int32_t> marks,
                        const transport::SendSlot& slot, StepOutput& output) {
  const bool prepared = prepared_step_ == plan.step;
  if (!prepared) LC_RETURN_IF_ERROR(CopyBlocks(plan.copies));
  const absl::Span<uint8_t> found = absl::MakeSpan(non_finite_).subspan(0, marks.size());
  if (plan.rows() > 0) {
    LC_RETURN_IF_ERROR(prepared ? held_->Resume(plan.tokens) : RunLayers(plan, plan.tokens));
    LC_RETURN_IF_ERROR(ops_.FindNonFinite(Rows(x_, plan.rows(), config_.hidden_size),
                                          static_cast<int>(config_.hidden_size), found));
  }
  if (limits_.last()) return Sample(plan, marks, found, output);
  if (output.first_part_bytes != 0) return WriteFirstPart(std::move(marks), found, slot, output);
  // Copied before anyone knows what was found, so that the device is waited for once: rows that
  // just went bad are rare, and their marks make the section longer.
  LC_RETURN_IF_ERROR(WriteSection(marks, slot, output));
  LC_RETURN_IF_ERROR(WriteRows(slot, output));
  LC_RETURN_IF_ERROR(ops_.Finish());
  if (!AddMarks(found, marks)) return absl::OkStatus();
  LC_RETURN_IF_ERROR(WriteSection(marks, slot, output));
  // The rows follow the longer section; those in a device slot stand apart from it.
  return OnDevice(slot.memory) ? absl::OkStatus() : WriteRows(slot, output);
}

absl::Status Stage::WriteFirstPart(std::vector<int32_t> marks, absl::Span<const uint8_t> found,
                                   const transport::SendSlot& slot, StepOutput& output) {
  LC_RETURN_IF_ERROR(ops_.Finish());
  AddMarks(found, marks);
  LC_RETURN_IF_ERROR(WriteSection(marks, slot, output));
  const uint32_t end = std::min(output.first_part_bytes, output.payload_bytes);
  return WritePart(slot, output, output.section_bytes, end);
}

absl::Status Stage::WritePart(const transport::SendSlot& slot, const StepOutput& output,
                              uint32_t first, uint32_t end) {
  if (first >= end) return absl::OkStatus();
  const size_t at = first - output.section_bytes;
  const size_t bytes = end - first;
  return device_.CopyOut({x_.address + at, bytes, x_.space}, slot.memory.address + first, bytes);
}

bool Stage::AddMarks(absl::Span<const uint8_t> found, std::vector<int32_t>& marks) const {
  bool added = false;
  for (size_t row = 0; row < marks.size(); ++row) {
    if (marks[row] != kFinite || found[row] == 0) continue;
    marks[row] = limits_.stage;
    added = true;
  }
  return added;
}

absl::Status Stage::CopyBlocks(const BlockCopies& copies) {
  for (const BlockCopy& save : copies.saves) {
    LC_RETURN_IF_ERROR(cache_->SaveBlock(save.block, save.host_block));
  }
  for (const BlockCopy& restore : copies.restores) {
    LC_RETURN_IF_ERROR(cache_->RestoreBlock(restore.host_block, restore.block));
  }
  return absl::OkStatus();
}

absl::Status Stage::RunLayers(const StepPlan& plan, absl::Span<const int32_t> tokens) {
  std::vector<absl::Span<const int32_t>> tables;
  tables.reserve(plan.sequences.size());
  for (const StepSequence& sequence : plan.sequences) tables.emplace_back(sequence.blocks);
  const int rows = plan.rows();
  LC_RETURN_IF_ERROR(ops_.BeginStep({.rows = rows,
                                     .rope_position = plan.rope_positions,
                                     .kv_position = plan.kv_positions,
                                     .table_index = plan.table_index,
                                     .block_tables = tables}));
  const kernels::Buffer x = Rows(x_, rows, config_.hidden_size);
  const kernels::Buffer q = Rows(q_, rows, config_.q_size());
  const kernels::Buffer attention = Rows(attention_, rows, config_.q_size());
  const kernels::Buffer ffn = Rows(ffn_, rows, config_.ffn_size);
  if (limits_.first()) LC_RETURN_IF_ERROR(ops_.Embed(*weights_.embedding, tokens, x));
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    const LayerWeights& layer = weights_.layers[i];
    const auto cache_layer = static_cast<int>(i);
    LC_RETURN_IF_ERROR(
        ops_.AttentionInput(layer.attention, weights_.rope, x, *cache_, cache_layer, q));
    LC_RETURN_IF_ERROR(
        ops_.Attention(q, *cache_, cache_layer, static_cast<int>(config_.n_heads), attention));
    LC_RETURN_IF_ERROR(
        ops_.LinearAdd(*layer.attention_out, layer.attention_out_bias, attention, x));
    LC_RETURN_IF_ERROR(ops_.FfnInput(layer.ffn, x, ffn));
    LC_RETURN_IF_ERROR(ops_.LinearAdd(*layer.ffn_down, layer.ffn_down_bias, ffn, x));
  }
  return absl::OkStatus();
}

absl::Status Stage::WriteSection(absl::Span<const int32_t> marks, const transport::SendSlot& slot,
                                 StepOutput& output) {
  const std::string section = EncodeActivationSection(marks, config_.hidden_size);
  const size_t bytes = marks.size() * config_.hidden_size * sizeof(float);
  const kernels::Buffer& to = OnDevice(slot.memory) ? slot.section : slot.memory;
  if (section.size() + bytes > slot.memory.bytes || section.size() > to.bytes) {
    return absl::InternalError(absl::StrCat("an activation of ", section.size(), " + ", bytes,
                                            " bytes does not fit its slot of ", slot.memory.bytes,
                                            ", ", to.bytes, " of them for the section"));
  }
  std::memcpy(to.address, section.data(), section.size());
  output.section_bytes = static_cast<uint32_t>(section.size());
  output.payload_bytes = static_cast<uint32_t>(section.size() + bytes);
  return absl::OkStatus();
}

absl::Status Stage::WriteRows(const transport::SendSlot& slot, const StepOutput& output) {
  const size_t bytes = output.payload_bytes - output.section_bytes;
  if (bytes == 0) return absl::OkStatus();
  if (OnDevice(slot.memory)) return device_.Copy(x_, slot.memory, bytes);
  return device_.CopyOut(x_, slot.memory.address + output.section_bytes, bytes);
}

absl::Status Stage::Sample(const StepPlan& plan, std::vector<int32_t> marks,
                           absl::Span<const uint8_t> found, StepOutput& output) {
  for (const uint64_t id : plan.begins) carried_rows_.erase(id);
  std::vector<v1::SequenceResult> results(plan.sequences.size());
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    results[s].set_sequence(plan.sequences[s].id);
    results[s].set_branch(plan.sequences[s].branch);
  }
  ApplyMarks(plan, marks, results);
  const std::vector<LogitRow> wanted = WantedRows(plan, results);
  LC_RETURN_IF_ERROR(ScoreByCarriedRows(plan, results));
  LC_RETURN_IF_ERROR(LogitsOf(plan, wanted, x_, results));
  LC_RETURN_IF_ERROR(ops_.Finish());
  // Rows that this stage found non-finite were sampled all the same: what came of it is dropped.
  if (AddMarks(found, marks)) ApplyMarks(plan, marks, results);
  LC_RETURN_IF_ERROR(CarryRows(plan, results));
  for (const uint64_t id : plan.ends) carried_rows_.erase(id);
  for (v1::SequenceResult& result : results) {
    if (!IsFinite(result)) {
      result.clear_tokens();
      result.clear_position();
      result.clear_scores();
      result.clear_scores_position();
    } else if (result.tokens().empty() && result.scores().empty()) {
      continue;
    }
    output.results.push_back(std::move(result));
  }
  return absl::OkStatus();
}

void Stage::ApplyMarks(const StepPlan& plan, absl::Span<const int32_t> marks,
                       std::vector<v1::SequenceResult>& results) {
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    v1::SequenceResult& result = results[s];
    const auto first = static_cast<size_t>(plan.sequences[s].first_row);
    const auto count = static_cast<size_t>(plan.sequences[s].row_count);
    for (const int32_t mark : marks.subspan(first, count)) {
      if (mark == kFinite) continue;
      if (IsFinite(result) || mark < result.non_finite_stage()) result.set_non_finite_stage(mark);
    }
  }
}

std::vector<Stage::LogitRow> Stage::WantedRows(const StepPlan& plan,
                                               absl::Span<const v1::SequenceResult> results) const {
  std::vector<LogitRow> wanted;
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    const StepSequence& sequence = plan.sequences[s];
    if (!IsFinite(results[s])) continue;
    const int end = sequence.first_row + sequence.row_count;
    for (int row = sequence.first_row; row < end; ++row) {
      const int32_t position = plan.kv_positions[static_cast<size_t>(row)] + 1;
      if (row >= end - sequence.sampled_rows) {
        wanted.push_back({.sequence = s, .row = row, .position = position, .samples = true});
      } else if (sequence.score_tokens && row + 1 < end) {
        const int32_t next = plan.tokens[static_cast<size_t>(row) + 1];
        wanted.push_back({.sequence = s, .row = row, .position = position, .token = next});
      }
    }
  }
  return wanted;
}

absl::Status Stage::ScoreByCarriedRows(const StepPlan& plan,
                                       std::vector<v1::SequenceResult>& results) {
  std::vector<LogitRow> wanted;
  const auto flush = [&]() -> absl::Status {
    LC_RETURN_IF_ERROR(LogitsOf(plan, wanted, carried_, results));
    wanted.clear();
    return absl::OkStatus();
  };
  const size_t row_bytes = config_.hidden_size * sizeof(float);
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    const StepSequence& sequence = plan.sequences[s];
    const auto it = carried_rows_.find(sequence.id);
    if (!sequence.score_tokens || it == carried_rows_.end() || !IsFinite(results[s])) continue;
    const auto first = static_cast<size_t>(sequence.first_row);
    if (it->second.position + 1 != plan.kv_positions[first]) continue;
    const auto row = static_cast<int32_t>(wanted.size());
    const kernels::Buffer to = {carried_.address + static_cast<size_t>(row) * row_bytes, row_bytes,
                                carried_.space};
    LC_RETURN_IF_ERROR(
        device_.CopyIn(reinterpret_cast<const std::byte*>(it->second.x.data()), to, row_bytes));
    wanted.push_back({.sequence = s,
                      .row = row,
                      .position = plan.kv_positions[first],
                      .token = plan.tokens[first]});
    if (static_cast<int>(wanted.size()) == logit_rows_) LC_RETURN_IF_ERROR(flush());
  }
  return flush();
}

absl::Status Stage::CarryRows(const StepPlan& plan, absl::Span<const v1::SequenceResult> results) {
  const size_t row_bytes = config_.hidden_size * sizeof(float);
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    const StepSequence& sequence = plan.sequences[s];
    if (!sequence.score_tokens || !IsFinite(results[s])) {
      carried_rows_.erase(sequence.id);
      continue;
    }
    const auto last = static_cast<size_t>(sequence.first_row + sequence.row_count - 1);
    CarriedRow& carried = carried_rows_[sequence.id];
    carried.position = plan.kv_positions[last];
    carried.x.resize(config_.hidden_size);
    const kernels::Buffer from = {x_.address + last * row_bytes, row_bytes, x_.space};
    LC_RETURN_IF_ERROR(
        device_.CopyOut(from, reinterpret_cast<std::byte*>(carried.x.data()), row_bytes));
  }
  return absl::OkStatus();
}

absl::Status Stage::LogitsOf(const StepPlan& plan, absl::Span<const LogitRow> wanted,
                             kernels::Buffer x, std::vector<v1::SequenceResult>& results) {
  const auto vocabulary = static_cast<int64_t>(config_.vocab_size);
  const size_t mask_words = (config_.vocab_size + 31) / 32;
  for (size_t first = 0; first < wanted.size(); first += static_cast<size_t>(logit_rows_)) {
    const absl::Span<const LogitRow> part = wanted.subspan(first, static_cast<size_t>(logit_rows_));
    std::vector<int32_t> selected;
    for (const LogitRow& row : part) selected.push_back(row.row);
    const kernels::Buffer logits = Rows(logits_, static_cast<int>(part.size()), config_.vocab_size);
    const kernels::Buffer input = Rows(x, selected.back() + 1, config_.hidden_size);
    LC_RETURN_IF_ERROR(ops_.Logits(*weights_.output_norm, config_.norm_eps, *weights_.output,
                                   selected, input, logits));
    std::vector<kernels::SampleRequest> requests(part.size());
    for (size_t i = 0; i < part.size(); ++i) {
      const StepSequence& sequence = plan.sequences[part[i].sequence];
      kernels::SampleRequest& request = requests[i];
      request.logits_row = static_cast<int32_t>(i);
      request.top_logprobs = sequence.top_logprobs;
      if (part[i].samples) {
        request.params = sequence.sampling;
        request.position = static_cast<uint64_t>(part[i].position);
        request.seen = sequence.seen;
      } else {
        // A given token's log-probability is that of a draw which allows only this token: the
        // reported one is of the raw logits.
        const auto token = static_cast<size_t>(part[i].token);
        request.top_logprobs = std::max(0, sequence.top_logprobs);
        score_masks_[i * mask_words + token / 32] = uint32_t{1} << (token % 32);
        request.allowed = absl::MakeConstSpan(score_masks_).subspan(i * mask_words, mask_words);
      }
    }
    std::vector<kernels::SampleResult> sampled(part.size());
    LC_RETURN_IF_ERROR(ops_.Sample(logits, vocabulary, requests, absl::MakeSpan(sampled)));
    LC_RETURN_IF_ERROR(ops_.Finish());
    for (size_t i = 0; i < part.size(); ++i) {
      if (!part[i].samples) {
        score_masks_[i * mask_words + static_cast<size_t>(part[i].token) / 32] = 0;
      }
      AddResult(plan, part[i], sampled[i], results[part[i].sequence]);
    }
  }
  return absl::OkStatus();
}

void Stage::AddResult(const StepPlan& plan, const LogitRow& wanted,
                      const kernels::SampleResult& sampled, v1::SequenceResult& result) const {
  if (sampled.non_finite) {
    result.set_non_finite_stage(limits_.stage);
    return;
  }
  const auto position = static_cast<uint32_t>(wanted.position);
  if (wanted.samples) {
    if (result.tokens().empty()) result.set_position(position);
    v1::SampledToken* token = result.add_tokens();
    token->set_token(sampled.token);
    if (plan.sequences[wanted.sequence].top_logprobs >= 0) {
      FillLogprob(sampled, *token->mutable_logprob());
    }
    return;
  }
  if (result.scores().empty()) result.set_scores_position(position);
  FillLogprob(sampled, *result.add_scores());
}

}  // namespace layercake::stage_worker
