#include "stage_worker/neighbour.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "spdlog/spdlog.h"
#include "stage_worker/endpoint.h"

namespace layercake::stage_worker {
namespace {

using transport::TransportKind;

constexpr int kMaxOfferedKinds = 16;

// A std::string, which the log can format.
std::string NameOf(TransportKind kind) { return std::string(transport::TransportKindName(kind)); }

absl::Status TimedOut(absl::Duration timeout) {
  return absl::DeadlineExceededError(
      absl::StrCat("not connected and checked within ", absl::FormatDuration(timeout)));
}

// What a worker has instead of what was asked for.
std::string Kinds(absl::Span<transport::ChannelFactory* const> factories) {
  std::string kinds;
  bool device_slots = false;
  for (const transport::ChannelFactory* factory : factories) {
    absl::StrAppend(&kinds, kinds.empty() ? "" : ", ", NameOf(factory->kind()));
    device_slots = device_slots || factory->kind() == TransportKind::kCudaIpc;
  }
  return absl::StrCat(": this worker has ", kinds.empty() ? "none" : kinds,
                      device_slots ? "" : " (cuda_ipc needs a CUDA device)");
}

using OfferedKinds = google::protobuf::RepeatedPtrField<v1::KindOffer>;

bool Offers(const OfferedKinds& kinds, TransportKind kind) {
  return std::any_of(kinds.begin(), kinds.end(),
                     [&](const v1::KindOffer& entry) { return entry.kind() == NameOf(kind); });
}

}  // namespace

// ---- the receiving end

absl::StatusOr<std::unique_ptr<UpstreamEnd>> UpstreamEnd::Create(const NeighbourOptions& options,
                                                                 const NeighbourContext& context,
                                                                 NeighbourCallbacks callbacks) {
  LC_ASSIGN_OR_RETURN(const transport::TransportRequest request,
                      transport::ParseTransportRequest(options.transport));
  LC_RETURN_IF_ERROR(transport::ValidateGeometry(options.geometry));
  std::unique_ptr<UpstreamEnd> end(new UpstreamEnd(options, context, std::move(callbacks)));
  std::string failures;
  for (transport::ChannelFactory* factory : context.factories) {
    if (request.kind.has_value() && *request.kind != factory->kind()) continue;
    // Tokens are host data.
    if (options.feedback && factory->kind() == TransportKind::kCudaIpc) continue;
    const absl::Status opened = end->Open(*factory);
    if (opened.ok()) continue;
    absl::StrAppend(&failures, "; ", NameOf(factory->kind()), ": ", opened.ToString());
    if (!request.kind.has_value()) {
      spdlog::warn("stage {}: no {} channel from stage {}: {}", options.stage,
                   NameOf(factory->kind()), options.peer_stage, opened.ToString());
    }
  }
  if (end->candidates_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "stage ", options.stage, " cannot offer a channel for transport \"", options.transport,
        "\"", failures.empty() ? Kinds(context.factories) : failures));
  }
  return end;
}

UpstreamEnd::UpstreamEnd(const NeighbourOptions& options, const NeighbourContext& context,
                         NeighbourCallbacks callbacks)
    : options_(options), context_(context), callbacks_(std::move(callbacks)) {
  offer_.set_term(options.ring.term);
  offer_.set_epoch(options.ring.epoch);
  offer_.set_receiver_stage(options.stage);
  *offer_.mutable_host() = options.host;
  offer_.set_transport(options.transport);
}

UpstreamEnd::~UpstreamEnd() {
  for (const std::unique_ptr<Candidate>& candidate : candidates_) {
    if (candidate->timer != base::TimerId::kNone) context_.timers->Cancel(candidate->timer);
  }
}

transport::ChannelOptions UpstreamEnd::ChannelOptions() const {
  return {.ring = options_.ring,
          .geometry = options_.geometry,
          .peer = DescribePeer(options_.peer_stage, {})};
}

