#include "coordinator/step_cost.h"

#include <algorithm>
#include <utility>

namespace layercake::coordinator {
namespace {

constexpr double kFade = 0.99;  // a sample's weight after one more
// How strongly each term is held at its last fit, over the samples' own weight. What steps of one
// shape leave open goes to the weights' reading rather than to the head's: a stream more would else
// seem to cost a share of the fixed time.
constexpr std::array<double, 5> kPull = {1e-4, 1e-2, 1e-3, 1e-3, 1e-4};
constexpr double kTiny = 1e-9;
constexpr size_t kRows = 0;  // of the terms
// What rows cost on devices that nobody has measured: reading all weights as much as computing so
// many rows (20 to 60 by data sheets, 60 to 90 as measured with quantised weights on an H200).
constexpr double kRowsOfReading = 64;
// What is only thought has to be better by this much than what was seen.
constexpr double kDoubt = 1.05;
// Entries from which on a chunk is deep in its prompt, and how often its rows read each at least.
constexpr double kDeep = 256;
constexpr double kDepth = 4;

}  // namespace

StepShape ShapeOf(int position, int rows, bool samples) {
  const double n = rows;
  return {.rows = n,
          .samples = samples ? 1.0 : 0.0,
          .reads = n * position + n * (n + 1) / 2,
          .entries = position + n};
}

StepCostModel::Terms StepCostModel::TermsOf(const StepShape& shape) {
  // Scaled, so that the coefficients are of like size. Rows come first: what steps of one
  // shape cannot tell apart is laid to them.
  return {shape.rows / 64, shape.samples / 16, shape.reads / 65'536, shape.entries / 4'096, 1};
}

size_t StepCostModel::ClassOf(double rows) {
  size_t index = 0;
  for (double most = 1; rows > most && index + 1 < kClasses; most *= 2) ++index;
  return index;
}

void StepCostModel::AddToClass(size_t index, const Sample& sample) {
  RowClass& rows = classes_[index];
  std::array<Sample, kClassMemory>& latest = latest_[index];
  latest[static_cast<size_t>(rows.steps++ % kClassMemory)] = sample;
  const auto kept = static_cast<size_t>(std::min<int64_t>(rows.steps, kClassMemory));
  // By what they took beside the line, as they may have read more or less.
  std::array<std::pair<double, const Sample*>, kClassMemory> ordered;
  for (size_t i = 0; i < kept; ++i) ordered[i] = {RatioOf(latest[i]), &latest[i]};
  const size_t count = kept - (kept + 2) / 4;  // of 2: 1, of 3: 2, of 4: 3, ... of 16: 12
  std::nth_element(ordered.begin(), ordered.begin() + count, ordered.begin() + kept,
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  rows.mean = {};
  const double weight = 1.0 / static_cast<double>(count);
  for (size_t i = 0; i < count; ++i) {
    const Sample& one = *ordered[i].second;
    rows.mean.rows += weight * one.rows;
    rows.mean.seconds += weight * one.seconds;
    for (size_t t = 0; t < kTerms; ++t) rows.mean.terms[t] += weight * one.terms[t];
  }
}

void StepCostModel::Add(const StepShape& shape, double seconds) {
  if (!(seconds > 0)) return;
  const Sample sample = {.rows = shape.rows, .seconds = seconds, .terms = TermsOf(shape)};
  const size_t index = ClassOf(shape.rows);
  saw_depth_ = saw_depth_ || (shape.entries >= kDeep && shape.reads >= kDepth * shape.entries);
  const bool doubtful = classes_[index].steps == 0 && ready() && seconds > Predict(shape);
  AddToClass(index, sample);
  ++samples_;
  if (!doubtful) AddToLine(sample);
}

void StepCostModel::AddToLine(const Sample& sample) {
  Terms terms = sample.terms;
  for (double& term : terms) term /= sample.seconds;
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = 0; j < kTerms; ++j) {
      normal_[i][j] = normal_[i][j] * kFade + terms[i] * terms[j];
    }
    right_[i] = right_[i] * kFade + terms[i];
  }
  // The first guess lays everything to rows: so the first chunks of prompts beside streams are
  // small, and their times are the variety that is needed. (Thought free, they would be as large as
  // they may, and equally large ones would never show the error.)
  if (samples_ == 1 && terms[kRows] > 0) coefficients_[kRows] = 1 / terms[kRows];
  Fit();
}

