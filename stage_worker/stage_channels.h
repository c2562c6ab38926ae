// A stage's channels to its neighbours, from the offer to "both ends stand". The stages of a chain
// form a ring: each receives from the one before it and sends to the one behind it, and the last
// one sends what it sampled back to the first (feedback.h).
//
// Thread rule: the executor of the NeighbourContext. Callbacks run there, never inside a call; they
// do not destroy the channels.
#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "layercake/v1/control.pb.h"
#include "stage_worker/neighbour.h"
#include "stage_worker/step_loop.h"
#include "transport/channel.h"
#include "transport/transport_choice.h"

namespace layercake::stage_worker {

// InvalidArgument when the assignment's ring cannot be made. A chain of one stage has none.
absl::Status CheckRing(const v1::Assignment& assignment);

struct StageChannelsOptions {
  transport::EndpointFacts facts;  // of this process
  std::string host_name;
  absl::Duration connect_timeout = absl::Seconds(10);  // of one kind, probe included
};

class StageChannels {
 public:
  struct Callbacks {
    absl::AnyInvocable<void(const v1::ChannelReady&)> on_ready;  // once for each end
    absl::AnyInvocable<void()> on_channel;                       // after on_ready: Poll or Acquire
    absl::AnyInvocable<void(absl::Status)> on_failure;
  };

  // `assignment` has passed CheckRing. What `context` names outlives the channels.
  StageChannels(const StageChannelsOptions& options, const NeighbourContext& context,
                const v1::Assignment& assignment, Callbacks callbacks);

  // Of a chain of several. The offer for the stage before this one in the ring; holds secrets.
  // Once.
  absl::StatusOr<v1::ChannelOffer> Offer();
  // The offer of the stage behind this one in the ring. Once.
  absl::Status Connect(const v1::ChannelOffer& offer);
  bool connecting() const { return downstream_ != nullptr; }

  // Every end that this stage has stands.
  bool connected() const;
  // What the ends say of themselves: the first error.
  absl::Status status() const;
  // What is missing, to stand behind "waits for". Empty when connected.
  std::string WaitingFor() const;

  // Of stages that are connected.
  StepChannels ends() const;
  // "stage 1", "stage 3 (host b)": before and behind this one in the ring; empty in a chain of one.
  std::string receives_from() const;
  std::string sends_to() const;

 private:
  NeighbourCallbacks MakeCallbacks();
  // Of one end.
  NeighbourOptions MakeOptions(int peer_stage, bool feedback) const;
  transport::ChannelReceiver* receiver() const;
  transport::ChannelSender* sender() const;
  bool first() const { return stage_ == 0; }
  bool last() const { return stage_ + 1 == stage_count_; }

  int before() const { return (stage_ + stage_count_ - 1) % stage_count_; }
  int behind() const { return (stage_ + 1) % stage_count_; }

  const StageChannelsOptions options_;
  const v1::Assignment assignment_;
  const int stage_;
  const int stage_count_;
  const NeighbourContext context_;
  Callbacks callbacks_;
  std::unique_ptr<UpstreamEnd> upstream_;
  std::unique_ptr<DownstreamEnd> downstream_;
};

}  // namespace layercake::stage_worker
