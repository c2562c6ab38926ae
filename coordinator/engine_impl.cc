#include "coordinator/engine_impl.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "proto/errors.h"
#include "spdlog/spdlog.h"

namespace layercake::coordinator {
namespace {

// The seed of choice `index`: the request's own for the first, so that asking for more choices does
// not change it.
uint64_t ChoiceSeed(uint64_t seed, int index) {
  if (index == 0) return seed;
  base::SeededRandom random(seed ^ (static_cast<uint64_t>(index) * 0x9E3779B97F4A7C15u));
  return random.Next();
}

// Tokens, prompt included, at which a sequence ends in any case.
int LastToken(const PreparedRequest& request) {
  const int64_t last = static_cast<int64_t>(request.prompt.size()) + request.max_tokens;
  return static_cast<int>(std::min<int64_t>(last, std::numeric_limits<int>::max()));
}

v1::BlockCopy ToProto(const HostBlockCopy& copy) {
  v1::BlockCopy proto;
  proto.set_block(static_cast<uint32_t>(copy.block));
  proto.set_host_block(static_cast<uint32_t>(copy.host_block));
  return proto;
}

// Who shares fairly with others: the peer without its port, as each connection has another one.
std::string FairnessKey(const std::string& client) {
  const size_t colon = client.rfind(':');
  const bool has_port = colon != std::string::npos && colon > client.find(':');
  return has_port ? client.substr(0, colon) : client;
}

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
                    AllowRunAhead();
                    events_.on_ready(true);
                    Pump();
                  },
              .on_step_result = [this](v1::StepResult result) { OnStepResult(std::move(result)); },
              .on_stage_counters =
                  [this](int stage, const v1::StageCounters& counters) {
                    OnStageCounters(stage, counters);
                  },
              .on_stage_ready = [this](int stage,
                                       const v1::StageReady& ready) { OnStageReady(stage, ready); },
              .on_failed = [this](absl::Status status) { OnChainFailed(status); },
              .on_changed = [this] { events_.on_changed(); },
          }) {}

EngineImpl::~EngineImpl() {
  timers_.Cancel(grace_timer_);
  timers_.Cancel(reader_timer_);
  timers_.Cancel(queue_timer_);
}

void EngineImpl::AllowRunAhead() {
  const bool can = chain_.all_offer(v1::CAPABILITY_AUTO_CONTINUE);
  scheduler_.AllowRunAhead(can);
  if (options_.scheduler.run_ahead && !can) {
    spdlog::warn("not every worker can take tokens of steps under way: nothing runs ahead");
  }
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
  loads.set_preemptions_total(static_cast<uint64_t>(scheduler_.preemptions()));
  loads.set_cached_prompt_tokens_total(static_cast<uint64_t>(scheduler_.cached_tokens()));
  loads.set_kv_blocks_cached(scheduler_.blocks().cached_count());
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
  auto state = std::make_unique<RequestState>(std::move(request), sink, clock_.Now());
  const PreparedRequest& prepared = state->prepared;
  // Log-probabilities of the prompt need every row of it. Choices share the prompt's blocks even
  // where nobody else may.
  std::optional<PrefixId> root = PrefixId::kEmpty;
  if (!prepared.use_prefix_cache || prepared.prompt_logprobs) {
    root = prepared.n > 1 && !prepared.prompt_logprobs ? std::optional(scheduler_.NewRoot())
                                                       : std::nullopt;
  }
  for (int index = 0; index < prepared.n; ++index) {
    const auto id = static_cast<SequenceId>(next_sequence_++);
    const absl::Status added = scheduler_.Add({.id = id,
                                               .prompt = prepared.prompt,
                                               .client = FairnessKey(prepared.client),
                                               .priority = prepared.priority,
                                               .root = root,
                                               .last_token = LastToken(prepared)},
                                              clock_.Now());
    if (!added.ok()) {
      for (const auto& choice : state->choices) {
        by_sequence_.erase(choice->sequence);
        scheduler_.Finish(choice->sequence);
      }
      sink->OnError(MakeError(ErrorReason::kQueueFull, added.message()));
      return;
    }
    auto choice = std::make_unique<ChoiceState>(id, index, prepared, tokenizer_);
    choice->seed = ChoiceSeed(prepared.sampling.seed(), index);
    by_sequence_.emplace(id, Owner{.request = state.get(), .choice = choice.get()});
    state->choices.push_back(std::move(choice));
  }
  state->open = prepared.n;
  by_request_id_.emplace(prepared.request_id, state->choices.front()->sequence);
  by_sink_.emplace(sink.get(), state->choices.front()->sequence);
  prompt_tokens_total_ += prepared.prompt.size();
  requests_.emplace(state->choices.front()->sequence, std::move(state));
  Pump();
  ArmQueueTimer();
}

