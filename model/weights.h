// Which tensors a stage with layers [first, end) needs, under which role, checked against the shape
// the configuration asks for. Pure; plain data; any thread may read a const one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/gguf/gguf_file.h"
#include "model/model_config.h"

namespace layercake::model {

enum class WeightRole {
  kTokenEmbedding,  // (vocab_size, hidden); first stage
  kOutputNorm,      // (hidden); last stage
  kOutput,          // (vocab_size, hidden); last stage; the embedding's tensor when tied
  kOutputBias,      // (vocab_size); last stage
  kRopeFreqs,       // (rope_dim / 2); every stage
  // Per layer.
  kAttnNorm,        // (hidden)
  kAttnQ,           // (q_size, hidden)
  kAttnK,           // (kv_size, hidden)
  kAttnV,           // (kv_size, hidden)
  kAttnQBias,       // (q_size)
  kAttnKBias,       // (kv_size)
  kAttnVBias,       // (kv_size)
  kAttnQNorm,       // (head_dim)
  kAttnKNorm,       // (head_dim)
  kAttnOutput,      // (hidden, q_size)
  kAttnOutputBias,  // (hidden)
  kFfnNorm,         // (hidden)
  kFfnGate,         // (ffn, hidden)
  kFfnUp,           // (ffn, hidden)
  kFfnDown,         // (hidden, ffn)
  kFfnGateBias,     // (ffn)
  kFfnUpBias,       // (ffn)
  kFfnDownBias,     // (hidden)
};
absl::string_view WeightRoleName(WeightRole role);

// A tensor, or whole rows of one (a fused attn_qkv is three views of the same tensor).
struct Weight {
  static constexpr int32_t kNoLayer = -1;

  WeightRole role = WeightRole::kTokenEmbedding;
  int32_t layer = kNoLayer;  // of the whole model, not of the stage
  std::string tensor_name;
  TensorType type = TensorType::kF32;
  uint64_t rows = 0;           // 1 for a vector
  uint64_t columns = 0;        // elements of a row (K of a matrix, length of a vector)
  uint64_t row_bytes = 0;      // of one row
  uint64_t tensor_offset = 0;  // where the first row begins, from the start of the tensor
  uint64_t byte_size = 0;      // rows * row_bytes
};

struct WeightMap {
  uint32_t layer_first = 0;
  uint32_t layer_end = 0;
  std::vector<Weight> weights;  // global ones first, then layer by layer
  // Bytes of the distinct tensors of this stage: a tied embedding on the only stage counts once, on
  // the last of several it is that stage's own copy.
  uint64_t total_bytes = 0;

  // nullptr when the stage has none; `layer` is Weight::kNoLayer for global roles.
  const Weight* Find(WeightRole role, int32_t layer = Weight::kNoLayer) const;
};

// NotFound names the missing tensor and the stage's layers; InvalidArgument names both shapes;
// Unimplemented when norms or biases are not F32, when rope_factors_long/short are present, or when
// one of the stage's layers holds a tensor that we would ignore (it would change the answer).
absl::StatusOr<WeightMap> PlanWeights(const ModelConfig& config,
                                      absl::Span<const TensorInfo> tensors, uint32_t layer_first,
                                      uint32_t layer_end);

// Names of the tensors that no stage uses, in file order. Errors as PlanWeights over all layers.
absl::StatusOr<std::vector<std::string>> UnusedTensors(const ModelConfig& config,
                                                       absl::Span<const TensorInfo> tensors);

// Bytes for planning: what each layer, the embedding (first stage) and the head (last stage, its
// own copy when tied) add to a stage, and what every stage holds.
struct WeightBytes {
  std::vector<uint64_t> layers;  // (n_layers)
  uint64_t embedding = 0;
  uint64_t head = 0;         // output_norm, output and its bias
  uint64_t every_stage = 0;  // rope_freqs
};
absl::StatusOr<WeightBytes> CountWeightBytes(const ModelConfig& config,
                                             absl::Span<const TensorInfo> tensors);

}  // namespace layercake::model
