// How busy the stages are and how long clients wait, on a simulated chain of four equal stages; the
// figures of docs/performance.md ("Scheduling") come from here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>

#include "simulation/figures.h"
#include "tests/sim/traces.h"

namespace layercake::simulation {
namespace {

enum class Policy { kOurs, kNotAhead, kFirstCome, kLayerSplit };

struct Load {
  Figures figures;
  double busy = 1;      // of the least busy stage
  double fairness = 1;  // Jain's index of the clients' output tokens: 1 is even
};

// All is counted between `begin` and `end` seconds. `session_seconds`: between the coordinator and
// a worker, one way.
Load Measure(Policy policy, int stages, const std::vector<SimRequest>& requests, double begin,
             double end, double session_seconds = 1e-4) {
  SimOptions options = GpuChain(stages);
  options.session_seconds = session_seconds;
  options.scheduler.run_ahead = policy == Policy::kOurs;
  options.scheduler.throttle = policy == Policy::kOurs || policy == Policy::kNotAhead;
  if (policy == Policy::kFirstCome) options.scheduler.max_in_flight = stages;
  if (policy == Policy::kLayerSplit) options.scheduler.max_in_flight = 1;
  const auto tokenizer = MakeSimTokenizer();
  Simulation simulation(options, *tokenizer, 1);
  const SimReport report = simulation.Run(requests, std::pair{begin, end});
  EXPECT_TRUE(report.failure.ok()) << report.failure;
  Load load{.figures = FiguresOf(report, options.scheduler.kv_blocks, begin, end)};
  EXPECT_EQ(load.figures.failed, 0);
  load.busy = *std::min_element(load.figures.busy.begin(), load.figures.busy.end());
  std::map<std::string, double> tokens;  // of each client
  for (size_t i = 0; i < requests.size(); ++i) {
    for (const double time : report.outcomes[i].choices[0].times) {
      if (time >= begin && time < end) tokens[requests[i].request.client] += 1;
    }
  }
  double sum = 0;
  double squares = 0;
  for (const auto& [client, count] : tokens) {
    sum += count;
    squares += count * count;
  }
  load.fairness = sum * sum / (static_cast<double>(tokens.size()) * squares);
  return load;
}

void Print(const std::string& name, const Load& load) {
  const Figures& f = load.figures;
  std::printf("| %s | %.1f %% | %.0f | %.2f | %.2f | %.1f | %.1f | %.1f | %.0f %% | %.3f |\n",
              name.c_str(), 100 * load.busy, f.tokens_per_second, f.first_p50, f.first_p99,
              1e3 * f.gap_p50, 1e3 * f.gap_p95, 1e3 * f.gap_p99, 100 * f.kv_peak_share,
              load.fairness);
}

TEST(Load, DecodesKeepEveryStageBusy) {
  for (const int sequences : {8, 13, 64}) {
    const auto requests = DecodeLoad(1, sequences, 600);
    const Load ours = Measure(Policy::kOurs, 4, requests, 2, 8);
    const Load split = Measure(Policy::kLayerSplit, 4, requests, 2, 8);
    Print(std::to_string(sequences) + " streams, ours", ours);
    Print(std::to_string(sequences) + " streams, layer split", split);
    EXPECT_GE(ours.busy, 0.97) << sequences << " sequences";
    EXPECT_LE(split.busy, 0.26);
  }
}

// A stream's next row is planned before its token is known: how far the coordinator is away costs
// the stages nothing.
TEST(Load, TheWayThroughTheCoordinatorDoesNotShow) {
  for (const int stages : {1, 4}) {
    for (const int sequences : {1, 8, 64}) {
      const auto requests = DecodeLoad(1, sequences, 700);
      const std::string name =
          std::to_string(sequences) + " streams, " + std::to_string(stages) + " stages";
      const Load near = Measure(Policy::kOurs, stages, requests, 1, 2.5);
      const Load far = Measure(Policy::kOurs, stages, requests, 1, 2.5, 1e-3);
      const Load near_not_ahead = Measure(Policy::kNotAhead, stages, requests, 1, 2.5);
      const Load far_not_ahead = Measure(Policy::kNotAhead, stages, requests, 1, 2.5, 1e-3);
      Print(name + ", 0.1 ms, ours", near);
      Print(name + ", 0.1 ms, not ahead", near_not_ahead);
      Print(name + ", 1 ms, ours", far);
      Print(name + ", 1 ms, not ahead", far_not_ahead);
      EXPECT_GE(near.figures.tokens_per_second, near_not_ahead.figures.tokens_per_second);
      EXPECT_GE(far.figures.tokens_per_second, 0.99 * near.figures.tokens_per_second) << name;
    }
  }
}

TEST(Load, ALongPromptsMixKeepsStagesBusyAndStreamsSmooth) {
  // More than the chain can do: there is always work.
  const auto requests = MixedLoad(2, 16, 20);
  const Load ours = Measure(Policy::kOurs, 4, requests, 5, 20);
  const Load not_ahead = Measure(Policy::kNotAhead, 4, requests, 5, 20);
  const Load first_come = Measure(Policy::kFirstCome, 4, requests, 5, 20);
  const Load split = Measure(Policy::kLayerSplit, 4, requests, 5, 20);
  Print("mixed, ours", ours);
  Print("mixed, not ahead", not_ahead);
  Print("mixed, first come", first_come);
  Print("mixed, layer split", split);
  EXPECT_GE(ours.busy, 0.93);
  // As many streams alone as run here at once.
  const Load alone = Measure(Policy::kOurs, 4, DecodeLoad(1, 128, 600), 2, 8);
  Print("128 streams alone", alone);
  EXPECT_LE(ours.figures.gap_p99, 2.5 * alone.figures.gap_p50);
  EXPECT_LT(ours.figures.gap_p99, first_come.figures.gap_p99);
}

TEST(Load, BelowCapacityTheFirstTokenComesInBoundedTime) {
  const auto requests = MixedLoad(3, 5, 20);
  const Load ours = Measure(Policy::kOurs, 4, requests, 5, 20);
  const Load not_ahead = Measure(Policy::kNotAhead, 4, requests, 5, 20);
  const Load first_come = Measure(Policy::kFirstCome, 4, requests, 5, 20);
  Print("5 requests/s, ours", ours);
  Print("5 requests/s, not ahead", not_ahead);
  Print("5 requests/s, first come", first_come);
  EXPECT_LE(ours.figures.first_p99, 3.0);
}

}  // namespace
}  // namespace layercake::simulation