absl::Status UpstreamEnd::Open(transport::ChannelFactory& factory) {
  auto candidate = std::make_unique<Candidate>();
  candidate->kind = factory.kind();
  candidate->peer_memory = factory.peer_memory();
  const size_t index = candidates_.size();
  transport::ChannelContext context;
  context.executor = context_.executor;
  context.watcher = context_.watcher;
  context.on_ready = [this, index] { OnChannel(index); };
  LC_ASSIGN_OR_RETURN(candidate->receiver,
                      factory.CreateReceiver(ChannelOptions(), std::move(context)));
  v1::KindOffer* kind = options_.feedback ? offer_.add_feedback_kinds() : offer_.add_kinds();
  kind->set_kind(NameOf(factory.kind()));
  kind->set_blob(candidate->receiver->offer());
  candidates_.push_back(std::move(candidate));
  return absl::OkStatus();
}

void UpstreamEnd::OnChannel(size_t index) {
  Candidate& candidate = *candidates_[index];
  if (candidate.receiver == nullptr) return;
  if (candidate.receiver.get() == chosen_) {
    callbacks_.on_channel();
    return;
  }
  if (chosen_ != nullptr) return;
  if (const absl::Status status = candidate.receiver->status(); !status.ok()) {
    Drop(candidate, status);
    return;
  }
  if (!candidate.receiver->connected()) return;
  if (candidate.probe == nullptr) {
    candidate.probe = std::make_unique<transport::ProbeReceiver>(
        *candidate.receiver, ChannelOptions(), candidate.peer_memory);
    candidate.timer =
        context_.timers->At(context_.clock->Now() + options_.connect_timeout, [this, index] {
          candidates_[index]->timer = base::TimerId::kNone;
          Drop(*candidates_[index], TimedOut(options_.connect_timeout));
        });
  }
  const absl::StatusOr<bool> done = candidate.probe->Advance();
  if (!done.ok()) {
    Drop(candidate, done.status());
  } else if (*done) {
    Choose(candidate);
  }
}

void UpstreamEnd::Choose(Candidate& candidate) {
  candidate.probe.reset();
  if (candidate.timer != base::TimerId::kNone) {
    context_.timers->Cancel(std::exchange(candidate.timer, base::TimerId::kNone));
  }
  chosen_ = candidate.receiver.get();
  for (const std::unique_ptr<Candidate>& other : candidates_) {
    if (other.get() == &candidate) continue;
    if (other->timer != base::TimerId::kNone) {
      context_.timers->Cancel(std::exchange(other->timer, base::TimerId::kNone));
    }
    other->probe.reset();
    other->receiver.reset();
  }
  v1::ChannelReady ready;
  ready.set_term(options_.ring.term);
  ready.set_epoch(options_.ring.epoch);
  ready.set_end(options_.feedback ? v1::ChannelReady::END_FEEDBACK_RECEIVER
                                  : v1::ChannelReady::END_RECEIVER);
  ready.set_kind(NameOf(candidate.kind));
  ready.set_reason("the sender chose it");
  callbacks_.on_ready(ready);
}

void UpstreamEnd::Drop(Candidate& candidate, const absl::Status& reason) {
  spdlog::warn("stage {}: the {} channel from stage {} failed while connecting: {}", options_.stage,
               NameOf(candidate.kind), options_.peer_stage, reason.ToString());
  if (candidate.timer != base::TimerId::kNone) {
    context_.timers->Cancel(std::exchange(candidate.timer, base::TimerId::kNone));
  }
  candidate.probe.reset();
  candidate.receiver.reset();
  const bool left =
      std::any_of(candidates_.begin(), candidates_.end(),
                  [](const std::unique_ptr<Candidate>& c) { return c->receiver != nullptr; });
  if (left) return;
  callbacks_.on_failure(absl::Status(
      reason.code(), absl::StrCat("stage ", options_.stage, ": no channel from stage ",
                                  options_.peer_stage, " is left (transport \"", options_.transport,
                                  "\"): ", NameOf(candidate.kind), ": ", reason.message())));
}

// ---- the sending end

