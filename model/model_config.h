// The shape of a model, read from the metadata and the list of tensors of its file, every number
// within sane limits. Pure; plain data; any thread may read a const one.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/gguf/gguf_file.h"
#include "model/gguf/metadata.h"

namespace layercake::model {

enum class Architecture { kLlama, kQwen2, kQwen3 };
absl::string_view ArchitectureName(Architecture architecture);

// Which elements of a head rotate together: (2j, 2j+1) or (j, j + rope_dim/2).
enum class RopeStyle { kNorm, kNeox };

enum class RopeScalingType { kNone, kLinear, kYarn };
absl::string_view RopeScalingTypeName(RopeScalingType type);

struct RopeScaling {
  RopeScalingType type = RopeScalingType::kNone;
  double factor = 1.0;  // positions are stretched by this much
  // YaRN only (Peng et al. 2023, arXiv 2309.00071).
  uint32_t original_context_length = 0;
  double ext_factor = 1.0;
  double attn_factor = 1.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double log_multiplier = 0.0;
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  std::string name;  // general.name; may be empty

  uint32_t n_layers = 0;
  uint32_t hidden_size = 0;
  uint32_t ffn_size = 0;
  uint32_t n_heads = 0;
  uint32_t n_kv_heads = 0;  // divides n_heads
  uint32_t head_dim = 0;    // even; of q, k and v alike
  uint32_t vocab_size = 0;
  uint32_t context_length = 0;  // as trained
  float norm_eps = 0.0f;

  RopeStyle rope_style = RopeStyle::kNorm;
  uint32_t rope_dim = 0;  // even, <= head_dim
  double rope_base = 10000.0;
  RopeScaling rope_scaling;

  // From the tensor list. What the architecture always has (biases of qwen2, norms of qwen3) is set
  // even when the first layer lacks it, so that planning names the missing tensor.
  bool tied_output = false;       // no output.weight: token_embd is used for the head
  bool qkv_bias = false;          // attn_q/k/v (or attn_qkv) have biases
  bool qk_norm = false;           // per-head RMS norm of q and k before RoPE
  bool has_rope_factors = false;  // rope_freqs.weight: per-frequency divisors (Llama 3.x)

  uint32_t q_size() const { return n_heads * head_dim; }
  uint32_t kv_size() const { return n_kv_heads * head_dim; }
};

// Limits on what a file may claim; their products fit 64 bits by a wide margin.
struct ModelLimits {
  static constexpr uint32_t kMaxLayers = 1024;
  static constexpr uint32_t kMaxHiddenSize = 1 << 17;
  static constexpr uint32_t kMaxFfnSize = 1 << 20;
  static constexpr uint32_t kMaxHeads = 1024;
  static constexpr uint32_t kMaxHeadDim = 1024;
  static constexpr uint32_t kMaxVocabSize = 1 << 22;
  static constexpr uint32_t kMaxContextLength = 1 << 24;
};

// Unimplemented for an architecture, rope scaling or feature that we do not run (by name);
// NotFound for a missing key; InvalidArgument for a number outside its limits or at odds with
// another one. `tensors` may be those of a vocabulary-only file (none).
absl::StatusOr<ModelConfig> ReadModelConfig(const Metadata& metadata,
                                            absl::Span<const TensorInfo> tensors);

}  // namespace layercake::model
