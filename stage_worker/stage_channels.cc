#include "stage_worker/stage_channels.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "stage_worker/endpoint.h"

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
    : stage_(assignment.stage()),
      stage_count_(assignment.stage_count()),
      context_(context),
      callbacks_(std::move(callbacks)) {
  options_.ring = {assignment.term(), assignment.epoch()};
  options_.geometry = GeometryOf(assignment.ring());
  options_.stage = assignment.stage();
  options_.facts = options.facts;
  options_.host = ToProto(options.facts, options.host_name);
  options_.transport = assignment.transport();
  options_.connect_timeout = options.connect_timeout;
}

NeighbourCallbacks StageChannels::MakeCallbacks() {
  NeighbourCallbacks callbacks;
  callbacks.on_ready = [this](const v1::ChannelReady& ready) { callbacks_.on_ready(ready); };
  callbacks.on_channel = [this] { callbacks_.on_channel(); };
  callbacks.on_failure = [this](absl::Status status) { callbacks_.on_failure(std::move(status)); };
  return callbacks;
}

absl::StatusOr<v1::ChannelOffer> StageChannels::Offer() {
  LC_ASSIGN_OR_RETURN(upstream_, UpstreamEnd::Create(options_, context_, MakeCallbacks()));
  return upstream_->offer();
}

absl::Status StageChannels::Connect(const v1::ChannelOffer& offer) {
  LC_ASSIGN_OR_RETURN(downstream_,
                      DownstreamEnd::Create(options_, context_, offer, MakeCallbacks()));
  return absl::OkStatus();
}

bool StageChannels::connected() const {
  return (first() || receiver() != nullptr) && (last() || sender() != nullptr);
}

absl::Status StageChannels::status() const {
  if (receiver() != nullptr) LC_RETURN_IF_ERROR(receiver()->status());
  return sender() == nullptr ? absl::OkStatus() : sender()->status();
}

std::string StageChannels::WaitingFor() const {
  if (downstream_ != nullptr && sender() == nullptr) return downstream_->WaitingFor();
  if (!first() && receiver() == nullptr) return absl::StrCat("stage ", stage_ - 1, " to connect");
  return connected() ? std::string() : absl::StrCat("the offer of stage ", stage_ + 1);
}

transport::ChannelReceiver* StageChannels::receiver() const {
  return upstream_ == nullptr ? nullptr : upstream_->receiver();
}

transport::ChannelSender* StageChannels::sender() const {
  return downstream_ == nullptr ? nullptr : downstream_->sender();
}

std::string StageChannels::upstream_peer() const {
  return first() ? std::string() : DescribePeer(stage_ - 1, {});
}

std::string StageChannels::downstream_peer() const {
  return downstream_ == nullptr ? std::string() : downstream_->peer();
}

}  // namespace layercake::stage_worker