absl::StatusOr<std::unique_ptr<DownstreamEnd>> DownstreamEnd::Create(
    const NeighbourOptions& options, const NeighbourContext& context, const v1::ChannelOffer& offer,
    NeighbourCallbacks callbacks) {
  if (offer.term() != options.ring.term || offer.epoch() != options.ring.epoch) {
    return absl::FailedPreconditionError(
        absl::StrCat("channel offer of term ", offer.term(), " epoch ", offer.epoch(),
                     "; this stage runs term ", options.ring.term, " epoch ", options.ring.epoch));
  }
  if (offer.receiver_stage() != options.peer_stage) {
    return absl::FailedPreconditionError(absl::StrCat(
        "channel offer of stage ", offer.receiver_stage(), " came to stage ", options.stage));
  }
  const int kinds = options.feedback ? offer.feedback_kinds_size() : offer.kinds_size();
  if (kinds == 0 || kinds > kMaxOfferedKinds) {
    return absl::InvalidArgumentError(
        absl::StrCat("channel offer of ", kinds, " kinds, must be 1 to ", kMaxOfferedKinds));
  }
  LC_RETURN_IF_ERROR(transport::ValidateGeometry(options.geometry));
  std::unique_ptr<DownstreamEnd> end(
      new DownstreamEnd(options, context, offer, std::move(callbacks)));
  LC_RETURN_IF_ERROR(end->Plan(offer));
  // Posted, so that no callback runs inside Create.
  DownstreamEnd* const self = end.get();
  if (!context.executor->Post([self, alive = end->alive_] {
        if (*alive) self->TryNext();
      })) {
    return absl::ResourceExhaustedError("the step thread's queue is full");
  }
  return end;
}

DownstreamEnd::DownstreamEnd(const NeighbourOptions& options, const NeighbourContext& context,
                             const v1::ChannelOffer& offer, NeighbourCallbacks callbacks)
    : options_(options),
      context_(context),
      callbacks_(std::move(callbacks)),
      receiver_stage_(offer.receiver_stage()),
      peer_(DescribePeer(offer.receiver_stage(), offer.host().host_name())),
      since_(context.clock->Now()) {}

DownstreamEnd::~DownstreamEnd() {
  *alive_ = false;
  CancelTimer();
}

absl::Status DownstreamEnd::Plan(const v1::ChannelOffer& offer) {
  LC_ASSIGN_OR_RETURN(const transport::TransportRequest request,
                      transport::ParseTransportRequest(offer.transport()));
  const OfferedKinds& kinds = options_.feedback ? offer.feedback_kinds() : offer.kinds();
  LC_ASSIGN_OR_RETURN(const transport::EndpointFacts peer,
                      FromProto(offer.host(), Offers(kinds, TransportKind::kUcx),
                                Offers(kinds, TransportKind::kCudaIpc)));
  LC_ASSIGN_OR_RETURN(const transport::TransportChoice choice,
                      transport::ChooseTransport(request, options_.facts, peer));
  reason_ = options_.feedback ? "for sampled tokens" : choice.reason;
  for (const TransportKind kind : choice.kinds) {
    // What was asked for by name is not replaced by something else.
    if (request.kind.has_value() && *request.kind != kind) continue;
    if (FactoryOf(kind) == nullptr) continue;
    for (const v1::KindOffer& entry : kinds) {
      if (entry.kind() != NameOf(kind)) continue;
      attempts_.push_back({kind, entry.blob()});
      break;
    }
  }
  if (attempts_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no channel to ", peer_, " for transport \"", offer.transport(), "\": ", "it offers ",
        kinds.size(), " kinds, none of which fits (", reason_, ")"));
  }
  return absl::OkStatus();
}

transport::ChannelFactory* DownstreamEnd::FactoryOf(TransportKind kind) const {
  for (transport::ChannelFactory* factory : context_.factories) {
    if (factory->kind() == kind) return factory;
  }
  return nullptr;
}

void DownstreamEnd::CancelTimer() {
  if (timer_ != base::TimerId::kNone) {
    context_.timers->Cancel(std::exchange(timer_, base::TimerId::kNone));
  }
}

