// One stage worker's side of the Session, from Hello to Goodbye: dial, handshake, load, channels,
// steps, heartbeats, end. An event-driven state machine; gRPC, files and signals are others'.
//
//   kDialing -> kHandshake -> kAssigned (waits for work) -> kLoading -> kConnecting -> kReady
//   and from any of them -> kFarewell (last words, device drained) -> kOver
//
// Thread rule: the step thread. Callbacks of what it owns come there too.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/executor.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "layercake/v1/control.pb.h"
#include "proto/link.h"
#include "stage_worker/model_provider.h"
#include "stage_worker/neighbour.h"
#include "stage_worker/stage.h"
#include "stage_worker/stage_limits.h"
#include "stage_worker/stage_loader.h"
#include "stage_worker/step_loop.h"

namespace layercake::stage_worker {

struct WorkerOptions {
  std::string worker_id;
  std::string coordinator;  // for messages: "127.0.0.1:7070"
  transport::EndpointFacts facts;
  std::string host_name;
  uint64_t device_memory_bytes = 0;
  std::optional<int> preferred_stage;
  absl::Duration dial_timeout = absl::Seconds(30);  // until the coordinator's Welcome
  absl::Duration dial_pause = absl::Milliseconds(250);
  absl::Duration channel_timeout = absl::Seconds(10);  // of one kind, probe included
  absl::Duration load_silence = absl::Seconds(30);     // loading that makes no progress
  absl::Duration farewell = absl::Seconds(2);          // for last words to go out
  absl::Duration drain = absl::Seconds(10);            // for the device to finish what it holds
};

// Everything outlives the worker.
struct WorkerEnvironment {
  const base::Clock* clock = nullptr;
  base::Timers* timers = nullptr;
  base::Executor* executor = nullptr;  // the step thread
  base::FdWatcher* watcher = nullptr;
  base::Executor* loading = nullptr;  // the loading thread
  kernels::Device* device = nullptr;
  kernels::Ops* ops = nullptr;
  absl::Span<transport::ChannelFactory* const> factories;
  ModelProvider* provider = nullptr;
  // A new link to the coordinator; called again while it cannot be reached.
  absl::AnyInvocable<std::unique_ptr<WorkerLink>()> dial;
};

class Worker {
 public:
  // `on_over` runs once, as the last thing: OK after the coordinator's Shutdown or RequestStop,
  // else why the worker cannot go on. It does not destroy the worker. abandoned() is final then.
  Worker(WorkerOptions options, WorkerEnvironment environment,
         absl::AnyInvocable<void(absl::Status)> on_over);
  ~Worker();

  void Start();
  // Ends in order: Goodbye, then on_over(OK).
  void RequestStop(absl::string_view reason);

  // True when the device or the loading thread did not come back: they may still touch everything
  // here or wait for ever, so the process has to end without tearing anything down.
  bool abandoned() const { return device_stuck_ || (loader_ != nullptr && loader_->fetching()); }

 private:
  enum class State {
    kDialing,
    kHandshake,
    kAssigned,
    kLoading,
    kConnecting,
    kReady,
    kFarewell,
    kOver
  };

  // Session.
  void Dial();
  void OnMessage(v1::ToWorker message);
  void OnClosed(absl::Status status);
  absl::Status Handle(v1::ToWorker& message);
  absl::Status OnWelcome(const v1::Welcome& welcome);
  absl::Status OnAssignment(const v1::Assignment& assignment);
  absl::Status OnConnectDownstream(const v1::ConnectDownstream& connect);
  absl::Status OnPlan(const v1::MicroBatchPlan& plan);
  v1::FromWorker MakeHello() const;
  void Send(const v1::FromWorker& message);

  // Loading.
  void SendProgress(uint64_t loaded, uint64_t total);
  void OnLoaded(absl::StatusOr<LoadedStage> loaded);
  absl::Status OnStageMade(LoadedStage loaded);

  // Channels.
  NeighbourOptions MakeNeighbourOptions() const;
  NeighbourCallbacks MakeNeighbourCallbacks(bool upstream);
  absl::Status OfferUpstream();
  absl::Status ConnectToDownstream(const v1::ChannelOffer& offer);
  void BecomeReadyIfConnected();

  // Being alive.
  void OnHeartbeatTimer();
  void SendHeartbeat();
  std::string WaitingFor() const;

  // The end.
  void Fail(absl::Status status);
  void FailStage(const absl::Status& status);  // names the stage
  void SayFarewell(absl::Status status, const v1::FromWorker& last_words);
  bool Drained() const;
  void TryEnd();
  void End();
  base::TimerId After(absl::Duration delay, void (Worker::*then)());
  void CancelTimer(base::TimerId& timer);

  const WorkerOptions options_;
  WorkerEnvironment environment_;
  absl::AnyInvocable<void(absl::Status)> on_over_;

  State state_ = State::kDialing;
  base::Instant started_;
  std::unique_ptr<WorkerLink> link_;
  bool link_closed_ = false;

  // From Welcome.
  absl::Duration heartbeat_ = absl::Seconds(1);
  absl::Duration lease_ = absl::Seconds(5);
  uint64_t term_ = 0;
  uint64_t heartbeat_number_ = 0;
  uint64_t last_heard_number_ = 0;
  base::Instant last_heard_;
  base::Instant next_heartbeat_;

  v1::Assignment assignment_;
  std::unique_ptr<StageLoader> loader_;
  std::optional<v1::ChannelOffer> pending_offer_;  // came while loading
  StageLimits limits_;                             // once loaded
  std::unique_ptr<Stage> stage_;
  std::unique_ptr<UpstreamEnd> upstream_;
  std::unique_ptr<DownstreamEnd> downstream_;
  std::unique_ptr<StepLoop> loop_;  // before what it uses goes

  absl::Status end_status_;
  bool farewell_over_ = false;
  bool device_stuck_ = false;
  base::TimerId dial_timer_ = base::TimerId::kNone;
  base::TimerId heartbeat_timer_ = base::TimerId::kNone;
  base::TimerId farewell_timer_ = base::TimerId::kNone;
  base::TimerId drain_timer_ = base::TimerId::kNone;
  // Tasks that come after the worker is gone find it false.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace layercake::stage_worker
