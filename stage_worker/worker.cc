#include "stage_worker/worker.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "proto/protocol_version.h"
#include "spdlog/spdlog.h"
#include "stage_worker/endpoint.h"

namespace layercake::stage_worker {
namespace {

// A timer this late: this process stood still, so it judges nobody for now.
constexpr absl::Duration kOwnStall = absl::Seconds(1);
// The coordinator that asked for the end needs no long goodbye.
constexpr absl::Duration kShutdownFarewell = absl::Milliseconds(500);

absl::Status OutOfOrder(absl::string_view what, absl::string_view when) {
  return absl::FailedPreconditionError(absl::StrCat("the coordinator sent ", what, " ", when));
}

v1::FromWorker GoodbyeMessage(absl::string_view reason) {
  v1::FromWorker message;
  message.mutable_goodbye()->set_reason(std::string(reason));
  return message;
}

transport::ChannelGeometry GeometryOf(const v1::RingGeometry& ring) {
  return {.plan_slots = ring.plan_slots(),
          .plan_slot_bytes = ring.plan_slot_bytes(),
          .activation_slots = ring.activation_slots(),
          .activation_slot_bytes = ring.activation_slot_bytes()};
}

}  // namespace

Worker::Worker(WorkerOptions options, WorkerEnvironment environment,
               absl::AnyInvocable<void(absl::Status)> on_over)
    : options_(std::move(options)),
      environment_(std::move(environment)),
      on_over_(std::move(on_over)) {}

Worker::~Worker() {
  *alive_ = false;
  for (base::TimerId* timer : {&dial_timer_, &heartbeat_timer_, &farewell_timer_, &drain_timer_}) {
    CancelTimer(*timer);
  }
}

base::TimerId Worker::After(absl::Duration delay, void (Worker::*then)()) {
  return environment_.timers->At(environment_.clock->Now() + delay,
                                 [this, then] { (this->*then)(); });
}

void Worker::CancelTimer(base::TimerId& timer) {
  if (timer != base::TimerId::kNone) {
    environment_.timers->Cancel(std::exchange(timer, base::TimerId::kNone));
  }
}

// ---- the Session

void Worker::Start() {
  started_ = environment_.clock->Now();
  Dial();
}

void Worker::Dial() {
  dial_timer_ = base::TimerId::kNone;
  state_ = State::kHandshake;
  link_closed_ = false;
  link_ = environment_.dial();
  link_->Start({.on_message = [this](v1::ToWorker message) { OnMessage(std::move(message)); },
                .on_closed = [this](absl::Status status) { OnClosed(std::move(status)); }});
  dial_timer_ = environment_.timers->At(started_ + options_.dial_timeout, [this] {
    dial_timer_ = base::TimerId::kNone;
    Fail(absl::DeadlineExceededError(absl::StrCat(
        "the coordinator at ", options_.coordinator, " did not answer the Hello within ",
        absl::FormatDuration(options_.dial_timeout),
        "; check that it runs and that the address is its worker address")));
  });
  Send(MakeHello());
}

v1::FromWorker Worker::MakeHello() const {
  v1::FromWorker message;
  v1::Hello* hello = message.mutable_hello();
  hello->set_protocol_version(kProtocolVersion);
  hello->set_software_version(kSoftwareVersion);
  hello->set_worker_id(options_.worker_id);
  *hello->mutable_host() = ToProto(options_.facts, options_.host_name);
  hello->set_role(v1::WORKER_ROLE_STAGE);
  hello->set_device(environment_.device->name());
  hello->set_device_memory_bytes(options_.device_memory_bytes);
  if (options_.preferred_stage) hello->set_preferred_stage(*options_.preferred_stage);
  hello->set_max_rows_per_step(kMaxRows);
  hello->set_flat_rows(1);
  hello->set_max_run_ahead(0);
  for (const transport::ChannelFactory* factory : environment_.factories) {
    hello->add_transports(std::string(transport::TransportKindName(factory->kind())));
  }
  return message;
}

void Worker::Send(const v1::FromWorker& message) {
  if (link_ == nullptr || link_closed_) return;
  const absl::Status sent = link_->Send(message);
  // A link that has ended says so through on_closed.
  if (sent.ok() || absl::IsUnavailable(sent)) return;
  Fail(absl::Status(sent.code(), absl::StrCat("cannot send to the coordinator at ",
                                              options_.coordinator, ": ", sent.message())));
}

void Worker::OnClosed(absl::Status status) {
  link_closed_ = true;
  if (state_ == State::kFarewell) {
    farewell_over_ = true;
    TryEnd();
    return;
  }
  if (state_ == State::kOver) return;
  if (state_ == State::kHandshake && absl::IsUnavailable(status)) {
    // Nobody there yet. The deadline of the whole stands on the clock, so a late dial is no loop.
    const base::Instant next = environment_.clock->Now() + options_.dial_pause;
    if (next < started_ + options_.dial_timeout) {
      CancelTimer(dial_timer_);
      state_ = State::kDialing;
      dial_timer_ = environment_.timers->At(next, [this] { Dial(); });
      return;
    }
    Fail(absl::UnavailableError(
        absl::StrCat("the coordinator at ", options_.coordinator, " could not be reached within ",
                     absl::FormatDuration(options_.dial_timeout), ": ", status.message())));
    return;
  }
  Fail(absl::Status(status.ok() ? absl::StatusCode::kUnavailable : status.code(),
                    absl::StrCat("the Session with the coordinator at ", options_.coordinator,
                                 " ended: ", status.message())));
}

void Worker::OnMessage(v1::ToWorker message) {
  last_heard_ = environment_.clock->Now();
  if (state_ == State::kOver) return;
  if (state_ == State::kFarewell) {
    // A neighbour that was told to end earlier than this stage took its channel away: no failure.
    if (message.has_shutdown() && absl::IsUnavailable(end_status_)) end_status_ = absl::OkStatus();
    return;
  }
  absl::Status handled = Handle(message);
  if (!handled.ok()) Fail(std::move(handled));
}

absl::Status Worker::Handle(v1::ToWorker& message) {
  const bool welcomed = state_ != State::kHandshake && state_ != State::kDialing;
  if (!welcomed && !message.has_welcome() && !message.has_refused() && !message.has_shutdown()) {
    return OutOfOrder("another message", "before its Welcome");
  }
  switch (message.message_case()) {
    case v1::ToWorker::kWelcome:
      return OnWelcome(message.welcome());
    case v1::ToWorker::kRefused:
      return absl::FailedPreconditionError(
          absl::StrCat("the coordinator at ", options_.coordinator,
                       " refused this worker: ", message.refused().reason()));
    case v1::ToWorker::kHeartbeat:
      last_heard_number_ = message.heartbeat().number();
      return absl::OkStatus();
    case v1::ToWorker::kAssignment:
      return OnAssignment(message.assignment());
    case v1::ToWorker::kConnectDownstream:
      return OnConnectDownstream(message.connect_downstream());
    case v1::ToWorker::kPlan:
      return OnPlan(message.plan());
    case v1::ToWorker::kCancel:
      return absl::OkStatus();  // saves work only where drafts run ahead
    case v1::ToWorker::kShutdown:
      spdlog::info("the coordinator ends this worker: {}", message.shutdown().reason());
      SayFarewell(absl::OkStatus(), GoodbyeMessage("told to shut down"));
      return absl::OkStatus();
    case v1::ToWorker::kDraftProposal:
      return absl::UnimplementedError(
          "the coordinator sent a DraftProposal; this worker offered no speculation");
    case v1::ToWorker::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("the coordinator sent an empty or unknown message");
}

absl::Status Worker::OnWelcome(const v1::Welcome& welcome) {
  if (state_ != State::kHandshake) return OutOfOrder("a Welcome", "twice");
  if (welcome.protocol_version() != kProtocolVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the coordinator at ", options_.coordinator, " speaks protocol version ",
                     welcome.protocol_version(), " (software ", welcome.software_version(),
                     "), this worker version ", kProtocolVersion, " (software ", kSoftwareVersion,
                     "); run the same version on both"));
  }
  const double heartbeat = welcome.heartbeat_seconds();
  const double lease = welcome.lease_seconds();
  if (!(heartbeat >= 0.01 && heartbeat <= 60) || !(lease > heartbeat && lease <= 3600)) {
    return absl::InvalidArgumentError(absl::StrCat("Welcome with a heartbeat of ", heartbeat,
                                                   " s and a lease of ", lease,
                                                   " s: the lease must be the longer one"));
  }
  CancelTimer(dial_timer_);
  heartbeat_ = absl::Seconds(heartbeat);
  lease_ = absl::Seconds(lease);
  term_ = welcome.term();
  state_ = State::kAssigned;
  SendHeartbeat();
  return absl::OkStatus();
}

