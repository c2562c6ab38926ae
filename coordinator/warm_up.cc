#include "coordinator/warm_up.h"

#include <algorithm>

#include "coordinator/step_cost.h"

namespace layercake::coordinator {
namespace {

// From one size to the next. 2 to 4 rows take the kernels of one, or are close to it.
constexpr int kSecondSize = 8;
constexpr int kGrowth = 2;

// A size's first step loads its kernels; and what was measured may have been the guess's lucky end.
constexpr double kCaution = 3;

}  // namespace

WarmUp::WarmUp(int most_rows, absl::Duration budget) : most_rows_(most_rows), left_(budget) {}

int WarmUp::Next(absl::Duration took) {
  int next = rows_ == 1 ? kSecondSize : std::min(rows_ * kGrowth, most_rows_);
  if (cold_) {
    cold_ = false;
    next = 1;
  } else {
    left_ -= took;
  }
  if (left_ <= absl::ZeroDuration() || next > most_rows_ || (next == rows_ && next > 1)) return 0;
  const double growth = StepCostModel::Unmeasured(next) / StepCostModel::Unmeasured(rows_);
  if (next > 1 && took * (kCaution * growth) > left_) return 0;
  rows_ = next;
  return next;
}

}  // namespace layercake::coordinator
