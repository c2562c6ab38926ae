#include "coordinator/step_cost.h"

#include <algorithm>

namespace layercake::coordinator {
namespace {

constexpr double kFade = 0.99;  // a sample's weight after one more
constexpr int kSweeps = 16;

}  // namespace

StepShape ShapeOf(int position, int rows, bool samples) {
  const double n = rows;
  return {.rows = n, .samples = samples ? 1.0 : 0.0, .reads = n * position + n * (n + 1) / 2};
}

StepCostModel::Terms StepCostModel::TermsOf(const StepShape& shape) {
  // Scaled, so that the four coefficients are of like size.
  return {1, shape.rows / 64, shape.samples / 16, shape.reads / 65'536};
}

void StepCostModel::Add(const StepShape& shape, double seconds) {
  if (!(seconds > 0)) return;
  Terms terms = TermsOf(shape);
  for (double& term : terms) term /= seconds;
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = 0; j < kTerms; ++j) {
      normal_[i][j] = normal_[i][j] * kFade + terms[i] * terms[j];
    }
    right_[i] = right_[i] * kFade + terms[i];
  }
  ++samples_;
  // Coordinate descent from where the last fit stood: what the samples do not decide stays.
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (size_t i = 0; i < kTerms; ++i) {
      if (normal_[i][i] <= 0) continue;
      double rest = right_[i];
      for (size_t j = 0; j < kTerms; ++j) {
        if (j != i) rest -= normal_[i][j] * coefficients_[j];
      }
      coefficients_[i] = std::max(0.0, rest / normal_[i][i]);
    }
  }
}

double StepCostModel::Predict(const StepShape& shape) const {
  const Terms terms = TermsOf(shape);
  double seconds = 0;
  for (size_t i = 0; i < kTerms; ++i) seconds += coefficients_[i] * terms[i];
  return seconds;
}

}  // namespace layercake::coordinator
