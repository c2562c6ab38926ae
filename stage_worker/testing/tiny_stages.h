// A tiny random model, its stages, and its answers in plain double arithmetic.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/device.h"
#include "kernels/ops.h"
#include "model/gguf/testing/tiny_model.h"
#include "model/model_config.h"
#include "model/model_source.h"
#include "stage_worker/stage.h"
#include "stage_worker/stage_limits.h"

namespace layercake::stage_worker::testing {

class TinyModel {
 public:
  explicit TinyModel(const model::testing::TinyModelOptions& options)
      : TinyModel(model::testing::BuildTinyModel(options)) {}
  explicit TinyModel(const model::testing::GgufBuilder& builder);

  const model::ModelConfig& config() const { return config_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  // A source over these bytes; `mapped` false: one that has to copy.
  std::unique_ptr<model::ModelSource> Source(bool mapped = true) const;
  // The fingerprint of every source.
  uint64_t fingerprint() const;

  // An assignment of stage `stage` when the layers are cut evenly into `stages`.
  v1::Assignment Assign(int stage, int stages) const;

 private:
  std::vector<std::byte> bytes_;
  model::ModelConfig config_;
};

// Loads a stage as the worker does, without its threads.
std::unique_ptr<Stage> MakeStage(const TinyModel& model, const v1::Assignment& assignment,
                                 kernels::Device& device, kernels::Ops& ops, bool mapped = true);

// Logits of every position: (tokens, vocabulary). The model's matrices are F32.
std::vector<std::vector<double>> ReferenceLogits(const TinyModel& model,
                                                 const std::vector<int32_t>& tokens);
// Log-probability of `token` under a row of logits.
double ReferenceLogprob(const std::vector<double>& logits, int32_t token);

// A sequence's rows as a plan has them: tokens [first, first + count) of `tokens`.
v1::RowDescriptor RowsOf(uint64_t sequence, const std::vector<int32_t>& tokens, int first,
                         int count, bool sample);
v1::SequenceBegin BeginOf(uint64_t sequence, uint32_t prompt_tokens);

}  // namespace layercake::stage_worker::testing
