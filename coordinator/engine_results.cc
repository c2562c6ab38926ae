// What the engine makes of the chain's results: tokens to text, to clients, to the scheduler.
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/engine_impl.h"
#include "coordinator/kv_budget.h"
#include "proto/errors.h"
#include "spdlog/spdlog.h"

namespace layercake::coordinator {
namespace {

constexpr absl::Duration kReaderCheck = absl::Milliseconds(50);

}  // namespace

void EngineImpl::OnStageCounters(int stage, const v1::StageCounters& counters) {
  for (const v1::StepTime& time : counters.recent_steps()) {
    if (time.step() <= chain_step_offset_) continue;  // the test of the chain
    scheduler_.StepTime(stage, static_cast<StepId>(time.step() - chain_step_offset_),
                        time.seconds());
  }
}

void EngineImpl::OnStageReady(int stage, const v1::StageReady& ready) {
  const std::vector<StageMemory>& promised = options_.chain.plan.memory;
  const auto s = static_cast<size_t>(stage);
  if (s < promised.size() && promised[s].total() > 0) {
    // What the driver took beside that only the worker could say, and others share the device.
    const StageMemory used = {.weights = ready.weight_bytes(),
                              .kv = ready.kv_bytes(),
                              .buffers = ready.buffer_bytes(),
                              .backend = promised[s].backend};
    spdlog::info("stage {}: promised {}; takes {}, the CUDA part as promised", stage,
                 DescribeMemory(promised[s]), DescribeMemory(used));
  }
  const int blocks = options_.scheduler.host_blocks;
  if (blocks == 0) return;
  const double speed = ready.host_copy_gigabytes_per_second();
  // What makes no sense counts as not measured.
  const double seconds = static_cast<double>(ready.host_kv_bytes()) / blocks / (speed * 1e9);
  scheduler_.SetCopySeconds(stage, speed > 0 ? seconds : 0);
  spdlog::info("stage {}: host memory for {} KV blocks, {} bytes, copied at {:.1f} GB/s", stage,
               blocks, ready.host_kv_bytes(), speed);
}

void EngineImpl::OnStepResult(v1::StepResult result) {
  // The chain has checked the order; the two numberings walk side by side.
  const StepId step = in_flight_.front();
  in_flight_.pop_front();
  scheduler_.StepDone(step, clock_.Now());
  for (v1::SequenceResult& sequence_result : *result.mutable_results()) {
    const auto it = by_sequence_.find(static_cast<SequenceId>(sequence_result.sequence()));
    if (it == by_sequence_.end()) continue;  // cancelled meanwhile
    const absl::Status status = OnSequenceResult(Owner(it->second), sequence_result);
    if (!status.ok()) {
      chain_.Fail(status);
      return;
    }
  }
  StopIfDrained();
  Pump();
}

absl::Status EngineImpl::OnSequenceResult(const Owner& owner, v1::SequenceResult& result) {
  if (result.has_non_finite_stage()) {
    scheduler_.Distrust(owner.choice->sequence);
    FailRequest(
        *owner.request,
        MakeError(ErrorReason::kNonFinite,
                  absl::StrCat("the model produced a NaN or infinity, first in "
                               "stage ",
                               result.non_finite_stage(), ", at position ", result.position()),
                  absl::StrCat(result.non_finite_stage())));
    return absl::OkStatus();
  }
  if (result.scores_size() > 0) SendPromptLogprobs(*owner.request, result);
  if (result.tokens().empty()) return absl::OkStatus();
  if (result.tokens_size() != 1 || result.position() != owner.choice->tokens.size()) {
    return absl::DataLossError(absl::StrCat("a result of ", result.tokens_size(),
                                            " tokens at position ", result.position(),
                                            ", expected one at ", owner.choice->tokens.size()));
  }
  return OnToken(owner, *result.mutable_tokens(0));
}

absl::Status EngineImpl::OnToken(const Owner& owner, v1::SampledToken& sampled) {
  RequestState& request = *owner.request;
  ChoiceState& choice = *owner.choice;
  const int32_t token = sampled.token();
  choice.last_output = clock_.Now();
  if (!choice.first_output) choice.first_output = choice.last_output;
  choice.tokens.push_back(token);
  ++output_tokens_total_;

  const PreparedRequest& prepared = request.prepared;
  const bool ends = (!prepared.ignore_end_of_generation && tokenizer_.IsEndOfGeneration(token)) ||
                    prepared.stop_token_ids.contains(token);
  if (ends) {
    SendDelta(request, choice.output.Finish());
    Finish(owner, v1::FINISH_REASON_STOP, "", token);
    return absl::OkStatus();
  }
  std::optional<v1::TokenLogprob> logprob;
  if (sampled.has_logprob()) logprob = std::move(*sampled.mutable_logprob());
  absl::StatusOr<OutputStream::Update> update = choice.output.Add(token, std::move(logprob));
  if (!update.ok()) {
    return absl::DataLossError(
        absl::StrCat("a result outside the vocabulary: ", update.status().message()));
  }
  SendDelta(request, std::move(update->delta));
  if (!update->matched_stop.empty()) {
    Finish(owner, v1::FINISH_REASON_STOP, update->matched_stop, -1);
    return absl::OkStatus();
  }
  if (request.output_tokens(choice) >= prepared.max_tokens) {
    SendDelta(request, choice.output.Finish());
    Finish(owner, v1::FINISH_REASON_LENGTH, "", -1);
    return absl::OkStatus();
  }
  scheduler_.TokenAdded(choice.sequence, token);
  return absl::OkStatus();
}

void EngineImpl::SendPromptLogprobs(RequestState& request, v1::SequenceResult& result) {
  v1::PromptLogprobs logprobs;
  logprobs.set_first(static_cast<int>(result.scores_position()));
  logprobs.mutable_logprobs()->Swap(result.mutable_scores());
  for (v1::TokenLogprob& entry : *logprobs.mutable_logprobs()) {
    const auto piece = tokenizer_.TokenToPiece(entry.token(), /*show_control=*/true);
    if (piece.ok()) entry.set_text(std::string(*piece));
  }
  request.sink->OnPromptLogprobs(logprobs);
}

void EngineImpl::SendDelta(RequestState& request, std::optional<v1::Delta> delta) {
  if (!delta) return;
  request.sink->OnDelta(*std::move(delta));
  if (request.paused_since || request.sink->pending_bytes() <= options_.max_pending_bytes) return;
  request.paused_since = clock_.Now();
  for (const auto& choice : request.choices) scheduler_.SetPaused(choice->sequence, true);
  if (reader_timer_ == base::TimerId::kNone) {
    reader_timer_ = timers_.At(clock_.Now() + kReaderCheck, [this] { CheckReaders(); });
  }
}

void EngineImpl::CheckReaders() {
  reader_timer_ = base::TimerId::kNone;
  const base::Instant now = clock_.Now();
  std::vector<SequenceId> hopeless;
  bool paused = false;
  for (auto& [id, request] : requests_) {
    if (!request->paused_since) continue;
    if (request->sink->pending_bytes() <= options_.max_pending_bytes / 2) {
      request->paused_since.reset();
      for (const auto& choice : request->choices) scheduler_.SetPaused(choice->sequence, false);
    } else if (now - *request->paused_since > options_.reader_timeout) {
      hopeless.push_back(id);
    } else {
      paused = true;
    }
  }
  for (const SequenceId id : hopeless) {
    FailRequest(*requests_.at(id),
                MakeError(ErrorReason::kDeadline,
                          absl::StrCat("the client has read nothing for ",
                                       absl::FormatDuration(options_.reader_timeout))));
  }
  if (paused) {
    reader_timer_ = timers_.At(now + kReaderCheck, [this] { CheckReaders(); });
  }
  Pump();
}

}  // namespace layercake::coordinator
