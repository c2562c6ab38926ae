#include "tests/sim/sim_worker.h"

#include <utility>

#include "model/model_config.h"
#include "proto/protocol_version.h"
#include "stage_worker/endpoint.h"
#include "stage_worker/stage_limits.h"

namespace layercake::sim {
namespace {

// Every worker of a simulation is one process as far as channels are concerned.
transport::EndpointFacts SimFacts() {
  transport::EndpointFacts facts;
  facts.host.host_id = "sim";
  facts.host.boot_id = "sim";
  facts.host.pid_namespace = "sim";
  facts.host.ipc_namespace = "sim";
  facts.host.pid = 1;
  facts.host.start_ticks = 1;
  facts.has_ucx = false;
  return facts;
}

model::ModelConfig SimModel(int stages) {
  model::ModelConfig config;
  config.n_layers = static_cast<uint32_t>(stages);
  config.hidden_size = kSimHidden;
  config.vocab_size = static_cast<uint32_t>(kSimVocabulary);
  return config;
}

}  // namespace

SimWorker::SimWorker(const SimWorkerOptions& options, const base::Clock& clock,
                     base::Timers& timers, base::Executor& executor, SimFabric& fabric,
                     std::unique_ptr<WorkerLink> link,
                     std::function<void(const v1::MicroBatchPlan&)> on_plan,
                     std::function<void(const v1::StepResult&)> on_result)
    : options_(options),
      clock_(clock),
      timers_(timers),
      executor_(executor),
      factory_(fabric),
      link_(std::move(link)),
      on_plan_(std::move(on_plan)),
      on_result_(std::move(on_result)),
      device_(clock, timers) {}

SimWorker::~SimWorker() { timers_.Cancel(heartbeat_timer_); }

void SimWorker::Start() {
  link_->Start({.on_message = [this](v1::ToWorker message) { OnMessage(message); },
                .on_closed = [this](absl::Status) { timers_.Cancel(heartbeat_timer_); }});
  v1::FromWorker message;
  v1::Hello& hello = *message.mutable_hello();
  hello.set_protocol_version(kProtocolVersion);
  hello.set_software_version(kSoftwareVersion);
  hello.set_role(v1::WORKER_ROLE_STAGE);
  hello.set_preferred_stage(options_.stage);
  hello.set_device("sim");
  *hello.mutable_host() = stage_worker::ToProto(SimFacts(), "sim");
  Send(message);
}

void SimWorker::OnMessage(const v1::ToWorker& message) {
  switch (message.message_case()) {
    case v1::ToWorker::kWelcome:
      heartbeat_ = absl::Seconds(message.welcome().heartbeat_seconds());
      Heartbeat();
      return;
    case v1::ToWorker::kAssignment:
      OnAssignment(message.assignment());
      return;
    case v1::ToWorker::kConnectDownstream:
      ConnectToDownstream(message.connect_downstream().offer());
      return;
    case v1::ToWorker::kPlan:
      on_plan_(message.plan());
      loop_->OnPlan(message.plan());
      return;
    case v1::ToWorker::kShutdown:
      if (loop_ != nullptr) loop_->Stop();
      return;
    case v1::ToWorker::kRefused:
      Fail(absl::FailedPreconditionError(message.refused().reason()));
      return;
    default:
      return;
  }
}

void SimWorker::OnAssignment(const v1::Assignment& assignment) {
  assignment_ = assignment;
  absl::Status checked = stage_worker::CheckAssignment(assignment);
  absl::StatusOr<stage_worker::StageLimits> limits =
      stage_worker::LimitsForModel(assignment, SimModel(assignment.stage_count()));
  if (checked.ok()) checked = limits.status();
  if (!checked.ok()) return Fail(checked);
  limits_ = *std::move(limits);
  stage_ = std::make_unique<DigestStage>(device_, limits_, options_.cost, options_.reads);
  if (!limits_.first()) {
    const stage_worker::NeighbourContext context = {.clock = &clock_,
                                                    .timers = &timers_,
                                                    .executor = &executor_,
                                                    .factories = {&factory_pointer_, 1}};
    auto upstream = stage_worker::UpstreamEnd::Create(MakeNeighbourOptions(), context,
                                                      MakeNeighbourCallbacks());
    if (!upstream.ok()) return Fail(upstream.status());
    upstream_ = *std::move(upstream);
    v1::FromWorker message;
    *message.mutable_channel_offer() = upstream_->offer();
    Send(message);
  }
  BecomeReadyIfConnected();
}

void SimWorker::ConnectToDownstream(const v1::ChannelOffer& offer) {
  const stage_worker::NeighbourContext context = {.clock = &clock_,
                                                  .timers = &timers_,
                                                  .executor = &executor_,
                                                  .factories = {&factory_pointer_, 1}};
  auto downstream = stage_worker::DownstreamEnd::Create(MakeNeighbourOptions(), context, offer,
                                                        MakeNeighbourCallbacks());
  if (!downstream.ok()) return Fail(downstream.status());
  downstream_ = *std::move(downstream);
}

stage_worker::NeighbourOptions SimWorker::MakeNeighbourOptions() const {
  stage_worker::NeighbourOptions options;
  options.ring = {assignment_.term(), assignment_.epoch()};
  const v1::RingGeometry& ring = assignment_.ring();
  options.geometry = {.plan_slots = ring.plan_slots(),
                      .plan_slot_bytes = ring.plan_slot_bytes(),
                      .activation_slots = ring.activation_slots(),
                      .activation_slot_bytes = ring.activation_slot_bytes()};
  options.stage = assignment_.stage();
  options.facts = SimFacts();
  options.host = stage_worker::ToProto(SimFacts(), "sim");
  options.transport = assignment_.transport();
  return options;
}

stage_worker::NeighbourCallbacks SimWorker::MakeNeighbourCallbacks() {
  stage_worker::NeighbourCallbacks callbacks;
  callbacks.on_ready = [this](const v1::ChannelReady& ready) {
    v1::FromWorker message;
    *message.mutable_channel_ready() = ready;
    Send(message);
    BecomeReadyIfConnected();
  };
  callbacks.on_channel = [this] {
    if (loop_ != nullptr) loop_->OnChannelReady();
  };
  callbacks.on_failure = [this](absl::Status status) { Fail(std::move(status)); };
  return callbacks;
}

void SimWorker::BecomeReadyIfConnected() {
  if (loop_ != nullptr) return;
  transport::ChannelReceiver* const receiver =
      upstream_ == nullptr ? nullptr : upstream_->receiver();
  transport::ChannelSender* const sender = downstream_ == nullptr ? nullptr : downstream_->sender();
  if ((!limits_.first() && receiver == nullptr) || (!limits_.last() && sender == nullptr)) return;
  stage_worker::StepLoopOptions options;
  options.limits = limits_;
  options.step_timeout = absl::Seconds(assignment_.step_timeout_seconds());
  options.upstream_peer = stage_worker::DescribePeer(limits_.stage - 1, {});
  options.downstream_peer = stage_worker::DescribePeer(limits_.stage + 1, {});
  stage_worker::StepLoop::Callbacks callbacks;
  callbacks.on_result = [this](v1::StepResult result) {
    on_result_(result);
    v1::FromWorker message;
    *message.mutable_step_result() = std::move(result);
    Send(message);
  };
  callbacks.on_failure = [this](absl::Status status) { Fail(std::move(status)); };
  loop_ = std::make_unique<stage_worker::StepLoop>(std::move(options), clock_, timers_, device_,
                                                   *stage_, receiver, sender, std::move(callbacks));
  v1::FromWorker message;
  message.mutable_stage_ready()->set_term(limits_.term);
  message.mutable_stage_ready()->set_epoch(limits_.epoch);
  Send(message);
  loop_->OnChannelReady();
}

void SimWorker::Heartbeat() {
  v1::FromWorker message;
  message.mutable_heartbeat()->set_number(++heartbeat_number_);
  if (loop_ != nullptr) *message.mutable_heartbeat()->mutable_counters() = loop_->Counters();
  Send(message);
  heartbeat_timer_ = timers_.At(clock_.Now() + heartbeat_, [this] { Heartbeat(); });
}

void SimWorker::Send(const v1::FromWorker& message) {
  // A Session that has ended takes nothing; the coordinator ended it.
  link_->Send(message).IgnoreError();
}

void SimWorker::Fail(absl::Status status) {
  if (!status_.ok()) return;
  status_ = status;
  v1::FromWorker message;
  message.mutable_failure()->set_stage(options_.stage);
  message.mutable_failure()->set_code(static_cast<int>(status.code()));
  message.mutable_failure()->set_message(std::string(status.message()));
  Send(message);
}

}  // namespace layercake::sim