void EngineImpl::DoAbort(const std::string& request_id) {
  const auto it = by_request_id_.find(request_id);
  if (it == by_request_id_.end()) return;
  RequestState* const request = requests_.at(it->second).get();
  for (size_t i = 0, open = static_cast<size_t>(request->open); open > 0; ++i) {
    ChoiceState& choice = *request->choices[i];
    if (choice.ended) continue;
    --open;  // the last one takes the request with it
    SendDelta(*request, choice.output.Finish());
    Finish({.request = request, .choice = &choice}, v1::FINISH_REASON_CANCELLED, "", -1);
  }
}

void EngineImpl::ArmQueueTimer() {
  const base::Instant due = scheduler_.next_deadline();
  if (due == queue_timer_due_) return;
  timers_.Cancel(queue_timer_);
  queue_timer_ = base::TimerId::kNone;
  queue_timer_due_ = due;
  if (due == base::Instant::Infinite()) return;
  queue_timer_ = timers_.At(due, [this] { CheckQueue(); });
}

void EngineImpl::CheckQueue() {
  queue_timer_ = base::TimerId::kNone;
  queue_timer_due_ = base::Instant::Infinite();
  for (const SequenceId id : scheduler_.Expired(clock_.Now())) {
    const auto owner = by_sequence_.find(id);
    if (owner == by_sequence_.end()) continue;  // a choice of one that just ended
    FailRequest(*owner->second.request,
                MakeError(ErrorReason::kQueueFull,
                          absl::StrCat("the request waited for ",
                                       absl::FormatDuration(options_.scheduler.queue_timeout),
                                       " and was not admitted: the server is overloaded")));
  }
  ArmQueueTimer();
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
    in_flight_.push_back(step->step);
    chain_step_offset_ = *sent - static_cast<uint64_t>(step->step);
    ++steps_total_;
  }
}

v1::MicroBatchPlan EngineImpl::BuildPlan(const ScheduledStep& step) {
  v1::MicroBatchPlan plan;
  for (const HostBlockCopy& copy : step.copies.saves) *plan.add_saves() = ToProto(copy);
  for (const HostBlockCopy& copy : step.copies.restores) *plan.add_restores() = ToProto(copy);
  for (const ScheduledRows& rows : step.rows) AddRows(rows, plan);
  for (const SequenceId id : step.ends) plan.add_ends(static_cast<uint64_t>(id));
  return plan;
}

void EngineImpl::AddBegin(const ScheduledRows& rows, const Owner& owner, v1::MicroBatchPlan& plan) {
  const PreparedRequest& prepared = owner.request->prepared;
  v1::SequenceBegin& begin = *plan.add_begins();
  begin.set_sequence(static_cast<uint64_t>(rows.sequence));
  *begin.mutable_sampling() = prepared.sampling;
  begin.mutable_sampling()->set_seed(owner.choice->seed);
  begin.set_prompt_tokens(static_cast<uint32_t>(prepared.prompt.size()));
  const auto tokens = owner.choice->tokens.begin();
  begin.mutable_history()->Add(tokens, tokens + rows.first);
}