absl::Status Worker::OnPlan(const v1::MicroBatchPlan& plan) {
  if (state_ != State::kReady) return OutOfOrder("a plan", "before this stage was ready");
  loop_->OnPlan(plan);
  return absl::OkStatus();
}

// ---- loading

absl::Status Worker::OnAssignment(const v1::Assignment& assignment) {
  if (state_ != State::kAssigned) return OutOfOrder("an Assignment", "twice");
  if (assignment.term() != term_) {
    return absl::FailedPreconditionError(
        absl::StrCat("an Assignment of term ", assignment.term(), " in a Session of term ", term_));
  }
  LC_RETURN_IF_ERROR(CheckAssignment(assignment));
  if (assignment.stage_count() > 1) {
    LC_RETURN_IF_ERROR(transport::ValidateGeometry(GeometryOf(assignment.ring())));
  }
  spdlog::info("stage {} of {}: layers {} to {}, epoch {}", assignment.stage(),
               assignment.stage_count(), assignment.layer_first(), assignment.layer_end() - 1,
               assignment.epoch());
  assignment_ = assignment;
  state_ = State::kLoading;
  loader_ = std::make_unique<StageLoader>(
      StageLoaderContext{.clock = environment_.clock,
                         .timers = environment_.timers,
                         .step_thread = environment_.executor,
                         .loading_thread = environment_.loading,
                         .device = environment_.device,
                         .ops = environment_.ops,
                         .provider = environment_.provider},
      assignment, options_.load_silence,
      StageLoader::Callbacks{
          .on_progress = [this](uint64_t loaded, uint64_t total) { SendProgress(loaded, total); },
          .on_done = [this](absl::StatusOr<LoadedStage> loaded) { OnLoaded(std::move(loaded)); },
          .on_drained = [this] { TryEnd(); }});
  return loader_->Start();
}

