// The weights of one stage: fetched from a ModelSource, then handed to the device's operations.
//
// Two halves, because they belong to two threads: FetchTensors blocks on a disk or a wire (loading
// thread), WeightBuilder talks to Ops (step thread), one tensor per call so that heartbeats go on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/ops.h"
#include "model/model_config.h"
#include "model/model_source.h"
#include "model/weights.h"

namespace layercake::stage_worker {

// The bytes of a stage's tensors, by name: views into the source, or copies that are owned here.
struct FetchedTensors {
  std::map<std::string, absl::Span<const std::byte>, std::less<>> tensors;
  std::vector<std::unique_ptr<std::byte[]>> owned;
};

// Told after every piece; false stops the fetch (Cancelled).
using FetchProgress = absl::FunctionRef<bool(uint64_t loaded_bytes, uint64_t total_bytes)>;

// Brings every tensor of `weights` into memory, each once: maps it and touches its pages, or reads
// it in pieces of 4 MiB. Blocks. ResourceExhausted when memory is short; the source's errors, with
// the tensor's name.
absl::StatusOr<FetchedTensors> FetchTensors(model::ModelSource& source,
                                            const model::WeightMap& weights,
                                            FetchProgress progress);

struct LayerWeights {
  kernels::AttentionWeights attention;
  const kernels::Matrix* attention_out = nullptr;  // (hidden, heads * head_dim)
  const kernels::Vector* attention_out_bias = nullptr;
  kernels::FfnWeights ffn;
  const kernels::Matrix* ffn_down = nullptr;  // (hidden, ffn)
  const kernels::Vector* ffn_down_bias = nullptr;
};

// Move-only: owns what the pointers point to, and the source whose bytes the matrices may use.
struct StageWeights {
  std::unique_ptr<model::ModelSource> source;
  FetchedTensors fetched;
  std::vector<std::unique_ptr<kernels::Matrix>> matrices;
  std::vector<std::unique_ptr<kernels::Vector>> vectors;

  const kernels::Matrix* embedding = nullptr;    // (vocabulary, hidden); first stage
  const kernels::Vector* output_norm = nullptr;  // (hidden); last stage
  const kernels::Matrix* output = nullptr;       // (vocabulary, hidden); last stage
  std::vector<LayerWeights> layers;              // (layer_end - layer_first)
  kernels::Rope rope;
  uint64_t weight_bytes = 0;
};

// Turns fetched tensors into weights. Everything here outlives it but `fetched` and `source`, which
// it takes.
class WeightBuilder {
 public:
  WeightBuilder(const model::ModelConfig& config, const model::WeightMap& plan,
                FetchedTensors fetched, std::unique_ptr<model::ModelSource> source,
                kernels::Ops& ops);

  // Loads the next tensor; true when all are there. Unimplemented names a weight that the
  // operations have no place for.
  absl::StatusOr<bool> Step();
  // After Step said true.
  StageWeights Take();

 private:
  absl::StatusOr<absl::Span<const std::byte>> BytesOf(const model::Weight& weight) const;
  absl::StatusOr<std::vector<float>> FloatsOf(const model::Weight& weight) const;
  absl::Status LoadMatrix(const model::Weight& weight);
  absl::Status LoadVector(const model::Weight& weight);
  absl::Status Finish();

  const model::ModelConfig& config_;
  const model::WeightMap& plan_;
  kernels::Ops& ops_;
  size_t next_ = 0;  // of plan_.weights
  std::vector<float> rope_factors_;
  StageWeights weights_;
};

}  // namespace layercake::stage_worker
