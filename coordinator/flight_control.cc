#include "coordinator/flight_control.h"

#include <algorithm>
#include <utility>

namespace layercake::coordinator {
namespace {

constexpr double kFresh = 1.0 / 32;  // weight of a new value in an average
constexpr int kDecideEvery = 64;     // results
constexpr int kEarly = 16;           // results after which a try that is clearly worse ends
constexpr int kEnoughGaps = 32;
constexpr double kLongestGap = 4;  // over the step's cost: what is longer has no part in a round
constexpr double kBetter = 1.01;   // of a rate, to keep what was tried
constexpr double kWorse = 0.97;    // of a rate, to end a try early
constexpr double kWorthIt = 0.97;  // of a round's time: changes for less are noise
constexpr double kAlike = 0.95;    // numbers of streams whose rates can be compared
constexpr int kFirstHold = 4;      // decisions before another try
constexpr int kLongestHold = 1024;

void Average(double& average, double value) { average += kFresh * (value - average); }

}  // namespace

bool FlightControl::Window::steady() const {
  return results > 0 && least_streams >= kAlike * most_streams;
}

FlightControl::FlightControl(int stages, int most)
    : stages_(stages),
      most_(std::min(most, stages + 1)),
      wanted_(std::min(stages, most_)),
      next_hold_(kFirstHold) {}

void FlightControl::OnResult(const Result& result, const StepShape& streams, base::Instant now,
                             const Predict& predict) {
  const std::optional<base::Instant> before = std::exchange(last_result_, now);
  if (most_ <= stages_ || !before) return;
  Average(prompts_.rows, result.prompts.rows);
  Average(prompts_.samples, result.prompts.samples);
  Average(prompts_.reads, result.prompts.reads);
  Average(prompts_.entries, result.prompts.entries);
  if (settling_ > 0) {
    --settling_;
    return;
  }
  if (!predict && !trying_) return;
  if (result.full) Count(result, streams, absl::ToDoubleSeconds(now - *before), predict);
  ++results_;
  if (trying_) {
    JudgeTry();
  } else if (wanted_ > stages_) {
    if (streams.rows <= stages_ || RoundRatio(streams, predict) > 1) Want(stages_);
  } else if (results_ >= kDecideEvery) {
    TryOneMore(streams, predict);
  }
}

void FlightControl::Count(const Result& result, const StepShape& streams, double seconds,
                          const Predict& predict) {
  if (window_.results++ == 0) window_.least_streams = streams.rows;
  window_.seconds += seconds;
  window_.samples += result.shape.samples;
  window_.least_streams = std::min(window_.least_streams, streams.rows);
  window_.most_streams = std::max(window_.most_streams, streams.rows);
  if (wanted_ != stages_) return;
  const double cost = predict(result.shape);
  Average(gap_, std::min(seconds - cost, kLongestGap * cost));
  ++gaps_;
}

void FlightControl::TryOneMore(const StepShape& streams, const Predict& predict) {
  const Window window = std::exchange(window_, {});
  results_ = 0;
  if (gaps_ < kEnoughGaps || hold_-- > 0) return;
  hold_ = 0;
  if (streams.rows <= stages_ || !window.steady() || RoundRatio(streams, predict) >= kWorthIt) {
    return;
  }
  before_ = window;
  Want(stages_ + 1);
  trying_ = true;
}

void FlightControl::JudgeTry() {
  const bool over = results_ >= kDecideEvery;
  const double rate = window_.rate();
  // Another number of streams: what changed the rate is not known.
  const double least = std::min(window_.least_streams, before_.least_streams);
  const double most = std::max(window_.most_streams, before_.most_streams);
  const bool alike = window_.results > 0 && least >= kAlike * most;
  const bool worse = window_.results >= kEarly && rate < kWorse * before_.rate();
  if (!over && !worse && (alike || window_.results == 0)) return;
  trying_ = false;
  if (alike && !worse && rate >= kBetter * before_.rate()) {
    next_hold_ = kFirstHold;
    results_ = 0;
    window_ = {};
    return;
  }
  Want(stages_);
  hold_ = next_hold_;
  if (alike) next_hold_ = std::min(2 * next_hold_, kLongestHold);
}

void FlightControl::Want(int wanted) {
  wanted_ = wanted;
  // Those in flight, and the one that may be planned ahead.
  settling_ = stages_ + 2;
  results_ = 0;
  window_ = {};
}

double FlightControl::RoundRatio(const StepShape& streams, const Predict& predict) const {
  StepShape round = streams;
  round.Add(prompts_.Times(wanted_));
  const double gap = std::max(gap_, 0.0);
  const double few = predict(round.Times(1.0 / stages_));
  const double many = predict(round.Times(1.0 / (stages_ + 1)));
  const double round_few = stages_ * (few + gap);
  const double round_many = std::max((stages_ + 1) * many, stages_ * (many + gap));
  return round_many / round_few;
}

}  // namespace layercake::coordinator
