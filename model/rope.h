// The angles of rotary position embedding, the same on every stage. Pure; any thread.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/model_config.h"

namespace layercake::model {

// Position p turns pair j by p * inv_freq[j]; cos and sin are multiplied by magnitude_scale.
struct RopeTable {
  std::vector<float> inv_freq;  // (rope_dim / 2)
  float magnitude_scale = 1.0f;
};

// `rope_factors` is rope_freqs.weight (rope_dim / 2) or empty: frequency j is divided by factor j.
// Without scaling inv_freq[j] = base^(-2j / rope_dim). Linear: divided by the factor. YaRN
// (arXiv 2309.00071): a ramp over the pairs between divided and undivided, and magnitude_scale =
// attn_factor * (1 + 0.1 ln factor).
// InvalidArgument when the factors have another length or are not positive finite numbers.
absl::StatusOr<RopeTable> ComputeRopeTable(const ModelConfig& config,
                                           absl::Span<const float> rope_factors);

}  // namespace layercake::model