void EngineImpl::SendStarted(RequestState& request, SequenceId sequence) {
  request.admitted = clock_.Now();
  request.cached_tokens = scheduler_.CachedTokens(sequence);
  v1::Started started;
  started.set_request_id(request.prepared.request_id);
  started.set_model(options_.model_name);
  started.set_prompt_tokens(static_cast<int>(request.prepared.prompt.size()));
  started.set_cached_prompt_tokens(request.cached_tokens);
  started.set_seed(request.prepared.sampling.seed());
  request.sink->OnStarted(started);
}

void EngineImpl::AddRows(const ScheduledRows& rows, v1::MicroBatchPlan& plan) {
  const Owner& owner = by_sequence_.at(rows.sequence);
  RequestState& request = *owner.request;
  if (rows.begins) AddBegin(rows, owner, plan);
  if (!request.admitted) SendStarted(request, rows.sequence);
  const auto id = static_cast<uint64_t>(rows.sequence);
  v1::RowDescriptor& row = *plan.add_rows();
  row.set_sequence(id);
  row.set_kv_position(static_cast<uint32_t>(rows.first));
  if (rows.token_of_step != StepId{}) {
    row.add_tokens(0);
    row.set_token_of_step(static_cast<uint64_t>(rows.token_of_step) + chain_step_offset_);
  } else {
    const auto first = owner.choice->tokens.begin() + rows.first;
    row.mutable_tokens()->Add(first, first + rows.count);
  }
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
  const bool scores = request.prepared.prompt_logprobs && owner.choice->index == 0;
  if (scores && in_prompt && !owner.choice->first_output) {
    row.set_score_tokens(true);
  }
}

// ---- ends

void EngineImpl::Finish(const Owner& owner, v1::FinishReason reason,
                        const std::string& matched_stop, int32_t matched_token) {
  RequestState& request = *owner.request;
  ChoiceState& choice = *owner.choice;
  v1::Finished finished;
  finished.set_index(choice.index);
  finished.set_reason(reason);
  finished.set_matched_stop(matched_stop);
  finished.set_matched_stop_token(matched_token);
  finished.mutable_usage()->set_prompt_tokens(static_cast<int>(request.prepared.prompt.size()));
  finished.mutable_usage()->set_completion_tokens(request.output_tokens(choice));
  finished.mutable_usage()->set_cached_prompt_tokens(request.cached_tokens);
  const base::Instant now = clock_.Now();
  const base::Instant admitted = request.admitted.value_or(now);
  const base::Instant first = choice.first_output.value_or(now);
  v1::Timings& timings = *finished.mutable_timings();
  timings.set_queued(absl::ToDoubleSeconds(admitted - request.submitted));
  timings.set_prefill(absl::ToDoubleSeconds(first - admitted));
  if (choice.first_output) {
    timings.set_decode(absl::ToDoubleSeconds(choice.last_output - first));
  }
  choice.ended = true;
  scheduler_.Finish(choice.sequence);
  by_sequence_.erase(choice.sequence);
  request.sink->OnFinished(finished);
  if (--request.open == 0) Forget(request);
}

void EngineImpl::FailRequest(RequestState& request, const absl::Status& error) {
  request.sink->OnError(error);
  Forget(request);
}

void EngineImpl::Forget(RequestState& request) {
  for (const auto& choice : request.choices) {
    if (choice->ended) continue;
    scheduler_.Finish(choice->sequence);
    by_sequence_.erase(choice->sequence);
  }
  by_request_id_.erase(request.prepared.request_id);
  by_sink_.erase(request.sink.get());
  requests_.erase(request.choices.front()->sequence);
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
  if (scheduler_.host_blocks().total() > 0) {
    spdlog::info("sequences gave way {} times, {} of them were copied to host memory",
                 scheduler_.preemptions(), scheduler_.copied_preemptions());
  }
  chain_.Shutdown("the server is shutting down", options_.chain.lease);
  events_.on_stopped(absl::OkStatus());
}

}  // namespace layercake::coordinator
