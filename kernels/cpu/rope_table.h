// Cosines and sines of a step's rows, and the rotation of a head by them.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/ops.h"

namespace layercake::kernels {

// Computed at the first layer of a step, used by all: angles are position * inv_freq in double.
// One per CpuOps, used in submitted work; Rotate may run in several threads at once.
class RopeTable {
 public:
  // Forgets the last step's rows.
  void BeginStep() { valid_ = false; }
  // Makes the table hold `positions` under `rope`, unless it does already.
  void Prepare(const Rope& rope, absl::Span<const int32_t> positions);
  // Turns the leading rope_dims values of one head of row `row`.
  void Rotate(Rope::Pairing pairing, int64_t row, float* head) const;

 private:
  bool valid_ = false;
  std::vector<float> inv_freq_;
  float magnitude_ = 1;
  std::vector<float> cosines_;  // (rows, pairs)
  std::vector<float> sines_;    // (rows, pairs)
};

}  // namespace layercake::kernels
