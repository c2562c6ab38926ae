// A stage's channels to its neighbours, from the offer to "both ends stand".
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

  // Stages after the first: the offer for the stage before this one; holds secrets. Once.
  absl::StatusOr<v1::ChannelOffer> Offer();
  // Stages before the last: the offer of the stage after this one. Once.
  absl::Status Connect(const v1::ChannelOffer& offer);
  bool connecting() const { return downstream_ != nullptr; }

  // Every end that this stage has stands.
  bool connected() const;
  // What the ends say of themselves: the first error.
  absl::Status status() const;
  // What is missing, to stand behind "waits for". Empty when connected.
  std::string WaitingFor() const;

  // Null where there is no neighbour, and until its end stands.
  transport::ChannelReceiver* receiver() const;
  transport::ChannelSender* sender() const;
  // "stage 1", "stage 3 (host b)"; empty where there is no neighbour.
  std::string upstream_peer() const;
  std::string downstream_peer() const;

 private:
  NeighbourCallbacks MakeCallbacks();
  bool first() const { return stage_ == 0; }
  bool last() const { return stage_ + 1 == stage_count_; }

  const int stage_;
  const int stage_count_;
  NeighbourOptions options_;
  const NeighbourContext context_;
  Callbacks callbacks_;
  std::unique_ptr<UpstreamEnd> upstream_;
  std::unique_ptr<DownstreamEnd> downstream_;
};

}  // namespace layercake::stage_worker