void Worker::SendProgress(uint64_t loaded, uint64_t total) {
  v1::FromWorker message;
  message.mutable_load_progress()->set_loaded_bytes(loaded);
  message.mutable_load_progress()->set_total_bytes(total);
  Send(message);
}

void Worker::OnLoaded(absl::StatusOr<LoadedStage> loaded) {
  absl::Status status = loaded.status();
  if (status.ok()) status = OnStageMade(*std::move(loaded));
  if (!status.ok()) FailStage(status);
}

absl::Status Worker::OnStageMade(LoadedStage loaded) {
  limits_ = std::move(loaded.limits);
  stage_ = std::move(loaded.stage);
  state_ = State::kConnecting;
  if (!limits_.first()) LC_RETURN_IF_ERROR(OfferUpstream());
  if (pending_offer_.has_value()) {
    LC_RETURN_IF_ERROR(ConnectToDownstream(*pending_offer_));
    pending_offer_.reset();
  }
  BecomeReadyIfConnected();
  return absl::OkStatus();
}

// ---- channels

NeighbourOptions Worker::MakeNeighbourOptions() const {
  NeighbourOptions options;
  options.ring = {assignment_.term(), assignment_.epoch()};
  options.geometry = GeometryOf(assignment_.ring());
  options.stage = assignment_.stage();
  options.facts = options_.facts;
  options.host = ToProto(options_.facts, options_.host_name);
  options.transport = assignment_.transport();
  options.connect_timeout = options_.channel_timeout;
  return options;
}

NeighbourCallbacks Worker::MakeNeighbourCallbacks(bool upstream) {
  NeighbourCallbacks callbacks;
  callbacks.on_ready = [this](const v1::ChannelReady& ready) {
    v1::FromWorker message;
    *message.mutable_channel_ready() = ready;
    Send(message);
    BecomeReadyIfConnected();
  };
  callbacks.on_channel = [this, upstream] {
    if (loop_ != nullptr) {
      loop_->OnChannelReady();
      return;
    }
    const absl::Status status =
        upstream ? upstream_->receiver()->status() : downstream_->sender()->status();
    if (!status.ok()) Fail(status);
  };
  callbacks.on_failure = [this](absl::Status status) { Fail(std::move(status)); };
  return callbacks;
}

