// One slice of the model: its weights, KV cache and buffers, and the arithmetic of one step.
//
// Thread rule: Create from the step thread; the rest as StepStage says. Nothing is allocated per
// step that grows with the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "kernels/device.h"
#include "kernels/held_ops.h"
#include "kernels/ops.h"
#include "layercake/v1/control.pb.h"
#include "model/model_config.h"
#include "stage_worker/plan_check.h"
#include "stage_worker/stage_limits.h"
#include "stage_worker/stage_weights.h"
#include "stage_worker/step_stage.h"

namespace layercake::stage_worker {

class Stage final : public StepStage {
 public:
  // Allocates the KV cache, host memory for saved blocks, and all buffers. ResourceExhausted, with
  // the sizes, when the device has not that much. `device` and `ops` outlive the stage.
  static absl::StatusOr<std::unique_ptr<Stage>> Create(kernels::Device& device, kernels::Ops& ops,
                                                       const model::ModelConfig& config,
                                                       StageWeights weights,
                                                       const StageLimits& limits,
                                                       kernels::KvType kv_type);

  // Copies blocks from the cache to host memory and back and asks `clock` how long it took: GB/s, 0
  // without host blocks or when the clock stood still. Inside work submitted to the device, before
  // the first step (it writes over blocks).
  absl::StatusOr<double> MeasureHostCopies(const base::Clock& clock);

  bool prepares() const override { return held_ != nullptr; }
  absl::Status Prepare(const StepPlan& plan) override;
  absl::Status ReadActivation(kernels::Buffer rows, size_t at) override;
  absl::Status Run(const StepPlan& plan, std::vector<int32_t> marks,
                   const transport::SendSlot& slot, StepOutput& output) override;
  absl::Status WritePart(const transport::SendSlot& slot, const StepOutput& output, uint32_t first,
                         uint32_t end) override;
  uint32_t hidden() const override { return config_.hidden_size; }

  uint64_t weight_bytes() const { return weights_.weight_bytes; }
  uint64_t kv_bytes() const { return kv_bytes_; }
  uint64_t buffer_bytes() const { return buffer_bytes_; }
  uint64_t host_kv_bytes() const { return kernels::HostKvBytes(cache_->spec()); }

 private:
  // A row whose logits are wanted.
  struct LogitRow {
    size_t sequence = 0;   // index into StepPlan::sequences
    int32_t row = 0;       // of the buffer that it comes from
    int32_t position = 0;  // of the token that is sampled or scored
    bool samples = false;
    int32_t token = -1;  // to score; -1 when it samples
  };
  // The last row of a sequence whose tokens are scored: the first token of its next chunk is
  // scored by it.
  struct CarriedRow {
    int32_t position = 0;
    std::vector<float> x;  // (hidden)
  };

  Stage(kernels::Device& device, kernels::Ops& ops, const model::ModelConfig& config,
        StageWeights weights, const StageLimits& limits);
  absl::Status AllocateBuffers();
  absl::StatusOr<kernels::Buffer> AllocateRows(uint64_t rows, uint64_t width);

  absl::Status CopyBlocks(const BlockCopies& copies);
  absl::Status RunLayers(const StepPlan& plan, absl::Span<const int32_t> tokens);
  // Marks rows that this stage found non-finite first; true when there are any.
  bool AddMarks(absl::Span<const uint8_t> found, std::vector<int32_t>& marks) const;
  // The two parts of an activation frame: its section first.
  absl::Status WriteSection(absl::Span<const int32_t> marks, const transport::SendSlot& slot,
                            StepOutput& output);
  absl::Status WriteRows(const transport::SendSlot& slot, const StepOutput& output);
  // As Run does it when the frame goes in parts: everything is known before the first byte.
  absl::Status WriteFirstPart(std::vector<int32_t> marks, absl::Span<const uint8_t> found,
                              const transport::SendSlot& slot, StepOutput& output);
  absl::Status Sample(const StepPlan& plan, std::vector<int32_t> marks,
                      absl::Span<const uint8_t> found, StepOutput& output);
  static void ApplyMarks(const StepPlan& plan, absl::Span<const int32_t> marks,
                         std::vector<v1::SequenceResult>& results);
  std::vector<LogitRow> WantedRows(const StepPlan& plan,
                                   absl::Span<const v1::SequenceResult> results) const;
  absl::Status ScoreByCarriedRows(const StepPlan& plan, std::vector<v1::SequenceResult>& results);
  absl::Status CarryRows(const StepPlan& plan, absl::Span<const v1::SequenceResult> results);
  absl::Status LogitsOf(const StepPlan& plan, absl::Span<const LogitRow> wanted, kernels::Buffer x,
                        std::vector<v1::SequenceResult>& results);
  void AddResult(const StepPlan& plan, const LogitRow& wanted, const kernels::SampleResult& sampled,
                 v1::SequenceResult& result) const;
  kernels::Buffer Rows(const kernels::Buffer& buffer, int rows, uint64_t width) const;

  kernels::Device& device_;
  kernels::Ops& ops_;
  kernels::HeldOps* const held_;  // the same; null when they compute at once
  const model::ModelConfig config_;
  const StageWeights weights_;
  const StageLimits limits_;
  std::unique_ptr<kernels::KvCache> cache_;
  uint64_t kv_bytes_ = 0;
  uint64_t buffer_bytes_ = 0;
  std::vector<std::unique_ptr<kernels::DeviceMemory>> memory_;

  // (max_rows, width of each)
  kernels::Buffer x_;          // hidden: the residual stream
  kernels::Buffer q_;          // heads * head_dim
  kernels::Buffer attention_;  // heads * head_dim
  kernels::Buffer ffn_;        // ffn
  // Last stage. Logits are made for a few rows at a time, or a long scored prompt would need
  // max_rows * vocabulary floats.
  int logit_rows_ = 0;
  kernels::Buffer logits_;             // (logit_rows, vocabulary)
  kernels::Buffer carried_;            // (logit_rows, hidden)
  std::vector<uint32_t> score_masks_;  // (logit_rows, ceil(vocabulary / 32)), zero between uses
  std::map<uint64_t, CarriedRow> carried_rows_;
  std::vector<uint8_t> non_finite_;  // (max_rows)
  uint64_t prepared_step_ = 0;
};

}  // namespace layercake::stage_worker
