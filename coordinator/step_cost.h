// How long a stage takes for a step, learned from the times that it reports.
//
// line = fixed + per_row * rows + per_sample * samples + per_read * reads + per_entry * entries,
// all coefficients >= 0: reading the weights, the products of each row, the head of each sampled
// row, and what attention computes and reads. Kernels do not follow a line (a step at 17 rows,
// others for prompts): for classes of rows, by powers of two, it is kept what they took beside it.
//
// Some steps are slow for reasons of their own: the first ones of a size load kernels, others are
// disturbed. So the slowest quarter of a class does not count, and a class that was slower than
// thought is only believed when it has been so twice: else one bad step of a size would keep all
// others of that size from being tried.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace layercake::coordinator {

// What decides a step's time.
struct StepShape {
  double rows = 0;
  double samples = 0;  // rows whose logits are wanted
  double reads = 0;    // cache entries that the rows read, over all rows
  double entries = 0;  // the same, but what several rows of a sequence read counts once

  void Add(const StepShape& other) {
    rows += other.rows;
    samples += other.samples;
    reads += other.reads;
    entries += other.entries;
  }
  StepShape Times(double factor) const {
    return {.rows = rows * factor,
            .samples = samples * factor,
            .reads = reads * factor,
            .entries = entries * factor};
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
  // The same for what may not take longer than thought: as long as no chunk in the depth of a
  // prompt was seen, what its rows read is thought to cost what an entry costs that one row reads.
  double PredictAtMost(const StepShape& shape) const;
  // The same up to the largest step that was seen. Beyond it no worse than Unmeasured grows.
  double PredictUnseen(const StepShape& shape) const;
  // How a step grows with its rows where nothing was measured; in no unit.
  static double Unmeasured(double rows);
  // It had a step of about that many rows.
  bool Saw(double rows) const { return classes_[ClassOf(rows)].steps > 0; }
  int64_t samples() const { return samples_; }

 private:
  static constexpr int kTerms = 5;
  static constexpr int kEnough = 8;
  static constexpr int kClasses = 18;      // of rows: 1, 2, to 4, to 8, ... beyond 65,536
  static constexpr int kClassMemory = 16;  // steps of a class
  using Terms = std::array<double, kTerms>;
  struct Sample {
    double rows = 0;
    double seconds = 0;
    Terms terms{};
  };
  struct RowClass {
    int64_t steps = 0;
    Sample mean;  // of those of the latest steps that count
  };
  static Terms TermsOf(const StepShape& shape);
  static size_t ClassOf(double rows);
  void AddToClass(size_t index, const Sample& sample);
  void AddToLine(const Sample& sample);
  void Fit();
  double Line(const Terms& terms) const;
  double RatioOf(const Sample& mean) const;
  // From the line and the classes that had at least so many steps.
  double Predict(const StepShape& shape, int64_t least_steps) const;

  std::array<Terms, kTerms> normal_{};  // sums of products of terms over seconds
  Terms right_{};
  Terms coefficients_{};
  std::array<RowClass, kClasses> classes_{};
  std::array<std::array<Sample, kClassMemory>, kClasses> latest_{};  // rings
  int64_t samples_ = 0;
  bool saw_depth_ = false;  // a step whose rows read far more than there are entries
};

}  // namespace layercake::coordinator