absl::Status Worker::OfferUpstream() {
  const NeighbourContext context = {.clock = environment_.clock,
                                    .timers = environment_.timers,
                                    .executor = environment_.executor,
                                    .watcher = environment_.watcher,
                                    .factories = environment_.factories};
  LC_ASSIGN_OR_RETURN(upstream_, UpstreamEnd::Create(MakeNeighbourOptions(), context,
                                                     MakeNeighbourCallbacks(/*upstream=*/true)));
  v1::FromWorker message;
  *message.mutable_channel_offer() = upstream_->offer();
  Send(message);
  return absl::OkStatus();
}

absl::Status Worker::OnConnectDownstream(const v1::ConnectDownstream& connect) {
  if (state_ != State::kLoading && state_ != State::kConnecting) {
    return OutOfOrder("ConnectDownstream", "outside of connecting");
  }
  if (downstream_ != nullptr || pending_offer_.has_value()) {
    return OutOfOrder("ConnectDownstream", "twice");
  }
  if (assignment_.stage() + 1 == assignment_.stage_count()) {
    return OutOfOrder("ConnectDownstream", "to the last stage");
  }
  if (state_ == State::kLoading) {
    pending_offer_ = connect.offer();
    return absl::OkStatus();
  }
  return ConnectToDownstream(connect.offer());
}

absl::Status Worker::ConnectToDownstream(const v1::ChannelOffer& offer) {
  const NeighbourContext context = {.clock = environment_.clock,
                                    .timers = environment_.timers,
                                    .executor = environment_.executor,
                                    .watcher = environment_.watcher,
                                    .factories = environment_.factories};
  LC_ASSIGN_OR_RETURN(downstream_,
                      DownstreamEnd::Create(MakeNeighbourOptions(), context, offer,
                                            MakeNeighbourCallbacks(/*upstream=*/false)));
  return absl::OkStatus();
}

void Worker::BecomeReadyIfConnected() {
  if (state_ != State::kConnecting) return;
  transport::ChannelReceiver* const receiver =
      upstream_ == nullptr ? nullptr : upstream_->receiver();
  transport::ChannelSender* const sender = downstream_ == nullptr ? nullptr : downstream_->sender();
  if ((!limits_.first() && receiver == nullptr) || (!limits_.last() && sender == nullptr)) return;
  StepLoopOptions options;
  options.limits = limits_;
  options.step_timeout = absl::Seconds(assignment_.step_timeout_seconds());
  options.upstream_peer = DescribePeer(limits_.stage - 1, {});
  options.downstream_peer = downstream_ == nullptr ? std::string() : downstream_->peer();
  StepLoop::Callbacks callbacks;
  callbacks.on_result = [this](v1::StepResult result) {
    v1::FromWorker message;
    *message.mutable_step_result() = std::move(result);
    Send(message);
  };
  callbacks.on_failure = [this](absl::Status status) { Fail(std::move(status)); };
  callbacks.on_drained = [this] { TryEnd(); };
  loop_ = std::make_unique<StepLoop>(std::move(options), *environment_.clock, *environment_.timers,
                                     *environment_.device, *stage_, receiver, sender,
                                     std::move(callbacks));
  state_ = State::kReady;
  v1::FromWorker message;
  v1::StageReady* ready = message.mutable_stage_ready();
  ready->set_term(limits_.term);
  ready->set_epoch(limits_.epoch);
  ready->set_weight_bytes(stage_->weight_bytes());
  ready->set_kv_bytes(stage_->kv_bytes());
  ready->set_buffer_bytes(stage_->buffer_bytes());
  Send(message);
  spdlog::info("stage {}: ready", limits_.stage);
  // Frames may have come between the probe and now.
  if (state_ == State::kReady) loop_->OnChannelReady();
}

// ---- being alive

void Worker::SendHeartbeat() {
  v1::FromWorker message;
  v1::Heartbeat* heartbeat = message.mutable_heartbeat();
  heartbeat->set_number(++heartbeat_number_);
  heartbeat->set_last_heard(last_heard_number_);
  if (loop_ != nullptr) *heartbeat->mutable_counters() = loop_->Counters();
  heartbeat->set_waiting_for(WaitingFor());
  next_heartbeat_ = environment_.clock->Now() + heartbeat_;
  heartbeat_timer_ = After(heartbeat_, &Worker::OnHeartbeatTimer);
  Send(message);
}

