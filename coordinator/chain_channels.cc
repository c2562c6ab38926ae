// The channels between stages, as far as the coordinator takes part: it carries offers, and it
// knows which ends are connected.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/chain.h"

namespace layercake::coordinator {

bool Chain::all_offer(v1::Capability capability) const {
  for (int stage = 0; stage < stage_count(); ++stage) {
    const Worker* worker = StageWorkerOf(stage);
    if (worker == nullptr) return false;
    bool offers = false;
    for (const int offered : worker->hello->capabilities()) {
      offers = offers || offered == capability;
    }
    if (!offers) return false;
  }
  return true;
}

bool Chain::has_feedback() const {
  return stage_count() > 1 && all_offer(v1::CAPABILITY_AUTO_CONTINUE);
}

std::string Chain::MissingChannel() const {
  for (int stage = 1; stage < stage_count(); ++stage) {
    const Worker& worker = *StageWorkerOf(stage);
    if (worker.receiver && worker.sender) continue;
    return absl::StrCat("the channel from stage ", stage - 1, " to ", Describe(worker));
  }
  const Worker& first = *StageWorkerOf(0);
  if (has_feedback() && !(first.feedback_receiver && first.feedback_sender)) {
    return absl::StrCat("the feedback channel from stage ", stage_count() - 1, " to ",
                        Describe(first));
  }
  return {};
}

absl::Status Chain::OnChannelOffer(Worker& worker, v1::ChannelOffer offer) {
  LC_RETURN_IF_ERROR(CheckEpoch(offer.term(), offer.epoch()));
  if (offer.receiver_stage() != worker.stage) {
    return absl::InvalidArgumentError(absl::StrCat(
        "stage ", worker.stage, " offers a channel for stage ", offer.receiver_stage()));
  }
  // The first stage has no upstream neighbour: what it can offer is the way back.
  const bool feedback = worker.stage == 0;
  if (feedback && (stage_count() == 1 || offer.feedback_kinds().empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat("stage 0 of ", stage_count(), " offers a channel that nobody would use"));
  }
  v1::ToWorker message;
  *message.mutable_connect_downstream()->mutable_offer() = std::move(offer);
  return StageWorkerOf(feedback ? stage_count() - 1 : worker.stage - 1)->link->Send(message);
}

absl::Status Chain::OnChannelReady(Worker& worker, const v1::ChannelReady& ready) {
  LC_RETURN_IF_ERROR(CheckEpoch(ready.term(), ready.epoch()));
  const bool last = worker.stage == stage_count() - 1;
  switch (ready.end()) {
    case v1::ChannelReady::END_RECEIVER:
      worker.receiver = ready;
      return absl::OkStatus();
    case v1::ChannelReady::END_SENDER:
      if (last) return absl::InvalidArgumentError("the last stage has no downstream channel");
      StageWorkerOf(worker.stage + 1)->sender = ready;
      return absl::OkStatus();
    case v1::ChannelReady::END_FEEDBACK_RECEIVER:
    case v1::ChannelReady::END_FEEDBACK_SENDER: {
      const bool sender = ready.end() == v1::ChannelReady::END_FEEDBACK_SENDER;
      if (stage_count() == 1 || !(sender ? last : worker.stage == 0)) {
        return absl::InvalidArgumentError(
            absl::StrCat("stage ", worker.stage, " has no such end of a feedback channel"));
      }
      Worker& first = *StageWorkerOf(0);
      (sender ? first.feedback_sender : first.feedback_receiver) = ready;
      return absl::OkStatus();
    }
    default:
      return absl::InvalidArgumentError("a channel is ready, and neither end says so");
  }
}

void Chain::OnMissing(Worker& worker, absl::Status status) {
  worker.misses_another = true;
  bool others = false;  // whose end would explain it
  for (const auto& [id, other] : workers_) {
    others = others || (other.stage >= 0 && !other.misses_another);
  }
  if (!others) {
    Fail(std::move(status));
  } else if (missing_ == base::TimerId::kNone) {
    missing_ = timers_.At(clock_.Now() + options_.others_speak,
                          [this, status = std::move(status)] { Fail(status); });
  }
}

}  // namespace layercake::coordinator