void DownstreamEnd::TryNext() {
  const Attempt& attempt = attempts_[current_];
  since_ = context_.clock->Now();
  timer_ = context_.timers->At(since_ + options_.connect_timeout, [this] {
    timer_ = base::TimerId::kNone;
    FailAttempt(TimedOut(options_.connect_timeout));
  });
  transport::ChannelContext context;
  context.executor = context_.executor;
  context.watcher = context_.watcher;
  context.on_ready = [this] { OnChannel(); };
  const transport::ChannelOptions channel = {
      .ring = options_.ring, .geometry = options_.geometry, .peer = peer_};
  absl::StatusOr<std::unique_ptr<transport::ChannelSender>> sender =
      FactoryOf(attempt.kind)->Connect(attempt.blob, channel, std::move(context));
  if (!sender.ok()) {
    FailAttempt(sender.status());
    return;
  }
  sender_ = *std::move(sender);
  OnChannel();
}

void DownstreamEnd::OnChannel() {
  if (failed_ || sender_ == nullptr) return;
  if (ready_) {
    callbacks_.on_channel();
    return;
  }
  if (const absl::Status status = sender_->status(); !status.ok()) {
    FailAttempt(status);
    return;
  }
  if (!sender_->connected()) return;
  if (probe_ == nullptr) {
    const transport::ChannelOptions channel = {
        .ring = options_.ring, .geometry = options_.geometry, .peer = peer_};
    probe_ = std::make_unique<transport::ProbeSender>(
        *sender_, channel, *context_.clock, FactoryOf(attempts_[current_].kind)->peer_memory());
  }
  const absl::StatusOr<bool> done = probe_->Advance();
  if (!done.ok()) {
    FailAttempt(done.status());
  } else if (*done) {
    Finish();
  }
}

void DownstreamEnd::FailAttempt(const absl::Status& reason) {
  CancelTimer();
  probe_.reset();
  sender_.reset();
  const std::string kind = NameOf(attempts_[current_].kind);
  absl::StrAppend(&failures_, failures_.empty() ? "" : "; ", kind, ": ", reason.ToString());
  ++current_;
  if (current_ < attempts_.size()) {
    spdlog::warn("stage {}: {} to {} failed, {} is next: {}", options_.stage, kind, peer_,
                 NameOf(attempts_[current_].kind), reason.ToString());
    TryNext();
    return;
  }
  failed_ = true;
  callbacks_.on_failure(absl::Status(
      reason.code(),
      absl::StrCat("stage ", options_.stage, " cannot reach ", peer_, ": ", failures_)));
}

void DownstreamEnd::Finish() {
  CancelTimer();
  ready_ = true;
  transport::ProbeReport report = probe_->report();
  // The activations of a feedback channel are 64 bytes that nobody sends.
  if (options_.feedback) report.bytes_per_second = 0;
  v1::ChannelReady ready;
  ready.set_term(options_.ring.term);
  ready.set_epoch(options_.ring.epoch);
  ready.set_end(options_.feedback ? v1::ChannelReady::END_FEEDBACK_SENDER
                                  : v1::ChannelReady::END_SENDER);
  ready.set_kind(NameOf(attempts_[current_].kind));
  ready.set_reason(failures_.empty() ? reason_ : absl::StrCat(reason_, "; after ", failures_));
  // Of one way.
  ready.set_latency_us(absl::ToDoubleMicroseconds(report.round_trip) / 2);
  ready.set_gigabytes_per_second(report.bytes_per_second / 1e9);
  spdlog::info("stage {} -> {}: {} ({}; {})", options_.stage, peer_,
               NameOf(attempts_[current_].kind), ready.reason(), report.ToString());
  probe_.reset();
  callbacks_.on_ready(ready);
}

std::string DownstreamEnd::WaitingFor() const {
  if (ready_ || failed_ || current_ >= attempts_.size()) return {};
  return absl::StrCat(peer_, " to take a connection over ", NameOf(attempts_[current_].kind),
                      " since ", absl::FormatDuration(context_.clock->Now() - since_));
}

}  // namespace layercake::stage_worker