std::string Worker::WaitingFor() const {
  switch (state_) {
    case State::kAssigned:
      return "an assignment from the coordinator";
    case State::kLoading:
      return "its weights to load";
    case State::kConnecting:
      if (downstream_ != nullptr && downstream_->sender() == nullptr) {
        return downstream_->WaitingFor();
      }
      if (!limits_.first() && upstream_->receiver() == nullptr) {
        return absl::StrCat("stage ", assignment_.stage() - 1, " to connect");
      }
      return absl::StrCat("the offer of stage ", assignment_.stage() + 1);
    case State::kReady:
      return loop_->WaitingFor();
    default:
      return {};
  }
}

void Worker::OnHeartbeatTimer() {
  heartbeat_timer_ = base::TimerId::kNone;
  const base::Instant now = environment_.clock->Now();
  if (now - next_heartbeat_ > kOwnStall) last_heard_ = now;
  if (now - last_heard_ > lease_) {
    Fail(absl::UnavailableError(
        absl::StrCat("the coordinator at ", options_.coordinator, " was silent for ",
                     absl::FormatDuration(now - last_heard_), ", longer than the lease of ",
                     absl::FormatDuration(lease_))));
    return;
  }
  SendHeartbeat();
}

// ---- the end

void Worker::Fail(absl::Status status) {
  if (state_ == State::kFarewell || state_ == State::kOver) return;
  v1::FromWorker message;
  v1::StageFailure* failure = message.mutable_failure();
  failure->set_stage(assignment_.stage());
  failure->set_code(static_cast<int32_t>(status.code()));
  failure->set_message(std::string(status.message()));
  SayFarewell(std::move(status), message);
}

void Worker::FailStage(const absl::Status& status) {
  Fail(absl::Status(status.code(),
                    absl::StrCat("stage ", assignment_.stage(), ": ", status.message())));
}

void Worker::RequestStop(absl::string_view reason) {
  if (state_ == State::kOver) return;
  if (state_ == State::kFarewell) {  // asked again: no more politeness
    farewell_over_ = true;
    TryEnd();
    return;
  }
  SayFarewell(absl::OkStatus(), GoodbyeMessage(reason));
}

void Worker::SayFarewell(absl::Status status, const v1::FromWorker& last_words) {
  const bool heard = state_ != State::kDialing && state_ != State::kHandshake;
  state_ = State::kFarewell;
  end_status_ = std::move(status);
  for (base::TimerId* timer : {&dial_timer_, &heartbeat_timer_}) {
    CancelTimer(*timer);
  }
  if (loader_ != nullptr) loader_->Stop();
  if (loop_ != nullptr) loop_->Stop();
  if (heard && !link_closed_) {
    Send(last_words);
    // The coordinator closes the Session when it has read them.
    const absl::Duration patience =
        end_status_.ok() ? std::min(kShutdownFarewell, options_.farewell) : options_.farewell;
    farewell_timer_ = environment_.timers->At(environment_.clock->Now() + patience, [this] {
      farewell_timer_ = base::TimerId::kNone;
      farewell_over_ = true;
      TryEnd();
    });
  } else {
    farewell_over_ = true;
  }
  if (!Drained()) {
    drain_timer_ = environment_.timers->At(environment_.clock->Now() + options_.drain, [this] {
      drain_timer_ = base::TimerId::kNone;
      device_stuck_ = true;
      End();
    });
  }
  // Not inside whatever call led here.
  if (!environment_.executor->Post([this, alive = alive_] {
        if (*alive) TryEnd();
      })) {
    TryEnd();
  }
}

bool Worker::Drained() const {
  const bool making_stage = loader_ != nullptr && loader_->making_stage();
  return !making_stage && (loop_ == nullptr || loop_->drained());
}

void Worker::TryEnd() {
  if (state_ == State::kFarewell && farewell_over_ && Drained()) End();
}

void Worker::End() {
  if (state_ == State::kOver) return;
  state_ = State::kOver;
  CancelTimer(farewell_timer_);
  CancelTimer(drain_timer_);
  if (link_ != nullptr && !link_closed_) link_->Close(end_status_);
  if (device_stuck_ && end_status_.ok()) {
    end_status_ = absl::DeadlineExceededError(absl::StrCat("device ", environment_.device->name(),
                                                           " did not finish its work within ",
                                                           absl::FormatDuration(options_.drain)));
  }
  on_over_(end_status_);
}

}  // namespace layercake::stage_worker
