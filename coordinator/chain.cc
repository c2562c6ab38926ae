#include "coordinator/chain.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/protocol_version.h"

namespace layercake::coordinator {
namespace {

// The sequence that tests the chain; requests get ids from 1.
constexpr uint64_t kTestSequence = 0;

// What one step and an empty KV cache take of one prompt.
int MostTestRows(const ChainPlan& plan) {
  const int64_t cached = int64_t{plan.kv_blocks} * plan.kv_block_tokens;
  return static_cast<int>(
      std::min<int64_t>({plan.max_rows, plan.context_tokens, std::max<int64_t>(cached, 1)}));
}

}  // namespace

Chain::Chain(ChainOptions options, const base::Clock& clock, base::Timers& timers,
             base::Executor& executor, Events events)
    : options_(std::move(options)),
      clock_(clock),
      timers_(timers),
      executor_(executor),
      events_(std::move(events)),
      closed_links_(std::make_shared<std::vector<std::unique_ptr<CoordinatorLink>>>()),
      warm_up_(MostTestRows(options_.plan), options_.warm_up) {}

Chain::~Chain() {
  timers_.Cancel(tick_);
  timers_.Cancel(missing_);
}

void Chain::Start() {
  last_tick_ = clock_.Now();
  judge_after_ = last_tick_;
  SetState(v1::CHAIN_STATE_WAITING_FOR_WORKERS);
  tick_ = timers_.At(last_tick_ + options_.heartbeat, [this] { Tick(); });
}

void Chain::AddSession(std::unique_ptr<CoordinatorLink> link, std::string peer) {
  const SessionId id = next_session_++;
  Worker& worker = workers_[id];
  worker.link = std::move(link);
  worker.peer = std::move(peer);
  worker.opened = worker.last_heard = clock_.Now();
  worker.link->Start({
      .on_message = [this, id](v1::FromWorker message) { OnMessage(id, std::move(message)); },
      .on_closed = [this, id](absl::Status reason) { OnClosed(id, reason); },
  });
}

absl::StatusOr<uint64_t> Chain::SendPlan(v1::MicroBatchPlan plan) {
  if (state_ != v1::CHAIN_STATE_SERVING) {
    return absl::FailedPreconditionError(
        absl::StrCat("the chain does not serve: ", v1::ChainState_Name(state_)));
  }
  return Transmit(std::move(plan));
}

absl::StatusOr<uint64_t> Chain::Transmit(v1::MicroBatchPlan plan) {
  const uint64_t step = next_step_;
  plan.set_term(options_.term);
  plan.set_epoch(epoch_);
  plan.set_step(step);
  if (plan.ByteSizeLong() > options_.plan.ring.plan_slot_bytes()) {
    return absl::InternalError(absl::StrCat("a plan of ", plan.ByteSizeLong(),
                                            " bytes does not fit a slot of ",
                                            options_.plan.ring.plan_slot_bytes()));
  }
  v1::ToWorker message;
  *message.mutable_plan() = std::move(plan);
  const Worker& first = *StageWorkerOf(0);
  if (const absl::Status sent = first.link->Send(message); !sent.ok()) {
    return absl::Status(sent.code(), absl::StrCat(Describe(first), ": ", sent.message()));
  }
  ++next_step_;
  in_flight_.push_back({.step = step, .sent = clock_.Now()});
  return step;
}

void Chain::Shutdown(const std::string& reason, absl::Duration grace) {
  if (state_ == v1::CHAIN_STATE_FAILED || state_ == v1::CHAIN_STATE_DRAINING) return;
  SetState(v1::CHAIN_STATE_DRAINING);
  for (auto& [id, worker] : workers_) {
    v1::ToWorker message;
    message.mutable_shutdown()->set_reason(reason);
    message.mutable_shutdown()->set_grace_seconds(absl::ToDoubleSeconds(grace));
    // A worker that cannot be told sees the session end.
    if (worker.link != nullptr) worker.link->Send(message).IgnoreError();
    DropLink(worker, absl::UnavailableError(reason));
  }
  workers_.clear();
}

// ---- messages

void Chain::OnMessage(SessionId id, v1::FromWorker message) {
  const auto it = workers_.find(id);
  if (it == workers_.end()) return;  // closed meanwhile
  Worker& worker = it->second;
  worker.last_heard = clock_.Now();
  if (!worker.hello) {
    if (message.message_case() != v1::FromWorker::kHello) {
      Refuse(id, absl::FailedPreconditionError("the first message of a session is Hello"));
      return;
    }
    OnHello(id, worker, std::move(*message.mutable_hello()));
    return;
  }
  const absl::Status status = OnAssignedMessage(worker, message);
  if (!status.ok() && state_ == v1::CHAIN_STATE_WAITING_FOR_WORKERS) {
    Refuse(id, status);  // nothing depends on it yet
    return;
  }
  if (!status.ok()) {
    absl::Status why(status.code(), absl::StrCat(Describe(worker), ": ", status.message()));
    if (message.has_failure() && absl::IsUnavailable(why)) {
      OnMissing(worker, std::move(why));
    } else {
      Fail(std::move(why));
    }
    return;
  }
  AdvanceStartup();
}

void Chain::OnHello(SessionId id, Worker& worker, v1::Hello hello) {
  if (hello.protocol_version() != kProtocolVersion) {
    Refuse(id, absl::FailedPreconditionError(absl::StrCat(
                   "the worker speaks protocol version ", hello.protocol_version(), " (software ",
                   hello.software_version(), "), the coordinator ", kProtocolVersion, " (software ",
                   kSoftwareVersion, "): install the same release on both")));
    return;
  }
  const absl::StatusOr<int> stage = ChooseStage(hello);
  if (!stage.ok()) {
    Refuse(id, stage.status());
    return;
  }
  worker.hello = std::move(hello);
  worker.stage = *stage;
  v1::ToWorker message;
  v1::Welcome& welcome = *message.mutable_welcome();
  welcome.set_protocol_version(kProtocolVersion);
  welcome.set_software_version(kSoftwareVersion);
  welcome.set_term(options_.term);
  welcome.set_heartbeat_seconds(absl::ToDoubleSeconds(options_.heartbeat));
  welcome.set_lease_seconds(absl::ToDoubleSeconds(options_.lease));
  if (const absl::Status sent = worker.link->Send(message); !sent.ok()) {
    Fail(absl::UnavailableError(absl::StrCat(Describe(worker), ": ", sent.message())));
    return;
  }
  for (int i = 0; i < stage_count(); ++i) {
    if (StageWorkerOf(i) == nullptr) {
      if (events_.on_changed) events_.on_changed();
      return;
    }
  }
  Assign();
}

absl::StatusOr<int> Chain::ChooseStage(const v1::Hello& hello) const {
  if (state_ != v1::CHAIN_STATE_WAITING_FOR_WORKERS) {
    return absl::FailedPreconditionError(
        absl::StrCat("all ", stage_count(), " stages have their workers"));
  }
  if (hello.role() != v1::WORKER_ROLE_STAGE) {
    return absl::UnimplementedError(
        absl::StrCat("no work for the role ", v1::WorkerRole_Name(hello.role())));
  }
  if (hello.has_preferred_stage()) {
    const int wanted = hello.preferred_stage();
    if (wanted < 0 || wanted >= stage_count()) {
      return absl::InvalidArgumentError(
          absl::StrCat("stage ", wanted, " of a chain of ", stage_count(), " stages"));
    }
    if (const Worker* holder = StageWorkerOf(wanted)) {
      return absl::AlreadyExistsError(
          absl::StrCat("stage ", wanted, " belongs to ", Describe(*holder)));
    }
    return wanted;
  }
  for (int stage = 0; stage < stage_count(); ++stage) {
    if (StageWorkerOf(stage) == nullptr) return stage;
  }
  return absl::FailedPreconditionError("no stage is free");
}

absl::Status Chain::OnAssignedMessage(Worker& worker, v1::FromWorker& message) {
  const bool needs_assignment = message.message_case() != v1::FromWorker::kHeartbeat &&
                                message.message_case() != v1::FromWorker::kFailure &&
                                message.message_case() != v1::FromWorker::kGoodbye;
  if (needs_assignment && state_ == v1::CHAIN_STATE_WAITING_FOR_WORKERS) {
    return absl::FailedPreconditionError("a message that only an assigned stage may send");
  }
  switch (message.message_case()) {
    case v1::FromWorker::kHeartbeat:
      worker.heard_number = message.heartbeat().number();
      worker.heartbeat = std::move(*message.mutable_heartbeat());
      worker.heartbeat_at = clock_.Now();
      if (state_ == v1::CHAIN_STATE_SERVING && events_.on_stage_counters) {
        events_.on_stage_counters(worker.stage, worker.heartbeat.counters());
      }
      return absl::OkStatus();
    case v1::FromWorker::kLoadProgress:
      if (message.load_progress().loaded_bytes() != worker.progress.loaded_bytes()) {
        worker.last_progress = clock_.Now();
      }
      worker.progress = std::move(*message.mutable_load_progress());
      if (events_.on_changed) events_.on_changed();
      return absl::OkStatus();
    case v1::FromWorker::kChannelOffer:
      return OnChannelOffer(worker, std::move(*message.mutable_channel_offer()));
    case v1::FromWorker::kChannelReady:
      return OnChannelReady(worker, message.channel_ready());
    case v1::FromWorker::kStageReady:
      LC_RETURN_IF_ERROR(CheckEpoch(message.stage_ready().term(), message.stage_ready().epoch()));
      worker.ready = std::move(*message.mutable_stage_ready());
      if (events_.on_stage_ready) events_.on_stage_ready(worker.stage, *worker.ready);
      return absl::OkStatus();
    case v1::FromWorker::kStepResult:
      return OnStepResult(worker, std::move(*message.mutable_step_result()));
    case v1::FromWorker::kFailure:
      return absl::Status(static_cast<absl::StatusCode>(message.failure().code()),
                          message.failure().message());
    case v1::FromWorker::kGoodbye:
      return absl::UnavailableError(absl::StrCat("the worker ended: ", message.goodbye().reason()));
    case v1::FromWorker::kHello:
      return absl::FailedPreconditionError("a second Hello");
    case v1::FromWorker::kDraftProposal:
      return absl::UnimplementedError("a draft proposal, and no drafter was asked for");
    case v1::FromWorker::MESSAGE_NOT_SET:
      return absl::InvalidArgumentError("an empty or unknown message");
  }
  return absl::InvalidArgumentError("an unknown message");
}

absl::Status Chain::CheckEpoch(uint64_t term, uint32_t epoch) const {
  if (term == options_.term && epoch == epoch_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("a message of term ", term, " epoch ", epoch,
                                                    " in term ", options_.term, " epoch ", epoch_));
}

absl::Status Chain::OnStepResult(const Worker& worker, v1::StepResult result) {
  LC_RETURN_IF_ERROR(CheckEpoch(result.term(), result.epoch()));
  if (worker.stage != stage_count() - 1) {
    return absl::InvalidArgumentError("a result, and only the last stage has those");
  }
  if (in_flight_.empty() || result.step() != in_flight_.front().step) {
    return absl::DataLossError(absl::StrCat(
        "the result of step ", result.step(), ", expected ",
        in_flight_.empty() ? std::string("none") : absl::StrCat(in_flight_.front().step)));
  }
  const base::Instant sent = in_flight_.front().sent;
  in_flight_.pop_front();
  if (state_ == v1::CHAIN_STATE_TESTING) return OnTestResult(result, sent);
  events_.on_step_result(std::move(result));
  return absl::OkStatus();
}

absl::Status Chain::OnTestResult(const v1::StepResult& result, base::Instant sent) {
  if (result.results_size() != 1 || result.results(0).tokens_size() != 1) {
    const bool non_finite = result.results_size() == 1 && result.results(0).has_non_finite_stage();
    return absl::InternalError(
        non_finite ? absl::StrCat("the test of the chain met a NaN or infinity, first in stage ",
                                  result.results(0).non_finite_stage())
                   : "the test of the chain brought no token");
  }
  if (warm_up_.Next(clock_.Now() - sent) > 0) return SendTest();
  SetState(v1::CHAIN_STATE_SERVING);
  events_.on_serving();
  return absl::OkStatus();
}

// ---- start-up

void Chain::Assign() {
  SetState(v1::CHAIN_STATE_LOADING);
  for (int stage = 0; stage < stage_count(); ++stage) {
    Worker& worker = *StageWorkerOf(stage);
    worker.last_progress = clock_.Now();
    v1::ToWorker message;
    *message.mutable_assignment() = MakeAssignment(options_.plan, stage, options_.term, epoch_);
    if (const absl::Status sent = worker.link->Send(message); !sent.ok()) {
      Fail(absl::UnavailableError(absl::StrCat(Describe(worker), ": ", sent.message())));
      return;
    }
  }
}

void Chain::AdvanceStartup() {
  if (state_ != v1::CHAIN_STATE_LOADING && state_ != v1::CHAIN_STATE_CONNECTING) return;
  for (int stage = 0; stage < stage_count(); ++stage) {
    if (!StageWorkerOf(stage)->ready.has_value()) return;
  }
  if (state_ == v1::CHAIN_STATE_LOADING) SetState(v1::CHAIN_STATE_CONNECTING);
  if (!MissingChannel().empty()) return;
  SetState(v1::CHAIN_STATE_TESTING);
  if (const absl::Status status = SendTest(); !status.ok()) Fail(status);
}

absl::Status Chain::SendTest() {
  const int rows = warm_up_.rows();
  v1::MicroBatchPlan plan;
  v1::SequenceBegin& begin = *plan.add_begins();
  begin.set_sequence(kTestSequence);
  begin.set_prompt_tokens(static_cast<uint32_t>(rows));
  begin.mutable_sampling()->set_top_p(1);
  begin.mutable_sampling()->set_repetition_penalty(1);
  begin.mutable_sampling()->set_top_logprobs(-1);
  v1::RowDescriptor& row = *plan.add_rows();
  row.set_sequence(kTestSequence);
  row.set_known_tokens(static_cast<uint32_t>(rows));
  for (int i = 0; i < rows; ++i) row.add_tokens(options_.test_token);
  std::string sampled(static_cast<size_t>(rows + 7) / 8, '\0');
  sampled.back() = static_cast<char>(1 << ((rows - 1) % 8));
  row.set_sample_bitmap(sampled);
  for (int block = 0; block * options_.plan.kv_block_tokens < rows; ++block) {
    row.add_blocks(static_cast<uint32_t>(block));
  }
  plan.add_ends(kTestSequence);
  return Transmit(std::move(plan)).status();
}

// ---- being alive

void Chain::Tick() {
  if (state_ == v1::CHAIN_STATE_FAILED || state_ == v1::CHAIN_STATE_DRAINING) return;
  const base::Instant now = clock_.Now();
  // After a stall of our own, silence says nothing about the workers.
  if (now - last_tick_ > options_.heartbeat + absl::Seconds(1)) {
    judge_after_ = now + options_.lease;
  }
  last_tick_ = now;
  tick_ = timers_.At(now + options_.heartbeat, [this] { Tick(); });
  ++heartbeat_number_;
  for (auto& [id, worker] : workers_) {
    if (!worker.hello) continue;
    v1::ToWorker message;
    message.mutable_heartbeat()->set_number(heartbeat_number_);
    message.mutable_heartbeat()->set_last_heard(worker.heard_number);
    // A session that cannot take it ends by itself or by its lease.
    worker.link->Send(message).IgnoreError();
  }
  CheckSessions(now);
  if (state_ != v1::CHAIN_STATE_FAILED) CheckDeadlines(now);
}

void Chain::CheckSessions(base::Instant now) {
  std::vector<SessionId> speechless;
  for (auto& [id, worker] : workers_) {
    if (!worker.hello) {
      if (now - worker.opened > options_.hello_timeout) speechless.push_back(id);
      continue;
    }
    const absl::Duration silence = now - worker.last_heard;
    if (silence > options_.lease && now >= judge_after_) {
      Fail(absl::UnavailableError(absl::StrCat(Describe(worker), " has been silent for ",
                                               absl::FormatDuration(silence), " (lease ",
                                               absl::FormatDuration(options_.lease), ")")));
      return;
    }
  }
  for (const SessionId id : speechless) {
    Refuse(id, absl::DeadlineExceededError(
                   absl::StrCat("no Hello within ", absl::FormatDuration(options_.hello_timeout))));
  }
}

void Chain::CheckDeadlines(base::Instant now) {
  switch (state_) {
    case v1::CHAIN_STATE_WAITING_FOR_WORKERS:
      if (now - state_since_ > options_.worker_wait) {
        Fail(absl::DeadlineExceededError(
            absl::StrCat("no worker dialled in for stage ", MissingStages(), " within ",
                         absl::FormatDuration(options_.worker_wait),
                         ": start `layercake-worker --coordinator <address>` once for each")));
      }
      return;
    case v1::CHAIN_STATE_LOADING:
      CheckLoading(now);
      return;
    case v1::CHAIN_STATE_CONNECTING:
      if (now - state_since_ <= options_.connect_timeout) return;
      Fail(absl::DeadlineExceededError(
          absl::StrCat(MissingChannel(), " was not up within ",
                       absl::FormatDuration(options_.connect_timeout))));
      return;
    default:
      break;
  }
  if (!in_flight_.empty() && now - in_flight_.front().sent > options_.step_timeout) {
    Fail(StuckStep(in_flight_.front(), now));
  }
}

void Chain::CheckLoading(base::Instant now) {
  base::Instant last_progress;
  bool all_loaded = true;
  for (const auto& [id, worker] : workers_) {
    if (worker.stage < 0 || worker.ready) continue;
    last_progress = std::max(last_progress, worker.last_progress);
    // One that has everything waits for slower neighbours before it can be ready.
    if (worker.loaded()) continue;
    all_loaded = false;
    if (now - worker.last_progress <= options_.load_silence) continue;
    Fail(absl::DeadlineExceededError(absl::StrCat(Describe(worker), " has loaded nothing for ",
                                                  absl::FormatDuration(now - worker.last_progress),
                                                  " (", worker.progress.loaded_bytes(), " of ",
                                                  worker.progress.total_bytes(), " bytes)")));
    return;
  }
  if (!all_loaded || now - last_progress <= options_.connect_timeout) return;
  for (const auto& [id, worker] : workers_) {
    if (worker.stage < 0 || worker.ready) continue;
    Fail(absl::DeadlineExceededError(
        absl::StrCat(Describe(worker), " has its weights and was not ready within ",
                     absl::FormatDuration(options_.connect_timeout), " (--connect-timeout)",
                     worker.heartbeat.waiting_for().empty()
                         ? ""
                         : absl::StrCat(": it waits for ", worker.heartbeat.waiting_for()))));
    return;
  }
}

void Chain::OnClosed(SessionId id, const absl::Status& reason) {
  const auto it = workers_.find(id);
  if (it == workers_.end()) return;
  if (it->second.stage < 0 || state_ == v1::CHAIN_STATE_WAITING_FOR_WORKERS) {
    // Nothing depends on it yet; another worker may take its place.
    DropLink(it->second, reason);
    workers_.erase(it);
    if (events_.on_changed) events_.on_changed();
    return;
  }
  if (it->second.misses_another) return;  // it has said why
  Fail(absl::UnavailableError(absl::StrCat(Describe(it->second), " is gone: ", reason.message(),
                                           "; the end of its log may say why")));
}

void Chain::Refuse(SessionId id, const absl::Status& reason) {
  const auto it = workers_.find(id);
  if (it == workers_.end()) return;
  v1::ToWorker message;
  message.mutable_refused()->set_reason(std::string(reason.message()));
  it->second.link->Send(message).IgnoreError();
  DropLink(it->second, reason);
  workers_.erase(it);
}

void Chain::DropLink(Worker& worker, const absl::Status& reason) {
  if (worker.link == nullptr) return;
  worker.link->Close(reason);
  closed_links_->push_back(std::move(worker.link));
  // When the executor is full or gone, the links go with the chain.
  std::ignore = executor_.Post([links = closed_links_] { links->clear(); });
}

void Chain::SetState(v1::ChainState state) {
  state_ = state;
  state_since_ = clock_.Now();
  if (events_.on_changed) events_.on_changed();
}

void Chain::Fail(absl::Status status) {
  if (state_ == v1::CHAIN_STATE_FAILED || state_ == v1::CHAIN_STATE_DRAINING) return;
  failure_ = status;
  SetState(v1::CHAIN_STATE_FAILED);
  for (auto& [id, worker] : workers_) {
    v1::ToWorker message;
    message.mutable_shutdown()->set_reason(absl::StrCat("the chain failed: ", status.message()));
    if (worker.link != nullptr) worker.link->Send(message).IgnoreError();
    DropLink(worker, status);
  }
  in_flight_.clear();
  events_.on_failed(std::move(status));
}

}  // namespace layercake::coordinator
