#include "coordinator/flight_control.h"

#include <algorithm>
#include <utility>

namespace layercake::coordinator {
namespace {

constexpr double kFresh = 1.0 / 32;  // weight of a new value in an average
constexpr int kDecideEvery = 64;     // results
constexpr int kEnoughGaps = 32;
constexpr double kBetter = 1.01;  // of a rate, to keep what was tried
constexpr int kFirstHold = 4;     // decisions before another try
constexpr int kLongestHold = 1024;
constexpr double kWorthIt = 0.97;  // of a round's time: changes for less are noise

void Average(double& average, double value) { average += kFresh * (value - average); }

}  // namespace

FlightControl::FlightControl(int stages, int most)
    : stages_(stages), most_(std::min(most, stages + 1)), wanted_(std::min(stages, most_)) {}

void FlightControl::OnResult(const StepShape& shape, bool full, base::Instant now, int work,
                             const std::function<double(const StepShape&)>& predict) {
  const std::optional<base::Instant> before = std::exchange(last_result_, now);
  if (most_ <= stages_ || !predict || !before) return;
  Average(shape_.rows, shape.rows);
  Average(shape_.samples, shape.samples);
  Average(shape_.reads, shape.reads);
  if (full) {
    const double interval = absl::ToDoubleSeconds(now - *before);
    seconds_ += interval;
    samples_ += shape.samples;
    if (wanted_ == stages_) {
      Average(gap_, std::max(0.0, interval - predict(shape)));
      ++gaps_;
    }
  }
  if (++results_ % kDecideEvery == 0) Decide(work, predict);
}

void FlightControl::Decide(int work, const std::function<double(const StepShape&)>& predict) {
  const double rate = seconds_ > 0 ? samples_ / seconds_ : 0;
  seconds_ = samples_ = 0;
  if (std::exchange(trying_, false)) {
    if (rate < kBetter * rate_before_) {
      wanted_ = stages_;
      hold_ = next_hold_;
      next_hold_ = std::min(2 * next_hold_, kLongestHold);
      return;
    }
    next_hold_ = kFirstHold;
  }
  if (gaps_ < kEnoughGaps || hold_-- > 0) return;
  hold_ = 0;
  // Times of a round in which every sequence gets its rows: now with n micro-batches for n stages,
  // else with one more. The second is bounded by the stages' work and by one micro-batch's way.
  const double ratio = static_cast<double>(stages_) / wanted_;
  const auto scaled = [this](double by) {
    return StepShape{
        .rows = shape_.rows / by, .samples = shape_.samples / by, .reads = shape_.reads / by};
  };
  const double few = predict(scaled(ratio));
  const double many = predict(scaled(ratio * (stages_ + 1) / stages_));
  const double round_few = stages_ * (few + gap_);
  const double round_many = std::max((stages_ + 1) * many, stages_ * (many + gap_));
  const int better = work > stages_ && round_many < kWorthIt * round_few ? stages_ + 1 : stages_;
  trying_ = better > wanted_;
  rate_before_ = rate;
  wanted_ = better;
}

}  // namespace layercake::coordinator
