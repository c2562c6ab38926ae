// A stage worker of the simulation: the real worker (Session, loading, channels, step loop,
// farewell) over a simulated link, device and channel, with a stage that computes digests and takes
// virtual time to load.
//
// One thread: the simulation's.
#pragma once

#include <functional>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/executor.h"
#include "layercake/v1/control.pb.h"
#include "proto/link.h"
#include "simulation/digest_stage.h"
#include "simulation/sim_channel.h"
#include "simulation/sim_device.h"
#include "stage_worker/stage_maker.h"
#include "stage_worker/worker.h"

namespace layercake::simulation {

struct SimWorkerOptions {
  int stage = 0;
  StageCost cost;
  Reads reads = Reads::kEvery;
  absl::Duration load_time = absl::Milliseconds(5);
};

// What a worker runs on. All of it outlives the worker.
struct SimWorkerContext {
  const base::Clock* clock = nullptr;
  base::Timers* timers = nullptr;
  base::Executor* executor = nullptr;
  SimFabric* fabric = nullptr;
  // A new Session with the coordinator.
  std::function<std::unique_ptr<WorkerLink>()> dial;
  // What passes by on it.
  std::function<void(const v1::ToWorker&)> on_heard;
  std::function<void(const v1::FromWorker&)> on_said;
};

// Makes digest stages after `load_time`.
class SimStageFactory final : public stage_worker::StageFactory {
 public:
  SimStageFactory(const SimWorkerOptions& options, const SimWorkerContext& context,
                  SimDevice& device)
      : options_(options), context_(context), device_(device) {}

  std::unique_ptr<stage_worker::StageMaker> NewMaker(
      const v1::Assignment& assignment, stage_worker::StageMaker::Callbacks callbacks) override;

 private:
  const SimWorkerOptions options_;
  const SimWorkerContext context_;
  SimDevice& device_;
};

class SimWorker {
 public:
  // `on_over` runs once, as the worker's own does (stage_worker/worker.h).
  SimWorker(const SimWorkerOptions& options, const SimWorkerContext& context,
            absl::AnyInvocable<void(absl::Status)> on_over);

  void Start() { worker_.Start(); }
  void RequestStop(absl::string_view reason) { worker_.RequestStop(reason); }
  const SimDevice& device() const { return device_; }

 private:
  SimDevice device_;
  SimStageFactory stages_;
  SimChannelFactory channels_;
  transport::ChannelFactory* const channel_factory_ = &channels_;
  stage_worker::Worker worker_;
};

}  // namespace layercake::simulation
