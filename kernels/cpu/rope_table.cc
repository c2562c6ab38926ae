#include "kernels/cpu/rope_table.h"

#include <cmath>

namespace layercake::kernels {

void RopeTable::Prepare(const Rope& rope, absl::Span<const int32_t> positions) {
  if (valid_ && magnitude_ == rope.magnitude && inv_freq_ == rope.inv_freq) return;
  inv_freq_ = rope.inv_freq;
  magnitude_ = rope.magnitude;
  cosines_.clear();
  sines_.clear();
  for (const int32_t position : positions) {
    for (const float frequency : inv_freq_) {
      const double angle = static_cast<double>(position) * static_cast<double>(frequency);
      cosines_.push_back(static_cast<float>(std::cos(angle) * magnitude_));
      sines_.push_back(static_cast<float>(std::sin(angle) * magnitude_));
    }
  }
  valid_ = true;
}

void RopeTable::Rotate(Rope::Pairing pairing, int64_t row, float* head) const {
  const auto pairs = static_cast<int64_t>(inv_freq_.size());
  const float* cosine = cosines_.data() + row * pairs;
  const float* sine = sines_.data() + row * pairs;
  const bool adjacent = pairing == Rope::Pairing::kAdjacent;
  const int64_t step = adjacent ? 2 : 1;
  const int64_t partner = adjacent ? 1 : pairs;
  for (int64_t j = 0; j < pairs; ++j) {
    float* a = head + j * step;
    float* b = a + partner;
    const float x = *a;
    const float y = *b;
    *a = x * cosine[j] - y * sine[j];
    *b = x * sine[j] + y * cosine[j];
  }
}

}  // namespace layercake::kernels
