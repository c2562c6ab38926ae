// What the step loop asks of a stage. The seam between the loop and the model's arithmetic: the
// simulation puts a stage behind it that computes digests and costs virtual time.
//
// Thread rule: Prepare, ReadActivation, Run and WritePart inside work submitted to the device, in
// the order of the steps; hidden() and prepares() from anywhere.
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
  // Set by the caller, for stages before the last. Not 0: of a longer payload, Run need write the
  // first so many bytes only; WritePart writes the rest.
  uint32_t first_part_bytes = 0;
  // Stages before the last: how long the frame in the downstream slot is.
  uint32_t section_bytes = 0;
  uint32_t payload_bytes = 0;
  // The last stage.
  std::vector<v1::SequenceResult> results;
};

class StepStage {
 public:
  virtual ~StepStage() = default;

  // Whether Prepare does anything: else it is not asked.
  virtual bool prepares() const { return false; }
  // Once at most, before Run of the same step and behind everything of the steps before it: does
  // what of it needs neither tokens nor the activation. Reads no token of the plan, which may come
  // meanwhile.
  virtual absl::Status Prepare(const StepPlan& plan) {
    static_cast<void>(plan);
    return absl::OkStatus();
  }

  // Stages after the first, before Run of the same step: takes the rows of the upstream slot,
  // (rows, hidden) float32, or a piece of them that begins `at` bytes behind their start; pieces
  // come in order. Afterwards a slot in host memory is free; one in device memory is when Run has
  // ended.
  virtual absl::Status ReadActivation(kernels::Buffer rows, size_t at) = 0;

  // Computes a step. `marks` (rows): the first stage that saw each row non-finite, or kFinite.
  // `slot`: where the activation frame goes; empty on the last stage. On return all of it is there,
  // or its first part (StepOutput).
  virtual absl::Status Run(const StepPlan& plan, std::vector<int32_t> marks,
                           const transport::SendSlot& slot, StepOutput& output) = 0;

  // Stages before the last, after Run of the same step with a first part: the bytes [first, end) of
  // the payload. A stage whose Run writes everything has nothing left to do.
  virtual absl::Status WritePart(const transport::SendSlot& slot, const StepOutput& output,
                                 uint32_t first, uint32_t end) {
    static_cast<void>(slot);
    static_cast<void>(output);
    static_cast<void>(first);
    static_cast<void>(end);
    return absl::OkStatus();
  }

  virtual uint32_t hidden() const = 0;
};

}  // namespace layercake::stage_worker
