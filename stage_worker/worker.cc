#include "stage_worker/worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "proto/protocol_version.h"
#include "spdlog/spdlog.h"
#include "stage_worker/endpoint.h"

namespace layercake::stage_worker {
namespace {

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

}  // namespace

Worker::Worker(WorkerOptions options, WorkerEnvironment environment,
               absl::AnyInvocable<void(absl::Status)> on_over)
    : options_(std::move(options)),
      environment_(std::move(environment)),
      on_over_(std::move(on_over)),
      lease_(*environment_.clock, *environment_.timers, options_.coordinator,
             MakeLeaseCallbacks()) {}

Worker::~Worker() {
  *alive_ = false;
  for (base::TimerId* timer : {&dial_timer_, &farewell_timer_, &drain_timer_}) {
    CancelTimer(*timer);
  }
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
  hello->set_placement(options_.placement);
  if (options_.preferred_stage) hello->set_preferred_stage(*options_.preferred_stage);
  hello->set_max_rows_per_step(kMaxRows);
  hello->set_flat_rows(1);
  hello->set_max_run_ahead(0);
  hello->add_capabilities(v1::CAPABILITY_AUTO_CONTINUE);
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
  lease_.OnHeard();
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
      lease_.OnHeartbeat(message.heartbeat());
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
  LC_RETURN_IF_ERROR(lease_.SetTimes(welcome.heartbeat_seconds(), welcome.lease_seconds()));
  CancelTimer(dial_timer_);
  term_ = welcome.term();
  state_ = State::kAssigned;
  lease_.Start();
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
  LC_RETURN_IF_ERROR(CheckRing(assignment));
  spdlog::info("stage {} of {}: layers {} to {}, epoch {}", assignment.stage(),
               assignment.stage_count(), assignment.layer_first(), assignment.layer_end() - 1,
               assignment.epoch());
  assignment_ = assignment;
  state_ = State::kLoading;
  maker_ = environment_.stages->NewMaker(
      assignment,
      {.on_progress = [this](uint64_t loaded, uint64_t total) { SendProgress(loaded, total); },
       .on_done = [this](absl::StatusOr<MadeStage> made) { OnMade(std::move(made)); },
       .on_drained = [this] { TryEnd(); }});
  return maker_->Start();
}

void Worker::SendProgress(uint64_t loaded, uint64_t total) {
  v1::FromWorker message;
  message.mutable_load_progress()->set_loaded_bytes(loaded);
  message.mutable_load_progress()->set_total_bytes(total);
  Send(message);
}

void Worker::OnMade(absl::StatusOr<MadeStage> made) {
  absl::Status status = made.status();
  if (status.ok()) {
    made_ = *std::move(made);
    status = OpenChannels();
  }
  if (!status.ok()) FailStage(status);
}

// ---- channels

absl::Status Worker::OpenChannels() {
  state_ = State::kConnecting;
  channels_ = std::make_unique<StageChannels>(
      StageChannelsOptions{.facts = options_.facts,
                           .host_name = options_.host_name,
                           .connect_timeout = options_.channel_timeout},
      NeighbourContext{.clock = environment_.clock,
                       .timers = environment_.timers,
                       .executor = environment_.executor,
                       .watcher = environment_.watcher,
                       .factories = environment_.factories},
      assignment_,
      StageChannels::Callbacks{
          .on_ready =
              [this](const v1::ChannelReady& ready) {
                v1::FromWorker message;
                *message.mutable_channel_ready() = ready;
                Send(message);
                BecomeReadyIfConnected();
              },
          .on_channel = [this] { OnChannel(); },
          .on_failure = [this](absl::Status status) { Fail(std::move(status)); }});
  if (assignment_.stage_count() > 1) {
    v1::FromWorker message;
    LC_ASSIGN_OR_RETURN(*message.mutable_channel_offer(), channels_->Offer());
    Send(message);
  }
  if (pending_offer_.has_value()) {
    LC_RETURN_IF_ERROR(channels_->Connect(*pending_offer_));
    pending_offer_.reset();
  }
  BecomeReadyIfConnected();
  return absl::OkStatus();
}

void Worker::OnChannel() {
  if (loop_ != nullptr) {
    loop_->OnChannelReady();
    return;
  }
  const absl::Status status = channels_->status();
  if (!status.ok()) Fail(status);
}

absl::Status Worker::OnConnectDownstream(const v1::ConnectDownstream& connect) {
  if (state_ != State::kLoading && state_ != State::kConnecting) {
    return OutOfOrder("ConnectDownstream", "outside of connecting");
  }
  if (pending_offer_.has_value() || (channels_ != nullptr && channels_->connecting())) {
    return OutOfOrder("ConnectDownstream", "twice");
  }
  if (assignment_.stage_count() == 1) {
    return OutOfOrder("ConnectDownstream", "to the only stage");
  }
  if (state_ == State::kLoading) {
    pending_offer_ = connect.offer();
    return absl::OkStatus();
  }
  return channels_->Connect(connect.offer());
}

void Worker::BecomeReadyIfConnected() {
  if (state_ != State::kConnecting || !channels_->connected()) return;
  const StageLimits& limits = made_.limits;
  StepLoopOptions options;
  options.limits = limits;
  options.step_timeout = absl::Seconds(assignment_.step_timeout_seconds());
  if (limits.stage_count > 1) options.poll = environment_.poll;
  (limits.first() ? options.feedback_peer : options.upstream_peer) = channels_->receives_from();
  (limits.last() ? options.feedback_peer : options.downstream_peer) = channels_->sends_to();
  StepLoop::Callbacks callbacks;
  callbacks.on_result = [this](v1::StepResult result) {
    v1::FromWorker message;
    *message.mutable_step_result() = std::move(result);
    Send(message);
  };
  callbacks.on_failure = [this](absl::Status status) { Fail(std::move(status)); };
  callbacks.on_drained = [this] { TryEnd(); };
  loop_ = std::make_unique<StepLoop>(std::move(options), *environment_.clock, *environment_.timers,
                                     *environment_.device, *made_.stage, channels_->ends(),
                                     std::move(callbacks));
  state_ = State::kReady;
  v1::FromWorker message;
  v1::StageReady* ready = message.mutable_stage_ready();
  ready->set_term(limits.term);
  ready->set_epoch(limits.epoch);
  ready->set_weight_bytes(made_.weight_bytes);
  ready->set_kv_bytes(made_.kv_bytes);
  ready->set_buffer_bytes(made_.buffer_bytes);
  ready->set_host_kv_bytes(made_.host_kv_bytes);
  ready->set_host_copy_gigabytes_per_second(made_.host_copy_gigabytes_per_second);
  ready->set_copy_gigabytes_per_second(options_.copy_gigabytes_per_second);
  Send(message);
  spdlog::info("stage {}: ready", limits.stage);
  // Frames may have come between the probe and now.
  if (state_ == State::kReady) loop_->OnChannelReady();
}

// ---- being alive

SessionLease::Callbacks Worker::MakeLeaseCallbacks() {
  return {.on_beat = [this](v1::Heartbeat heartbeat) { SendHeartbeat(std::move(heartbeat)); },
          .on_silence = [this](absl::Status status) { Fail(std::move(status)); }};
}

void Worker::SendHeartbeat(v1::Heartbeat heartbeat) {
  v1::FromWorker message;
  if (loop_ != nullptr) *heartbeat.mutable_counters() = loop_->Counters();
  heartbeat.set_waiting_for(WaitingFor());
  *message.mutable_heartbeat() = std::move(heartbeat);
  Send(message);
}

std::string Worker::WaitingFor() const {
  switch (state_) {
    case State::kAssigned:
      return "an assignment from the coordinator";
    case State::kLoading:
      return "its weights to load";
    case State::kConnecting:
      return channels_->WaitingFor();
    case State::kReady:
      return loop_->WaitingFor();
    default:
      return {};
  }
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
  CancelTimer(dial_timer_);
  lease_.End();
  if (maker_ != nullptr) maker_->Stop();
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
  const bool making_stage = maker_ != nullptr && maker_->making_stage();
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
