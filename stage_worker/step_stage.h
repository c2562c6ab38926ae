// What the step loop asks of a stage. The seam between the loop and the model's arithmetic: the
// simulator (tests/sim) puts a stage behind it that computes digests and costs virtual time.
//
// Thread rule: ReadActivation and Run inside work submitted to the device, in the order of the
// steps; hidden() from anywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "layercake/v1/control.pb.h"
#include "stage_worker/plan_check.h"
#include "transport/channel.h"

namespace layercake::stage_worker {

// What a step leaves behind.
struct StepOutput {
  // Stages before the last: how much of the downstream slot was written.
  uint32_t section_bytes = 0;
  uint32_t payload_bytes = 0;
  // The last stage.
  std::vector<v1::SequenceResult> results;
};

class StepStage {
 public:
  virtual ~StepStage() = default;

  // Stages after the first, before Run of the same step: takes the rows of the upstream slot,
  // (rows, hidden) float32. Afterwards a slot in host memory is free; one in device memory is when
  // Run has ended.
  virtual absl::Status ReadActivation(kernels::Buffer rows) = 0;

  // Computes a step. `marks` (rows): the first stage that saw each row non-finite, or kFinite.
  // `slot`: where the activation frame goes; empty on the last stage. On return all of it is there.
  virtual absl::Status Run(const StepPlan& plan, std::vector<int32_t> marks,
                           const transport::SendSlot& slot, StepOutput& output) = 0;

  virtual uint32_t hidden() const = 0;
};

}  // namespace layercake::stage_worker
