// From an assignment to a stage that can compute: finds the model, fetches this stage's tensors,
// hands them to the backend, and makes the stage with its KV cache and buffers.
//
// Fetching runs on the loading thread, building on the step thread (one tensor per task, so that
// heartbeats come in between), making the stage as work of the device.
//
// Thread rule: the step thread; callbacks come there too.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/executor.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "layercake/v1/control.pb.h"
#include "stage_worker/model_provider.h"
#include "stage_worker/stage_maker.h"
#include "stage_worker/stage_weights.h"

namespace layercake::stage_worker {

// Everything outlives the loader, and what it has posted.
struct StageLoaderContext {
  const base::Clock* clock = nullptr;
  base::Timers* timers = nullptr;
  base::Executor* step_thread = nullptr;
  base::Executor* loading_thread = nullptr;
  kernels::Device* device = nullptr;
  kernels::Ops* ops = nullptr;
  ModelProvider* provider = nullptr;
  absl::Duration silence = absl::Seconds(30);  // loading without progress for longer fails
};

class StageLoader final : public StageMaker {
 public:
  // `assignment` has passed CheckAssignment.
  StageLoader(const StageLoaderContext& context, v1::Assignment assignment, Callbacks callbacks);
  ~StageLoader() override;

  // Unimplemented for a type of KV cache that the device has not, ResourceExhausted when the
  // loading thread does not take the work; then nothing follows.
  absl::Status Start() override;
  void Stop() override;
  bool fetching() const override { return fetching_; }
  bool making_stage() const override { return making_stage_; }

 private:
  // What the loading thread makes; used by one thread after the other.
  struct Fetched;
  // Shared by both threads; whichever is last lets go.
  struct Progress {
    std::atomic<uint64_t> loaded{0};
    std::atomic<uint64_t> total{0};
    std::atomic<bool> stop{false};
  };

  static absl::StatusOr<std::unique_ptr<Fetched>> Fetch(ModelProvider& provider,
                                                        const v1::Assignment& assignment,
                                                        Progress& progress);
  void OnFetched(absl::StatusOr<std::unique_ptr<Fetched>> fetched);
  void BuildWeights();
  void MakeStage();
  void OnProgressTimer();
  void Finish(absl::StatusOr<MadeStage> result);
  void ArmProgressTimer();
  void CancelProgressTimer();

  StageLoaderContext context_;
  const v1::Assignment assignment_;
  std::optional<kernels::KvType> kv_type_;  // set by Start
  Callbacks callbacks_;
  std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  bool over_ = false;  // stopped, or on_done ran
  bool fetching_ = false;
  bool making_stage_ = false;
  uint64_t reported_bytes_ = 0;
  base::Instant last_progress_;
  base::TimerId progress_timer_ = base::TimerId::kNone;
  std::unique_ptr<Fetched> fetched_;
  std::unique_ptr<WeightBuilder> builder_;
  // Tasks that come after the loader is gone find it false.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

class StageLoaderFactory final : public StageFactory {
 public:
  explicit StageLoaderFactory(const StageLoaderContext& context) : context_(context) {}

  std::unique_ptr<StageMaker> NewMaker(const v1::Assignment& assignment,
                                       StageMaker::Callbacks callbacks) override;

 private:
  const StageLoaderContext context_;
};

}  // namespace layercake::stage_worker
