#include "simulation/figures.h"

#include <algorithm>

namespace layercake::simulation {
namespace {

bool WaitsAt(const SimOutcome& outcome, double end) {
  if (outcome.choices.empty() || outcome.submitted >= end) return false;
  const bool ended = outcome.ended >= 0 && outcome.ended < end;
  const std::vector<double>& times = outcome.choices[0].times;
  return !ended && (times.empty() || times[0] >= end);
}

}  // namespace

Figures FiguresOf(const SimReport& report, int kv_blocks, double begin, double end) {
  Figures figures;
  const double seconds = end - begin;
  int64_t tokens = 0;
  int64_t requests = 0;
  for (const SimOutcome& outcome : report.outcomes) {
    for (const SimOutcome::Choice& choice : outcome.choices) {
      tokens += std::count_if(choice.times.begin(), choice.times.end(),
                              [&](double time) { return time >= begin && time < end; });
    }
    if (!outcome.error.ok()) {
      ++figures.failed;
    } else if (outcome.ended >= begin && outcome.ended < end) {
      ++requests;
    }
    if (WaitsAt(outcome, end)) ++figures.waiting;
  }
  figures.tokens_per_second = static_cast<double>(tokens) / seconds;
  figures.requests_per_second = static_cast<double>(requests) / seconds;
  const std::vector<double> first = FirstTokenTimes(report, begin, end);
  const std::vector<double> gaps = TokenGaps(report, begin, end);
  figures.first_p50 = Percentile(first, 0.5);
  figures.first_p99 = Percentile(first, 0.99);
  figures.gap_p50 = Percentile(gaps, 0.5);
  figures.gap_p95 = Percentile(gaps, 0.95);
  figures.gap_p99 = Percentile(gaps, 0.99);
  for (const double busy : report.busy_seconds) figures.busy.push_back(busy / seconds);
  if (kv_blocks > 0) {
    figures.kv_share = static_cast<double>(report.window_blocks) / kv_blocks;
    figures.kv_peak_share = static_cast<double>(report.peak_blocks) / kv_blocks;
  }
  return figures;
}

std::vector<double> TokenGaps(const SimReport& report, double begin, double end) {
  std::vector<double> gaps;
  for (const SimOutcome& outcome : report.outcomes) {
    for (const SimOutcome::Choice& choice : outcome.choices) {
      for (size_t i = 1; i < choice.times.size(); ++i) {
        if (choice.times[i] < begin || choice.times[i] >= end) continue;
        gaps.push_back(choice.times[i] - choice.times[i - 1]);
      }
    }
  }
  return gaps;
}

std::vector<double> FirstTokenTimes(const SimReport& report, double begin, double end) {
  std::vector<double> times;
  for (const SimOutcome& outcome : report.outcomes) {
    if (outcome.submitted < begin || outcome.submitted >= end) continue;
    if (!outcome.choices.empty() && !outcome.choices[0].times.empty()) {
      times.push_back(outcome.choices[0].times[0] - outcome.submitted);
    }
  }
  return times;
}

double Percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(share * static_cast<double>(values.size()));
  return values[std::min(rank, values.size() - 1)];
}

}  // namespace layercake::simulation
