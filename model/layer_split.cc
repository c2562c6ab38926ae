#include "model/layer_split.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/checked_math.h"

namespace layercake::model {
namespace {

// What stages weigh: prefix sums of the layers, embedding on the first, head on the last.
class StageWeights {
 public:
  StageWeights(absl::Span<const uint64_t> layers, uint64_t embedding, uint64_t head)
      : embedding_(embedding), head_(head) {
    for (const uint64_t bytes : layers) prefix_.push_back(prefix_.back() + bytes);
  }
  uint32_t layers() const { return static_cast<uint32_t>(prefix_.size() - 1); }
  uint64_t Of(uint32_t first, uint32_t end) const {
    return prefix_[end] - prefix_[first] + (first == 0 ? embedding_ : 0) +
           (end == layers() ? head_ : 0);
  }

 private:
  std::vector<uint64_t> prefix_ = {0};
  uint64_t embedding_;
  uint64_t head_;
};

// Whether `stages` non-empty stages of at most `limit` bytes hold all layers. Filling each stage as
// far as it goes is enough: fewer layers early never help later ones.
bool Fits(const StageWeights& weights, uint32_t stages, uint64_t limit) {
  uint32_t first = 0;
  for (uint32_t stage = 0; stage < stages; ++stage) {
    // Each later stage needs a layer.
    const uint32_t last_end = weights.layers() - (stages - 1 - stage);
    uint32_t end = first;
    while (end < last_end && weights.Of(first, end + 1) <= limit) ++end;
    if (end == first) return false;
    first = end;
  }
  return first == weights.layers();
}

uint64_t SmallestLimit(const StageWeights& weights, uint32_t stages) {
  uint64_t low = 0;
  uint64_t high = weights.Of(0, weights.layers());
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (Fits(weights, stages, middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

}  // namespace

absl::StatusOr<std::vector<LayerRange>> SplitLayers(absl::Span<const uint64_t> layer_bytes,
                                                    uint64_t embedding_bytes, uint64_t head_bytes,
                                                    uint32_t stages) {
  if (stages == 0 || stages > layer_bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(stages, " stages for a model of ", layer_bytes.size(),
                     " layers; every stage needs at least one layer"));
  }
  std::optional<uint64_t> total = base::CheckedAdd(embedding_bytes, head_bytes);
  for (const uint64_t bytes : layer_bytes) {
    if (total) total = base::CheckedAdd(*total, bytes);
  }
  if (!total) return absl::InvalidArgumentError("the bytes of all layers do not fit 64 bits");

  const StageWeights weights(layer_bytes, embedding_bytes, head_bytes);
  const uint32_t layers = weights.layers();
  const uint64_t limit = SmallestLimit(weights, stages);
  // best[s][end]: the smallest sum of squares of stages 0..s that end before layer `end`.
  constexpr double kImpossible = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(stages, std::vector<double>(layers + 1, kImpossible));
  std::vector<std::vector<uint32_t>> cut(stages, std::vector<uint32_t>(layers + 1, 0));
  for (uint32_t stage = 0; stage < stages; ++stage) {
    for (uint32_t end = stage + 1; end + (stages - 1 - stage) <= layers; ++end) {
      // Backwards, so that a stage over the limit ends the search; ties keep the longer tail.
      for (uint32_t first = end; first-- > stage;) {
        const uint64_t bytes = weights.Of(first, end);
        if (bytes > limit) break;
        if (stage == 0 && first != 0) continue;
        const double before = stage == 0 ? 0.0 : best[stage - 1][first];
        const auto size = static_cast<double>(bytes);
        if (before + size * size < best[stage][end]) {
          best[stage][end] = before + size * size;
          cut[stage][end] = first;
        }
      }
    }
  }
  std::vector<LayerRange> ranges(stages);
  uint32_t end = layers;
  for (uint32_t stage = stages; stage-- > 0;) {
    ranges[stage] = {cut[stage][end], end};
    end = cut[stage][end];
  }
  return ranges;
}

absl::StatusOr<std::vector<LayerRange>> ParseLayerRanges(absl::string_view text,
                                                         uint32_t n_layers) {
  std::vector<LayerRange> ranges;
  uint32_t next = 0;
  for (const absl::string_view piece : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(piece, '-');
    uint32_t first = 0;
    uint32_t last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layers \"", text, "\": \"", piece, "\" is not FIRST-LAST; write for example 0-9,10-19"));
    }
    if (last < first || last >= n_layers) {
      return absl::InvalidArgumentError(absl::StrCat("layers \"", text, "\": \"", piece,
                                                     "\" is not a range of layers 0 to ",
                                                     n_layers - 1, " (both ends are included)"));
    }
    if (first != next) {
      return absl::InvalidArgumentError(
          absl::StrCat("layers \"", text, "\": \"", piece, "\" should begin with layer ", next,
                       ": stages take the layers in order, each once"));
    }
    ranges.push_back({first, last + 1});
    next = last + 1;
  }
  if (next != n_layers) {
    return absl::InvalidArgumentError(absl::StrCat("layers \"", text, "\" end with layer ",
                                                   next - 1, ", but the model's last one is ",
                                                   n_layers - 1));
  }
  return ranges;
}

std::string FormatLayerRanges(absl::Span<const LayerRange> ranges) {
  return absl::StrJoin(ranges, ",", [](std::string* out, const LayerRange& range) {
    absl::StrAppend(out, range.first);
    if (range.size() > 1) absl::StrAppend(out, "-", range.end - 1);
  });
}

}  // namespace layercake::model
