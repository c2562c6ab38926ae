// How busy the stages are and how long clients wait, on a simulated chain of four equal stages; the
// figures of docs/performance.md ("Scheduling") come from here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>

#include "tests/sim/traces.h"

namespace layercake::simulation {
namespace {

enum class Policy { kOurs, kFirstCome, kLayerSplit };

struct Figures {
  double busy = 1;  // of the least busy stage
  double tokens_per_second = 0;
  double first_p50 = 0, first_p99 = 0;
  double gap_p50 = 0, gap_p95 = 0, gap_p99 = 0;
  double peak_blocks = 0;  // share
  double fairness = 1;     // Jain's index of the clients' output tokens: 1 is even
};

// All is counted between `begin` and `end` seconds: of first tokens, those of requests that came
// then.
Figures Measure(Policy policy, int stages, const std::vector<SimRequest>& requests, double begin,
                double end) {
  SimOptions options = GpuChain(stages);
  if (policy != Policy::kOurs) options.scheduler.throttle = false;
  if (policy == Policy::kFirstCome) options.scheduler.max_in_flight = stages;
  if (policy == Policy::kLayerSplit) options.scheduler.max_in_flight = 1;
  const auto tokenizer = MakeSimTokenizer();
  Simulation simulation(options, *tokenizer, 1);
  const SimReport report = simulation.Run(requests, std::pair{begin, end});
  EXPECT_TRUE(report.failure.ok()) << report.failure;
  Figures figures;
  for (const double busy : report.busy_seconds) {
    figures.busy = std::min(figures.busy, busy / (end - begin));
  }
  std::map<std::string, double> tokens;  // of each client
  for (size_t i = 0; i < requests.size(); ++i) {
    const SimOutcome& outcome = report.outcomes[i];
    EXPECT_TRUE(outcome.error.ok()) << outcome.error;
    for (const double time : outcome.choices[0].times) {
      if (time >= begin && time < end) tokens[requests[i].request.client] += 1;
    }
  }
  double sum = 0;
  double squares = 0;
  for (const auto& [client, count] : tokens) {
    sum += count;
    squares += count * count;
  }
  figures.tokens_per_second = sum / (end - begin);
  figures.fairness = sum * sum / (static_cast<double>(tokens.size()) * squares);
  const std::vector<double> first = FirstTokenTimes(report, begin, end);
  const std::vector<double> gaps = TokenGaps(report, begin, end);
  figures.first_p50 = Percentile(first, 0.5);
  figures.first_p99 = Percentile(first, 0.99);
  figures.gap_p50 = Percentile(gaps, 0.5);
  figures.gap_p95 = Percentile(gaps, 0.95);
  figures.gap_p99 = Percentile(gaps, 0.99);
  figures.peak_blocks = static_cast<double>(report.peak_blocks) / options.scheduler.kv_blocks;
  return figures;
}

void Print(const std::string& name, const Figures& f) {
  std::printf("| %s | %.1f %% | %.0f | %.2f | %.2f | %.1f | %.1f | %.1f | %.0f %% | %.3f |\n",
              name.c_str(), 100 * f.busy, f.tokens_per_second, f.first_p50, f.first_p99,
              1e3 * f.gap_p50, 1e3 * f.gap_p95, 1e3 * f.gap_p99, 100 * f.peak_blocks, f.fairness);
}

TEST(Load, DecodesKeepEveryStageBusy) {
  for (const int sequences : {8, 13, 64}) {
    const auto requests = DecodeLoad(1, sequences, 600);
    const Figures ours = Measure(Policy::kOurs, 4, requests, 2, 8);
    const Figures split = Measure(Policy::kLayerSplit, 4, requests, 2, 8);
    Print(std::to_string(sequences) + " streams, ours", ours);
    Print(std::to_string(sequences) + " streams, layer split", split);
    EXPECT_GE(ours.busy, 0.97) << sequences << " sequences";
    EXPECT_LE(split.busy, 0.26);
  }
}

TEST(Load, ALongPromptsMixKeepsStagesBusyAndStreamsSmooth) {
  // More than the chain can do: there is always work.
  const auto requests = MixedLoad(2, 16, 20);
  const Figures ours = Measure(Policy::kOurs, 4, requests, 5, 20);
  const Figures first_come = Measure(Policy::kFirstCome, 4, requests, 5, 20);
  const Figures split = Measure(Policy::kLayerSplit, 4, requests, 5, 20);
  Print("mixed, ours", ours);
  Print("mixed, first come", first_come);
  Print("mixed, layer split", split);
  EXPECT_GE(ours.busy, 0.93);
  // As many streams alone as run here at once.
  const Figures alone = Measure(Policy::kOurs, 4, DecodeLoad(1, 128, 600), 2, 8);
  Print("128 streams alone", alone);
  EXPECT_LE(ours.gap_p99, 2.5 * alone.gap_p50);
  EXPECT_LT(ours.gap_p99, first_come.gap_p99);
}

TEST(Load, BelowCapacityTheFirstTokenComesInBoundedTime) {
  const auto requests = MixedLoad(3, 5, 20);
  const Figures ours = Measure(Policy::kOurs, 4, requests, 5, 20);
  const Figures first_come = Measure(Policy::kFirstCome, 4, requests, 5, 20);
  Print("5 requests/s, ours", ours);
  Print("5 requests/s, first come", first_come);
  EXPECT_LE(ours.first_p99, 3.0);
}

}  // namespace
}  // namespace layercake::simulation
