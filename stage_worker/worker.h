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
#include "base/event_poll.h"
#include "base/executor.h"
#include "kernels/device.h"
#include "layercake/v1/control.pb.h"
#include "proto/link.h"
#include "stage_worker/session_lease.h"
#include "stage_worker/stage_channels.h"
#include "stage_worker/stage_limits.h"
#include "stage_worker/stage_maker.h"
#include "stage_worker/step_loop.h"

namespace layercake::stage_worker {

struct WorkerOptions {
  std::string worker_id;
  std::string coordinator;  // for messages: "127.0.0.1:7070"
  transport::EndpointFacts facts;
  std::string host_name;
  uint64_t device_memory_bytes = 0;
  double copy_gigabytes_per_second = 0;  // of the device (kernels/copy_speed.h); 0: not measured
  std::string placement;                 // of threads and memory, one line; empty: nowhere
  std::optional<int> preferred_stage;
  absl::Duration dial_timeout = absl::Seconds(30);  // until the coordinator's Welcome
  absl::Duration dial_pause = absl::Milliseconds(250);
  absl::Duration channel_timeout = absl::Seconds(10);  // of one kind, probe included
  absl::Duration farewell = absl::Seconds(2);          // for last words to go out
  absl::Duration drain = absl::Seconds(10);            // for the device to finish what it holds
};

// Everything outlives the worker.
struct WorkerEnvironment {
  const base::Clock* clock = nullptr;
  base::Timers* timers = nullptr;
  base::Executor* executor = nullptr;  // the step thread
  base::FdWatcher* watcher = nullptr;
  base::EventPoll* poll = nullptr;  // the step thread's, where it may stay awake (StepLoopOptions)
  kernels::Device* device = nullptr;
  StageFactory* stages = nullptr;  // where the stage of an Assignment comes from
  absl::Span<transport::ChannelFactory* const> factories;
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
  bool abandoned() const { return device_stuck_ || (maker_ != nullptr && maker_->fetching()); }

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
  void OnMade(absl::StatusOr<MadeStage> made);

  // Channels.
  absl::Status OpenChannels();
  void OnChannel();
  void BecomeReadyIfConnected();

  // Being alive.
  SessionLease::Callbacks MakeLeaseCallbacks();
  void SendHeartbeat(v1::Heartbeat heartbeat);
  std::string WaitingFor() const;

  // The end.
  void Fail(absl::Status status);
  void FailStage(const absl::Status& status);  // names the stage
  void SayFarewell(absl::Status status, const v1::FromWorker& last_words);
  bool Drained() const;
  void TryEnd();
  void End();
  void CancelTimer(base::TimerId& timer);

  const WorkerOptions options_;
  WorkerEnvironment environment_;
  absl::AnyInvocable<void(absl::Status)> on_over_;

  State state_ = State::kDialing;
  base::Instant started_;
  std::unique_ptr<WorkerLink> link_;
  bool link_closed_ = false;

  SessionLease lease_;
  uint64_t term_ = 0;  // from Welcome

  v1::Assignment assignment_;
  std::unique_ptr<StageMaker> maker_;
  std::optional<v1::ChannelOffer> pending_offer_;  // came while loading
  MadeStage made_;                                 // once loaded
  std::unique_ptr<StageChannels> channels_;        // likewise
  std::unique_ptr<StepLoop> loop_;                 // before what it uses goes

  absl::Status end_status_;
  bool farewell_over_ = false;
  bool device_stuck_ = false;
  base::TimerId dial_timer_ = base::TimerId::kNone;
  base::TimerId farewell_timer_ = base::TimerId::kNone;
  base::TimerId drain_timer_ = base::TimerId::kNone;
  // Tasks that come after the worker is gone find it false.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace layercake::stage_worker
