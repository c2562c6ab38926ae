#include "stage_worker/stage_channels.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "stage_worker/endpoint.h"
#include "stage_worker/feedback.h"

namespace layercake::stage_worker {
namespace {

transport::ChannelGeometry GeometryOf(const v1::RingGeometry& ring) {
  return {.plan_slots = ring.plan_slots(),
          .plan_slot_bytes = ring.plan_slot_bytes(),
          .activation_slots = ring.activation_slots(),
          .activation_slot_bytes = ring.activation_slot_bytes()};
}

}  // namespace

absl::Status CheckRing(const v1::Assignment& assignment) {
  if (assignment.stage_count() <= 1) return absl::OkStatus();
  return transport::ValidateGeometry(GeometryOf(assignment.ring()));
}

StageChannels::StageChannels(const StageChannelsOptions& options, const NeighbourContext& context,
                             const v1::Assignment& assignment, Callbacks callbacks)
    : options_(options),
      assignment_(assignment),
      stage_(assignment.stage()),
      stage_count_(assignment.stage_count()),
      context_(context),
      callbacks_(std::move(callbacks)) {}

NeighbourOptions StageChannels::MakeOptions(int peer_stage, bool feedback) const {
  NeighbourOptions options;
  options.ring = {assignment_.term(), assignment_.epoch()};
  options.geometry = feedback ? FeedbackGeometry(assignment_) : GeometryOf(assignment_.ring());
  options.stage = stage_;
  options.peer_stage = peer_stage;
  options.feedback = feedback;
  options.facts = options_.facts;
  options.host = ToProto(options_.facts, options_.host_name);
  options.transport =
      feedback ? FeedbackTransport(assignment_.transport()) : assignment_.transport();
  options.connect_timeout = options_.connect_timeout;
  return options;
}

NeighbourCallbacks StageChannels::MakeCallbacks() {
  NeighbourCallbacks callbacks;
  callbacks.on_ready = [this](const v1::ChannelReady& ready) { callbacks_.on_ready(ready); };
  callbacks.on_channel = [this] { callbacks_.on_channel(); };
  callbacks.on_failure = [this](absl::Status status) { callbacks_.on_failure(std::move(status)); };
  return callbacks;
}

absl::StatusOr<v1::ChannelOffer> StageChannels::Offer() {
  LC_ASSIGN_OR_RETURN(upstream_, UpstreamEnd::Create(MakeOptions(before(), /*feedback=*/first()),
                                                     context_, MakeCallbacks()));
  return upstream_->offer();
}

absl::Status StageChannels::Connect(const v1::ChannelOffer& offer) {
  LC_ASSIGN_OR_RETURN(downstream_, DownstreamEnd::Create(MakeOptions(behind(), /*feedback=*/last()),
                                                         context_, offer, MakeCallbacks()));
  return absl::OkStatus();
}

bool StageChannels::connected() const {
  return stage_count_ == 1 || (receiver() != nullptr && sender() != nullptr);
}

absl::Status StageChannels::status() const {
  if (receiver() != nullptr) LC_RETURN_IF_ERROR(receiver()->status());
  return sender() == nullptr ? absl::OkStatus() : sender()->status();
}

std::string StageChannels::WaitingFor() const {
  if (connected()) return {};
  if (downstream_ != nullptr && sender() == nullptr) return downstream_->WaitingFor();
  if (receiver() == nullptr) return absl::StrCat("stage ", before(), " to connect");
  return absl::StrCat("the offer of stage ", behind());
}

StepChannels StageChannels::ends() const {
  StepChannels ends;
  (first() ? ends.feedback_in : ends.upstream) = receiver();
  (last() ? ends.feedback_out : ends.downstream) = sender();
  return ends;
}

transport::ChannelReceiver* StageChannels::receiver() const {
  return upstream_ == nullptr ? nullptr : upstream_->receiver();
}

transport::ChannelSender* StageChannels::sender() const {
  return downstream_ == nullptr ? nullptr : downstream_->sender();
}

std::string StageChannels::receives_from() const {
  return stage_count_ == 1 ? std::string() : DescribePeer(before(), {});
}

std::string StageChannels::sends_to() const {
  return downstream_ == nullptr ? std::string() : downstream_->peer();
}

}  // namespace layercake::stage_worker
