// How two neighbouring stages get a channel: the receiver offers every kind that may be used, the
// sender chooses, connects and probes; a kind that fails is dropped with one line in the log, and
// the next one is tried where the request leaves a choice ("auto").
//
// Thread rule: the executor of the channels. Callbacks run there, never inside Create; they do not
// destroy the end that calls them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/executor.h"
#include "base/fd_watcher.h"
#include "layercake/v1/control.pb.h"
#include "transport/channel.h"
#include "transport/probe.h"
#include "transport/transport_choice.h"

namespace layercake::stage_worker {

// What both ends run on. Everything outlives them.
struct NeighbourContext {
  const base::Clock* clock = nullptr;
  base::Timers* timers = nullptr;
  base::Executor* executor = nullptr;
  base::FdWatcher* watcher = nullptr;
  absl::Span<transport::ChannelFactory* const> factories;
};

struct NeighbourOptions {
  transport::RingId ring;
  transport::ChannelGeometry geometry;
  int stage = 0;                                       // this one
  int peer_stage = 0;                                  // at the other end
  bool feedback = false;                               // the way back: tokens alone (feedback.h)
  transport::EndpointFacts facts;                      // of this process
  v1::HostIdentity host;                               // the same for the wire (endpoint.h)
  std::string transport = "auto";                      // of the Assignment; the receiving end's
  absl::Duration connect_timeout = absl::Seconds(10);  // of one kind, probe included
};

struct NeighbourCallbacks {
  absl::AnyInvocable<void(const v1::ChannelReady&)> on_ready;  // once
  absl::AnyInvocable<void()> on_channel;                       // after on_ready: Poll or Acquire
  absl::AnyInvocable<void(absl::Status)> on_failure;           // once, before on_ready
};

// The receiving end.
class UpstreamEnd {
 public:
  // Makes a receiver of every kind that options.transport allows. InvalidArgument for another
  // word, FailedPrecondition when this build or machine has none of the kinds.
  static absl::StatusOr<std::unique_ptr<UpstreamEnd>> Create(const NeighbourOptions& options,
                                                             const NeighbourContext& context,
                                                             NeighbourCallbacks callbacks);
  ~UpstreamEnd();

  // For the upstream neighbour; holds secrets.
  const v1::ChannelOffer& offer() const { return offer_; }
  // Null until on_ready.
  transport::ChannelReceiver* receiver() const { return chosen_; }

 private:
  struct Candidate {
    transport::TransportKind kind = transport::TransportKind::kLocal;
    kernels::PeerMemory* peer_memory = nullptr;            // of the factory
    std::unique_ptr<transport::ChannelReceiver> receiver;  // null once dropped
    std::unique_ptr<transport::ProbeReceiver> probe;       // while it runs
    base::TimerId timer = base::TimerId::kNone;            // bounds the probe
  };

  UpstreamEnd(const NeighbourOptions& options, const NeighbourContext& context,
              NeighbourCallbacks callbacks);
  absl::Status Open(transport::ChannelFactory& factory);
  void OnChannel(size_t index);
  void Choose(Candidate& candidate);
  void Drop(Candidate& candidate, const absl::Status& reason);
  transport::ChannelOptions ChannelOptions() const;

  const NeighbourOptions options_;
  const NeighbourContext context_;
  NeighbourCallbacks callbacks_;
  std::vector<std::unique_ptr<Candidate>> candidates_;
  transport::ChannelReceiver* chosen_ = nullptr;
  v1::ChannelOffer offer_;
};

// The sending end.
class DownstreamEnd {
 public:
  // `offer` came over the wire: it is checked (FailedPrecondition for another ring or stage,
  // InvalidArgument for an offer of nothing).
  static absl::StatusOr<std::unique_ptr<DownstreamEnd>> Create(const NeighbourOptions& options,
                                                               const NeighbourContext& context,
                                                               const v1::ChannelOffer& offer,
                                                               NeighbourCallbacks callbacks);
  ~DownstreamEnd();

  // Null until on_ready.
  transport::ChannelSender* sender() const { return ready_ ? sender_.get() : nullptr; }
  const std::string& peer() const { return peer_; }  // "stage 2 (host b)"
  // "stage 2 (host b) to take a connection over ucx since 3s"; empty when connected.
  std::string WaitingFor() const;

 private:
  struct Attempt {
    transport::TransportKind kind;
    std::string blob;
  };

  DownstreamEnd(const NeighbourOptions& options, const NeighbourContext& context,
                const v1::ChannelOffer& offer, NeighbourCallbacks callbacks);
  absl::Status Plan(const v1::ChannelOffer& offer);
  void TryNext();
  void OnChannel();
  void FailAttempt(const absl::Status& reason);
  void Finish();
  transport::ChannelFactory* FactoryOf(transport::TransportKind kind) const;
  void CancelTimer();

  const NeighbourOptions options_;
  const NeighbourContext context_;
  NeighbourCallbacks callbacks_;
  const int receiver_stage_;
  const std::string peer_;
  std::vector<Attempt> attempts_;
  std::string reason_;  // of the choice
  size_t current_ = 0;
  std::string failures_;  // of the attempts before
  std::unique_ptr<transport::ChannelSender> sender_;
  std::unique_ptr<transport::ProbeSender> probe_;
  base::TimerId timer_ = base::TimerId::kNone;
  base::Instant since_;
  bool ready_ = false;
  bool failed_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for the first, posted attempt
};

}  // namespace layercake::stage_worker
