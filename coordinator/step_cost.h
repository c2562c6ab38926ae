// How long a stage takes for a step, learned from the times that it reports.
//
// seconds = fixed + per_row * rows + per_sample * samples + per_read * reads, all coefficients >=
// 0: reading the weights, the products of each row, the head of each sampled row, and the keys and
// values that attention reads.
#pragma once

#include <array>
#include <cstdint>

namespace layercake::coordinator {

// What decides a step's time.
struct StepShape {
  double rows = 0;
  double samples = 0;  // rows whose logits are wanted
  double reads = 0;    // cache entries that the rows read, over all rows

  void Add(const StepShape& other) {
    rows += other.rows;
    samples += other.samples;
    reads += other.reads;
  }
};
// `rows` consecutive rows of one sequence, the first of them at `position`.
StepShape ShapeOf(int position, int rows, bool samples);

// Pure. A fit of least relative squares with old samples fading, in constant time per sample. Steps
// that are all alike leave open what costs how much: that stays as it was, and at first rows are
// thought to cost all of it.
class StepCostModel {
 public:
  void Add(const StepShape& shape, double seconds);
  // Enough samples to be better than no model.
  bool ready() const { return samples_ >= kEnough; }
  double Predict(const StepShape& shape) const;
  int64_t samples() const { return samples_; }

 private:
  static constexpr int kTerms = 4;
  static constexpr int kEnough = 8;
  using Terms = std::array<double, kTerms>;
  static Terms TermsOf(const StepShape& shape);
  void Fit();

  std::array<Terms, kTerms> normal_{};  // sums of products of terms over seconds
  Terms right_{};
  Terms coefficients_{};
  int64_t samples_ = 0;
};

}  // namespace layercake::coordinator
