// A stage worker of the simulation: the real channel ends and the real step loop over a simulated
// device, channel and stage. Only the loading of weights, and with it the worker's Session, is the
// simulation's own.
//
// One thread: the simulation's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/executor.h"
#include "layercake/v1/control.pb.h"
#include "proto/link.h"
#include "stage_worker/neighbour.h"
#include "stage_worker/step_loop.h"
#include "tests/sim/digest_stage.h"
#include "tests/sim/sim_channel.h"
#include "tests/sim/sim_device.h"

namespace layercake::sim {

struct SimWorkerOptions {
  int stage = 0;
  StageCost cost;
  Reads reads = Reads::kEvery;
};

class SimWorker {
 public:
  // All of these outlive the worker. `on_plan` and `on_result` see what passes by.
  SimWorker(const SimWorkerOptions& options, const base::Clock& clock, base::Timers& timers,
            base::Executor& executor, SimFabric& fabric, std::unique_ptr<WorkerLink> link,
            std::function<void(const v1::MicroBatchPlan&)> on_plan,
            std::function<void(const v1::StepResult&)> on_result);
  ~SimWorker();

  void Start();
  const SimDevice& device() const { return device_; }
  // OK, or the first thing that went wrong here.
  const absl::Status& status() const { return status_; }

 private:
  void OnMessage(const v1::ToWorker& message);
  void OnAssignment(const v1::Assignment& assignment);
  void ConnectToDownstream(const v1::ChannelOffer& offer);
  void BecomeReadyIfConnected();
  stage_worker::NeighbourOptions MakeNeighbourOptions() const;
  stage_worker::NeighbourCallbacks MakeNeighbourCallbacks();
  void Heartbeat();
  void Send(const v1::FromWorker& message);
  void Fail(absl::Status status);

  const SimWorkerOptions options_;
  const base::Clock& clock_;
  base::Timers& timers_;
  base::Executor& executor_;
  SimChannelFactory factory_;
  transport::ChannelFactory* const factory_pointer_ = &factory_;
  std::unique_ptr<WorkerLink> link_;
  std::function<void(const v1::MicroBatchPlan&)> on_plan_;
  std::function<void(const v1::StepResult&)> on_result_;

  absl::Status status_;
  absl::Duration heartbeat_;
  uint64_t heartbeat_number_ = 0;
  base::TimerId heartbeat_timer_ = base::TimerId::kNone;
  v1::Assignment assignment_;
  stage_worker::StageLimits limits_;
  SimDevice device_;
  std::unique_ptr<DigestStage> stage_;
  std::unique_ptr<stage_worker::UpstreamEnd> upstream_;
  std::unique_ptr<stage_worker::DownstreamEnd> downstream_;
  std::unique_ptr<stage_worker::StepLoop> loop_;  // before what it uses goes
};

}  // namespace layercake::sim
