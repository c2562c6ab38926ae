#include "coordinator/engine_impl.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "proto/errors.h"

namespace layercake::coordinator {
namespace {

constexpr absl::Duration kReaderCheck = absl::Milliseconds(50);

}  // namespace

EngineImpl::EngineImpl(EngineOptions options, const model::Tokenizer& tokenizer,
                       const base::Clock& clock, base::Executor& executor, base::Timers& timers,
                       base::Random& random, Events events)
    : options_(std::move(options)),
      tokenizer_(tokenizer),
      clock_(clock),
      executor_(executor),
      timers_(timers),
      random_(random),
      events_(std::move(events)),
      scheduler_(options_.scheduler),
      chain_(
          options_.chain, clock, timers, executor,
          Chain::Events{
              .on_serving =
                  [this] {
                    events_.on_ready(true);
                    Pump();
                  },
              .on_step_result = [this](v1::StepResult result) { OnStepResult(std::move(result)); },
              .on_failed = [this](absl::Status status) { OnChainFailed(status); },
              .on_changed = [this] { events_.on_changed(); },
          }) {}

EngineImpl::~EngineImpl() {
  timers_.Cancel(grace_timer_);
  timers_.Cancel(reader_timer_);
}

void EngineImpl::Start() {
  started_ = clock_.Now();
  chain_.Start();
}

// ---- the front: everything is posted

void EngineImpl::Submit(PreparedRequest request, std::shared_ptr<RequestSink> sink) {
  const bool posted = executor_.Post([this, request = std::move(request), sink]() mutable {
    DoSubmit(std::move(request), std::move(sink));
  });
  if (!posted) {
    sink->OnError(MakeError(ErrorReason::kQueueFull, "the coordinator's mailbox is full"));
  }
}

void EngineImpl::Drop(std::shared_ptr<RequestSink> sink) {
  // Lost only when the loop has ended, and every request with it.
  std::ignore = executor_.Post([this, sink = std::move(sink)] {
    const auto it = by_sink_.find(sink.get());
    if (it == by_sink_.end()) return;
    Forget(*requests_.at(it->second));
    Pump();
  });
}

void EngineImpl::Abort(std::vector<std::string> request_ids) {
  std::ignore = executor_.Post([this, ids = std::move(request_ids)] {
    for (const std::string& id : ids) DoAbort(id);
    Pump();
  });
}

void EngineImpl::GetStatus(absl::AnyInvocable<void(v1::GetStatusResponse)> done) {
  const auto shared = std::make_shared<decltype(done)>(std::move(done));
  if (executor_.Post([this, shared] { (*shared)(Status()); })) return;
  v1::GetStatusResponse gone;  // the loop has ended: the caller still gets its answer
  gone.set_state(v1::CHAIN_STATE_DRAINING);
  (*shared)(std::move(gone));
}

void EngineImpl::GetLoads(absl::AnyInvocable<void(v1::GetLoadsResponse)> done) {
  const auto shared = std::make_shared<decltype(done)>(std::move(done));
  if (!executor_.Post([this, shared] { (*shared)(Loads()); })) (*shared)({});
}

v1::GetLoadsResponse EngineImpl::Loads() const {
  v1::GetLoadsResponse loads;
  loads.set_running(scheduler_.running());
  loads.set_queued(scheduler_.queued());
  loads.set_kv_blocks_total(scheduler_.blocks().total());
  loads.set_kv_blocks_used(scheduler_.blocks().total() - scheduler_.blocks().free_count());
  loads.set_micro_batches_in_flight(scheduler_.in_flight());
  loads.set_prompt_tokens_total(prompt_tokens_total_);
  loads.set_output_tokens_total(output_tokens_total_);
  loads.set_steps_total(steps_total_);
  return loads;
}

void EngineImpl::AddSession(std::unique_ptr<CoordinatorLink> link, std::string peer) {
  std::ignore = executor_.Post([this, link = std::move(link), peer = std::move(peer)]() mutable {
    if (stopped_ || draining_) return;  // the link's end tells the worker
    chain_.AddSession(std::move(link), std::move(peer));
  });
}

v1::GetStatusResponse EngineImpl::Status() const {
  v1::GetStatusResponse status;
  chain_.FillStatus(status);
  status.set_uptime_seconds(absl::ToDoubleSeconds(clock_.Now() - started_));
  return status;
}

// ---- requests

absl::Status EngineImpl::CheckAdmission(const PreparedRequest& request) const {
  if (draining_) return MakeError(ErrorReason::kShuttingDown, "the server is shutting down");
  if (chain_.state() == v1::CHAIN_STATE_FAILED) {
    return MakeError(ErrorReason::kChainFailed,
                     absl::StrCat("the chain failed: ", chain_.failure().message()));
  }
  if (chain_.state() != v1::CHAIN_STATE_SERVING) {
    return MakeError(ErrorReason::kNotReady,
                     absl::StrCat("the chain is starting (", v1::ChainState_Name(chain_.state()),
                                  "): try again soon"));
  }
  if (by_request_id_.contains(request.request_id)) {
    return MakeError(ErrorReason::kRequestIdInUse,
                     absl::StrCat("request id \"", request.request_id, "\" is running already"),
                     "request_id");
  }
  return absl::OkStatus();
}

void EngineImpl::DoSubmit(PreparedRequest request, std::shared_ptr<RequestSink> sink) {
  if (request.request_id.empty()) {
    request.request_id = absl::StrFormat("req-%016x", random_.Next());
  }
  if (const absl::Status refused = CheckAdmission(request); !refused.ok()) {
    sink->OnError(refused);
    return;
  }
  const auto id = static_cast<SequenceId>(next_sequence_);
  const absl::Status added = scheduler_.Add(id, static_cast<int>(request.prompt.size()));
  if (!added.ok()) {
    sink->OnError(MakeError(ErrorReason::kQueueFull, added.message()));
    return;
  }
  ++next_sequence_;
  by_request_id_.emplace(request.request_id, id);
  by_sink_.emplace(sink.get(), id);
  prompt_tokens_total_ += request.prompt.size();
  requests_.emplace(id, std::make_unique<RequestState>(std::move(request), std::move(sink), id,
                                                       tokenizer_, clock_.Now()));
  Pump();
}

void EngineImpl::DoAbort(const std::string& request_id) {
  const auto it = by_request_id_.find(request_id);
  if (it == by_request_id_.end()) return;
  RequestState& request = *requests_.at(it->second);
  SendDelta(request, request.output.Finish());
  Finish(request, v1::FINISH_REASON_CANCELLED, "", -1);
}

// ---- plans out

void EngineImpl::Pump() {
  while (chain_.state() == v1::CHAIN_STATE_SERVING) {
    const std::optional<ScheduledStep> step = scheduler_.NextStep();
    if (!step) return;
    const absl::StatusOr<uint64_t> sent = chain_.SendPlan(BuildPlan(*step));
    if (!sent.ok()) {
      chain_.Fail(sent.status());
      return;
    }
    in_flight_.push_back({.chain_step = *sent, .step = step->step});
    ++steps_total_;
  }
}

v1::MicroBatchPlan EngineImpl::BuildPlan(const ScheduledStep& step) {
  v1::MicroBatchPlan plan;
  for (const ScheduledRows& rows : step.rows) AddRows(rows, plan);
  for (const SequenceId id : step.ends) plan.add_ends(static_cast<uint64_t>(id));
  return plan;
}

void EngineImpl::AddRows(const ScheduledRows& rows, v1::MicroBatchPlan& plan) {
  RequestState& request = *requests_.at(rows.sequence);
  const auto id = static_cast<uint64_t>(rows.sequence);
  if (rows.begins) {
    v1::SequenceBegin& begin = *plan.add_begins();
    begin.set_sequence(id);
    *begin.mutable_sampling() = request.prepared.sampling;
    begin.set_prompt_tokens(static_cast<uint32_t>(request.prepared.prompt.size()));
  }
  if (!request.admitted) {
    request.admitted = clock_.Now();
    v1::Started started;
    started.set_request_id(request.prepared.request_id);
    started.set_model(options_.model_name);
    started.set_prompt_tokens(static_cast<int>(request.prepared.prompt.size()));
    started.set_seed(request.prepared.sampling.seed());
    request.sink->OnStarted(started);
  }
  v1::RowDescriptor& row = *plan.add_rows();
  row.set_sequence(id);
  row.set_kv_position(static_cast<uint32_t>(rows.first));
  const auto first = request.tokens.begin() + rows.first;
  row.mutable_tokens()->Add(first, first + rows.count);
  row.set_known_tokens(static_cast<uint32_t>(rows.count));
  if (rows.samples) {
    const int last = rows.count - 1;
    std::string bitmap(static_cast<size_t>(last / 8 + 1), '\0');
    bitmap.back() = static_cast<char>(1 << (last % 8));
    row.set_sample_bitmap(std::move(bitmap));
  }
  row.set_table_start(static_cast<uint32_t>(rows.table_start));
  for (const BlockId block : rows.new_blocks) row.add_blocks(static_cast<uint32_t>(block));
  const bool in_prompt = rows.first < static_cast<int>(request.prepared.prompt.size());
  if (request.prepared.prompt_logprobs && in_prompt && !request.first_output) {
    row.set_score_tokens(true);
  }
}

// ---- results in

void EngineImpl::OnStepResult(v1::StepResult result) {
  // The chain has checked the order; the two numberings walk side by side.
  const StepInFlight step = in_flight_.front();
  in_flight_.pop_front();
  scheduler_.StepDone(step.step);
  for (v1::SequenceResult& sequence_result : *result.mutable_results()) {
    const auto it = requests_.find(static_cast<SequenceId>(sequence_result.sequence()));
    if (it == requests_.end()) continue;  // cancelled meanwhile
    const absl::Status status = OnSequenceResult(*it->second, sequence_result);
    if (!status.ok()) {
      chain_.Fail(status);
      return;
    }
  }
  StopIfDrained();
  Pump();
}

absl::Status EngineImpl::OnSequenceResult(RequestState& request, v1::SequenceResult& result) {
  if (result.has_non_finite_stage()) {
    FailRequest(request, MakeError(ErrorReason::kNonFinite,
                                   absl::StrCat("the model produced a NaN or infinity, first in "
                                                "stage ",
                                                result.non_finite_stage(), ", at position ",
                                                result.position()),
                                   absl::StrCat(result.non_finite_stage())));
    return absl::OkStatus();
  }
  if (result.scores_size() > 0) SendPromptLogprobs(request, result);
  if (result.tokens().empty()) return absl::OkStatus();
  if (result.tokens_size() != 1 || result.position() != request.tokens.size()) {
    return absl::DataLossError(absl::StrCat("a result of ", result.tokens_size(),
                                            " tokens at position ", result.position(),
                                            ", expected one at ", request.tokens.size()));
  }
  return OnToken(request, *result.mutable_tokens(0));
}

absl::Status EngineImpl::OnToken(RequestState& request, v1::SampledToken& sampled) {
  const int32_t token = sampled.token();
  request.last_output = clock_.Now();
  if (!request.first_output) request.first_output = request.last_output;
  request.tokens.push_back(token);
  ++output_tokens_total_;

  const PreparedRequest& prepared = request.prepared;
  const bool ends = (!prepared.ignore_end_of_generation && tokenizer_.IsEndOfGeneration(token)) ||
                    prepared.stop_token_ids.contains(token);
  if (ends) {
    SendDelta(request, request.output.Finish());
    Finish(request, v1::FINISH_REASON_STOP, "", token);
    return absl::OkStatus();
  }
  std::optional<v1::TokenLogprob> logprob;
  if (sampled.has_logprob()) logprob = std::move(*sampled.mutable_logprob());
  absl::StatusOr<OutputStream::Update> update = request.output.Add(token, std::move(logprob));
  if (!update.ok()) {
    return absl::DataLossError(
        absl::StrCat("a result outside the vocabulary: ", update.status().message()));
  }
  SendDelta(request, std::move(update->delta));
  if (!update->matched_stop.empty()) {
    Finish(request, v1::FINISH_REASON_STOP, update->matched_stop, -1);
    return absl::OkStatus();
  }
  if (request.output_tokens() >= prepared.max_tokens) {
    SendDelta(request, request.output.Finish());
    Finish(request, v1::FINISH_REASON_LENGTH, "", -1);
    return absl::OkStatus();
  }
  scheduler_.TokenAdded(request.sequence);
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
  scheduler_.SetPaused(request.sequence, true);
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
      scheduler_.SetPaused(id, false);
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

// ---- ends

void EngineImpl::Finish(RequestState& request, v1::FinishReason reason,
                        const std::string& matched_stop, int32_t matched_token) {
  v1::Finished finished;
  finished.set_reason(reason);
  finished.set_matched_stop(matched_stop);
  finished.set_matched_stop_token(matched_token);
  finished.mutable_usage()->set_prompt_tokens(static_cast<int>(request.prepared.prompt.size()));
  finished.mutable_usage()->set_completion_tokens(request.output_tokens());
  const base::Instant now = clock_.Now();
  const base::Instant admitted = request.admitted.value_or(now);
  const base::Instant first = request.first_output.value_or(now);
  v1::Timings& timings = *finished.mutable_timings();
  timings.set_queued(absl::ToDoubleSeconds(admitted - request.submitted));
  timings.set_prefill(absl::ToDoubleSeconds(first - admitted));
  if (request.first_output) {
    timings.set_decode(absl::ToDoubleSeconds(request.last_output - first));
  }
  request.sink->OnFinished(finished);
  Forget(request);
}

void EngineImpl::FailRequest(RequestState& request, const absl::Status& error) {
  request.sink->OnError(error);
  Forget(request);
}

void EngineImpl::Forget(RequestState& request) {
  const SequenceId id = request.sequence;
  scheduler_.Finish(id);
  by_request_id_.erase(request.prepared.request_id);
  by_sink_.erase(request.sink.get());
  requests_.erase(id);
}

void EngineImpl::EndAll(const absl::Status& error) {
  while (!requests_.empty()) FailRequest(*requests_.begin()->second, error);
}

void EngineImpl::OnChainFailed(const absl::Status& status) {
  events_.on_ready(false);
  EndAll(
      MakeError(ErrorReason::kChainFailed, absl::StrCat("the chain failed: ", status.message())));
  if (std::exchange(stopped_, true)) return;
  events_.on_stopped(status);
}

void EngineImpl::Drain(absl::Duration grace) {
  if (stopped_) return;
  if (std::exchange(draining_, true)) grace = absl::ZeroDuration();
  events_.on_ready(false);
  timers_.Cancel(grace_timer_);
  grace_timer_ = timers_.At(clock_.Now() + grace, [this] {
    EndAll(MakeError(ErrorReason::kShuttingDown, "the server is shutting down"));
    StopIfDrained();
  });
  StopIfDrained();
}

void EngineImpl::StopIfDrained() {
  if (!draining_ || !requests_.empty() || std::exchange(stopped_, true)) return;
  timers_.Cancel(grace_timer_);
  chain_.Shutdown("the server is shutting down", options_.chain.lease);
  events_.on_stopped(absl::OkStatus());
}

}  // namespace layercake::coordinator
