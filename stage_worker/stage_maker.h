// Where a worker's stage comes from: the seam between the Session and what loads weights.
// Production loads a model (stage_loader.h); a simulation makes its stage after some virtual time.
//
// Thread rule: the step thread; callbacks come there too.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "layercake/v1/control.pb.h"
#include "stage_worker/stage_limits.h"
#include "stage_worker/step_stage.h"

namespace layercake::stage_worker {

struct MadeStage {
  StageLimits limits;
  std::unique_ptr<StepStage> stage;
  // What it takes of its device.
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;
  uint64_t buffer_bytes = 0;
  // For blocks that are saved to host memory; the speed is 0 where it was not measured.
  uint64_t host_kv_bytes = 0;
  double host_copy_gigabytes_per_second = 0;
};

// One stage on its way.
class StageMaker {
 public:
  struct Callbacks {
    absl::AnyInvocable<void(uint64_t loaded_bytes, uint64_t total_bytes)> on_progress;
    // Once, unless stopped before: the stage, or why there is none.
    absl::AnyInvocable<void(absl::StatusOr<MadeStage>)> on_done;
    // After Stop, when the device has given back what it was making.
    absl::AnyInvocable<void()> on_drained;
  };

  virtual ~StageMaker() = default;
  // An error means that nothing follows.
  virtual absl::Status Start() = 0;
  // No callback but on_drained after this. Another thread that works on it is asked to end, not
  // waited for.
  virtual void Stop() = 0;
  // Another thread holds work of this maker.
  virtual bool fetching() const = 0;
  // The device does.
  virtual bool making_stage() const = 0;
};

class StageFactory {
 public:
  virtual ~StageFactory() = default;
  // `assignment` has passed CheckAssignment. The factory outlives the maker, and what it has
  // posted.
  virtual std::unique_ptr<StageMaker> NewMaker(const v1::Assignment& assignment,
                                               StageMaker::Callbacks callbacks) = 0;
};

}  // namespace layercake::stage_worker