void StepCostModel::Fit() {
  // Least squares with a weak pull to the last fit, which decides what the samples leave open. A
  // term that comes out negative is fixed at zero, and the others are fitted anew.
  std::array<bool, kTerms> zero{};
  for (;;) {
    std::array<std::array<double, kTerms + 1>, kTerms> rows{};
    for (size_t i = 0; i < kTerms; ++i) {
      const double pull = kPull[i] * normal_[i][i] + kTiny;
      if (zero[i]) {
        rows[i][i] = 1;
        continue;
      }
      for (size_t j = 0; j < kTerms; ++j) rows[i][j] = zero[j] ? 0 : normal_[i][j];
      rows[i][i] += pull;
      rows[i][kTerms] = right_[i] + pull * coefficients_[i];
    }
    // Gauss-Jordan; the pull keeps every pivot positive.
    for (size_t k = 0; k < kTerms; ++k) {
      for (size_t i = 0; i < kTerms; ++i) {
        if (i == k) continue;
        const double factor = rows[i][k] / rows[k][k];
        for (size_t j = k; j <= kTerms; ++j) rows[i][j] -= factor * rows[k][j];
      }
    }
    Terms fitted;
    size_t worst = 0;
    for (size_t i = 0; i < kTerms; ++i) {
      fitted[i] = rows[i][kTerms] / rows[i][i];
      if (fitted[i] < fitted[worst]) worst = i;
    }
    if (fitted[worst] >= 0) {
      coefficients_ = fitted;
      return;
    }
    zero[worst] = true;
  }
}

double StepCostModel::Line(const Terms& terms) const {
  double seconds = 0;
  for (size_t i = 0; i < kTerms; ++i) seconds += coefficients_[i] * terms[i];
  return seconds;
}

double StepCostModel::RatioOf(const Sample& mean) const {
  const double line = Line(mean.terms);
  return line > 0 ? mean.seconds / line : 1;
}

double StepCostModel::Predict(const StepShape& shape) const {
  return std::min(Predict(shape, 1), Predict(shape, 2));
}

double StepCostModel::Predict(const StepShape& shape, int64_t least_steps) const {
  const double line = Line(TermsOf(shape));
  const Sample* below = nullptr;
  const Sample* above = nullptr;
  for (const RowClass& rows : classes_) {
    if (rows.steps < least_steps) continue;
    if (rows.mean.rows >= shape.rows) {
      above = &rows.mean;
      break;
    }
    below = &rows.mean;
  }
  if (below == nullptr && above == nullptr) return line;
  if (below == nullptr) return line * RatioOf(*above);
  if (above == nullptr) return line * RatioOf(*below);
  // What the one and the other took beside the line, by how near they are; and between their
  // ratios, as the shape may read much more or less than they did.
  const double share = (shape.rows - below->rows) / (above->rows - below->rows);
  const double beside = (1 - share) * (below->seconds - Line(below->terms)) +
                        share * (above->seconds - Line(above->terms));
  const double low = RatioOf(*below);
  const double high = RatioOf(*above);
  return std::clamp(line + beside, line * std::min(low, high), line * std::max(low, high));
}

double StepCostModel::PredictAtMost(const StepShape& shape) const {
  StepShape most = shape;
  if (!saw_depth_) most.entries = std::max(shape.entries, shape.reads);
  return Predict(most);
}

double StepCostModel::Unmeasured(double rows) { return kRowsOfReading + rows; }

double StepCostModel::PredictUnseen(const StepShape& shape) const {
  const double thought = Predict(shape);
  double largest = 0;
  for (const RowClass& rows : classes_) {
    if (rows.steps > 0) largest = rows.mean.rows;
  }
  if (largest == 0 || shape.rows <= largest) return thought;
  const StepShape seen = shape.Times(largest / shape.rows);
  const double growth = Unmeasured(shape.rows) / Unmeasured(largest);
  return kDoubt * std::min(thought, Predict(seen) * growth);
}

}  // namespace layercake::coordinator
