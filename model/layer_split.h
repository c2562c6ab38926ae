// How layers are cut into contiguous stages: the default, balanced by bytes, and the user's own.
// Every layer is owned exactly once and no stage is empty. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace layercake::model {

struct LayerRange {
  uint32_t first = 0;
  uint32_t end = 0;  // one past the last

  uint32_t size() const { return end - first; }
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

// Minimises the largest stage, and among those splits the sum of squares (so that equal layers come
// out as equal as they can). The first stage also carries `embedding_bytes`, the last `head_bytes`.
// InvalidArgument when `stages` is zero or larger than the number of layers.
absl::StatusOr<std::vector<LayerRange>> SplitLayers(absl::Span<const uint64_t> layer_bytes,
                                                    uint64_t embedding_bytes, uint64_t head_bytes,
                                                    uint32_t stages);

// "0-9,10-19,20" with inclusive ends: must cover layers 0 .. n_layers-1 in order, each once.
absl::StatusOr<std::vector<LayerRange>> ParseLayerRanges(absl::string_view text, uint32_t n_layers);

// The same form back: "0-9,10-19,20".
std::string FormatLayerRanges(absl::Span<const LayerRange> ranges);

}  // namespace layercake::model
