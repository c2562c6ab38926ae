// Micro-batches on chains whose steps cost what they did on GPUs (MeasuredChain): how many, how
// large, and how a prompt is cut. The figures of docs/performance.md ("Scheduling") come from here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "simulation/figures.h"
#include "tests/sim/traces.h"

namespace layercake::simulation {
namespace {

constexpr double kPause = 6;  // seconds from one round of requests to the next

// What `layercake bench` does: every stream asks for one token of its prompt, then for its answer
// with the prompt in the cache. One after the other: they begin at slightly different times.
class Bench {
 public:
  // How a measurement came out.
  struct Times {
    double round = 0;              // seconds: every stream's next token, while all of them write
    double prompt_per_second = 0;  // tokens
  };

  void Measure(int streams, int prompt, int tokens) {
    std::vector<std::vector<int32_t>> prompts;
    for (int i = 0; i < streams; ++i) prompts.push_back(RandomTokens(random_, prompt));
    for (const int count : {1, tokens}) {
      for (int i = 0; i < streams; ++i) {
        SimRequest request;
        request.at = at_ + 3e-4 * i;
        request.request = SimPrompt(prompts[static_cast<size_t>(i)], count, random_.Next());
        requests_.push_back(std::move(request));
      }
      at_ += kPause;
    }
    ends_.push_back(requests_.size());
    streams_.push_back(streams);
  }

  // One request, after which the next follows so many seconds later: its warm-up.
  void Ask(int prompt, int tokens, double pause) {
    SimRequest request;
    request.at = at_;
    request.request = SimPrompt(RandomTokens(random_, prompt), tokens, random_.Next());
    requests_.push_back(std::move(request));
    at_ += pause;
  }

  void Run(const SimOptions& options) {
    const auto tokenizer = MakeSimTokenizer();
    Simulation simulation(options, *tokenizer, 1);
    simulation.KeepPlans();
    report_ = simulation.Run(requests_);
    ASSERT_TRUE(report_.failure.ok()) << report_.failure;
    plans_ = simulation.plans();
  }

  Times TimesOf(size_t measurement) const {
    const auto streams = static_cast<size_t>(streams_[measurement]);
    const size_t end = ends_[measurement];
    double began = 0;
    double ended = report_.seconds;
    for (size_t i = end - streams; i < end; ++i) {
      began = std::max(began, TokenTimes(i).front());
      ended = std::min(ended, TokenTimes(i).back());
    }
    double tokens = 0;
    for (size_t i = end - streams; i < end; ++i) {
      for (const double time : TokenTimes(i)) tokens += time > began && time <= ended ? 1 : 0;
    }
    double first = 0;
    double prompt = 0;
    for (size_t i = end - 2 * streams; i < end - streams; ++i) {
      first = std::max(first, TokenTimes(i)[0]);
      prompt += static_cast<double>(requests_[i].request.prompt.size());
    }
    return {.round = (ended - began) * static_cast<double>(streams) / tokens,
            .prompt_per_second = prompt / (first - requests_[end - 2 * streams].at)};
  }

  // Micro-batches of decoded rows alone, by how many rows they had.
  std::map<int, int> DecodeSizes() const {
    std::map<int, int> sizes;
    for (const v1::MicroBatchPlan& plan : plans_) {
      const bool decodes =
          std::all_of(plan.rows().begin(), plan.rows().end(),
                      [](const v1::RowDescriptor& row) { return row.tokens_size() == 1; });
      if (decodes && plan.rows_size() > 0) ++sizes[plan.rows_size()];
    }
    return sizes;
  }

 private:
  const std::vector<double>& TokenTimes(size_t request) const {
    return report_.outcomes[request].choices[0].times;
  }

  base::SeededRandom random_{7};
  double at_ = 0;
  std::vector<SimRequest> requests_;
  std::vector<size_t> ends_;  // of each measurement's requests
  std::vector<int> streams_;
  SimReport report_;
  std::vector<v1::MicroBatchPlan> plans_;
};

// A round of `streams`, decoding behind a short prompt, in so many equal micro-batches: seconds.
double RoundOf(const SimOptions& options, int streams, int micro_batches) {
  const auto stages = static_cast<int>(options.stages.size());
  double slowest = 0;
  double way = 0;
  const double rows = static_cast<double>(streams) / micro_batches;
  for (const StageCost& stage : options.stages) {
    const double seconds = stage.SecondsOf(
        {.rows = rows, .samples = rows, .reads = 160 * rows, .entries = 160 * rows});
    slowest = std::max(slowest, seconds);
    way += seconds + (stages > 1 ? options.hop_seconds : 0);
  }
  return std::max(micro_batches * slowest, way);
}

std::string NameOf(int stages, Kernels kernels, bool ahead) {
  const std::string steps = kernels == Kernels::kCliff   ? ", step at 17"
                            : kernels == Kernels::kTiles ? ", tiles"
                            : kernels == Kernels::kWgmma ? ", wgmma"
                                                         : "";
  return std::to_string(stages) + " stages" + steps + (ahead ? ", ahead" : ", not ahead");
}

class Gpu : public ::testing::TestWithParam<std::tuple<int, Kernels, bool>> {};

TEST_P(Gpu, StreamsGoInAsManyEqualMicroBatchesAsAreFastest) {
  const auto [stages, kernels, ahead] = GetParam();
  SimOptions options = MeasuredChain(stages, kernels);
  options.scheduler.run_ahead = ahead;
  const std::vector<int> streams = {1, 2, 4, 8, 16, 32, 64};
  Bench bench;
  bench.Measure(1, 128, 4);
  for (const int count : streams) bench.Measure(count, 128, 64);
  bench.Run(options);
  // From the last stage to the coordinator and back to the first, where nothing runs ahead.
  const double way_back = ahead ? 0 : 2 * options.session_seconds;
  for (size_t i = 0; i < streams.size(); ++i) {
    const double round = bench.TimesOf(i + 1).round;
    const double best = RoundOf(options, streams[i], std::min(streams[i], stages));
    std::printf("| %s | %d | %.2f ms | equal micro-batches %.2f |\n",
                NameOf(stages, kernels, ahead).c_str(), streams[i], 1e3 * round, 1e3 * best);
    // More than stages: each micro-batch waits for the hops in its turn. A tenth for the first
    // rounds, in which streams come together.
    EXPECT_LE(round, 1.1 * best + way_back + stages * options.hop_seconds) << streams[i];
  }
}

std::string GpuName(const ::testing::TestParamInfo<std::tuple<int, Kernels, bool>>& test) {
  const auto [stages, kernels, ahead] = test.param;
  return std::to_string(stages) + (kernels == Kernels::kCliff ? "Cliff" : "Level") +
         (ahead ? "Ahead" : "NotAhead");
}
INSTANTIATE_TEST_SUITE_P(Chains, Gpu,
                         ::testing::Combine(::testing::Values(1, 2, 4),
                                            ::testing::Values(Kernels::kCliff, Kernels::kLevel),
                                            ::testing::Bool()),
                         GpuName);

// Graphs are recorded for each number of rows.
TEST(GpuSizes, AreFewAndStayTheSame) {
  for (const int stages : {1, 2}) {
    Bench bench;
    bench.Measure(32, 128, 300);
    bench.Run(MeasuredChain(stages, Kernels::kCliff));
    const std::map<int, int> sizes = bench.DecodeSizes();
    ASSERT_TRUE(sizes.contains(32 / stages));
    // All but the first rounds and the last ones, in which streams end one by one.
    EXPECT_GE(sizes.at(32 / stages), 285 * stages) << stages << " stages";
  }
}

// A step at 17 rows costs more than the weights read twice.
TEST(GpuSizes, SeventeenStreamsOfOneStageGoInTwoMicroBatchesWhereTheKernelsTakeAStep) {
  Bench bench;
  bench.Measure(16, 128, 100);
  bench.Measure(17, 128, 300);
  bench.Run(MeasuredChain(1, Kernels::kCliff));
  const std::map<int, int> sizes = bench.DecodeSizes();
  EXPECT_GE(sizes.at(9), 100);
  EXPECT_GE(sizes.at(8), 100);
  EXPECT_LE(sizes.at(17), 200);  // a heartbeat with their times, and a window of steps
}

// Streams end, others begin; whatever came, those that stay are together again.
TEST(GpuSizes, StreamsThatComeAndGoDoNotSplitOneStagesMicroBatch) {
  for (const bool ahead : {true, false}) {
    SimOptions options = MeasuredChain(1, Kernels::kLevel);
    options.scheduler.run_ahead = ahead;
    base::SeededRandom random(3);
    std::vector<SimRequest> requests;
    for (int i = 0; i < 40; ++i) {
      SimRequest request;
      request.at = 0.11 * i + 0.05 * random.Unit();
      request.request = SimPrompt(RandomTokens(random, 16 + static_cast<int>(random.Below(100))),
                                  60 + static_cast<int>(random.Below(400)), random.Next());
      requests.push_back(std::move(request));
    }
    const auto tokenizer = MakeSimTokenizer();
    const SimReport report = Simulation(options, *tokenizer, 1).Run(requests);
    ASSERT_TRUE(report.failure.ok()) << report.failure;
    // About 24 at once. Two micro-batches would take 18 ms.
    const std::vector<double> gaps = TokenGaps(report, 0, report.seconds);
    const double step = RoundOf(options, 32, 1);
    EXPECT_LE(Percentile(gaps, 0.95), 1.35 * step) << ahead;
    EXPECT_LE(Percentile(gaps, 0.999), 2.2 * step) << ahead;
  }
}

// (n + S - 1) * cost(rows / n), and what attention adds: for so many prompts one after the other.
double BestPrompt(const SimOptions& options, int prompt, int prompts = 1) {
  double best = 1e9;
  const int all = prompts * prompt;
  for (int n = (all + 2047) / 2048; n <= 64 * prompts; ++n) {
    double way = 0;
    double slowest = 0;
    const double rows = static_cast<double>(all) / n;
    for (const StageCost& stage : options.stages) {
      const double seconds =
          stage.SecondsOf({.rows = rows, .reads = rows * prompt / 2, .entries = prompt / 2.0});
      way += seconds + options.hop_seconds;
      slowest = std::max(slowest, seconds);
    }
    best = std::min(best, way + (n - 1) * slowest);
  }
  return best + 2 * options.session_seconds;
}

TEST(GpuPrompts, OneLongPromptKeepsAllStagesBusy) {
  for (const Kernels kernels :
       {Kernels::kCliff, Kernels::kLevel, Kernels::kTiles, Kernels::kWgmma}) {
    for (const int stages : {1, 2, 4}) {
      const SimOptions options = MeasuredChain(stages, kernels);
      Bench bench;
      // Sizes of all kinds, as a server that has been up for a while has seen.
      const std::vector<int> before = {1, 4, 16, 64};
      for (const int streams : before) bench.Measure(streams, 128, 64);
      const std::vector<int> prompts = {128, 512, 2048, 8192};
      for (const int prompt : prompts) bench.Measure(1, prompt, 4);
      bench.Run(options);
      for (size_t i = 0; i < prompts.size(); ++i) {
        const double rate = bench.TimesOf(before.size() + i).prompt_per_second;
        const double best = prompts[i] / BestPrompt(options, prompts[i]);
        std::printf("| %s | %d | %.0f tok/s | best %.0f |\n", NameOf(stages, kernels, true).c_str(),
                    prompts[i], rate, best);
        // Short ones are a step or two, of sizes that it has not seen.
        EXPECT_GE(rate, (prompts[i] < 512 ? 0.75 : 0.9) * best)
            << stages << " stages, " << prompts[i] << " tokens";
      }
    }
  }
}

TEST(GpuPrompts, ManyPromptsFillTheChainByThemselvesAndGoInLargeChunks) {
  for (const Kernels kernels : {Kernels::kCliff, Kernels::kLevel}) {
    for (const int stages : {1, 2, 4}) {
      const SimOptions options = MeasuredChain(stages, kernels);
      Bench bench;
      for (const int streams : {1, 4, 16}) bench.Measure(streams, 128, 64);
      bench.Measure(64, 128, 4);
      bench.Measure(32, 2048, 4);
      bench.Run(options);
      const double short_ones = bench.TimesOf(3).prompt_per_second;
      const double long_ones = bench.TimesOf(4).prompt_per_second;
      std::printf("| %s | 64 of 128: %.0f tok/s | 32 of 2,048: %.0f tok/s |\n",
                  NameOf(stages, kernels, true).c_str(), short_ones, long_ones);
      EXPECT_GE(short_ones, 0.75 * 64 * 128 / BestPrompt(options, 64 * 128)) << stages;
      EXPECT_GE(long_ones, 0.8 * (kernels == Kernels::kCliff ? 7000 : 9000) * stages) << stages;
    }
  }
}

// Nothing has been measured then.
TEST(GpuPrompts, TheFirstOneOfAChainIsCutWell) {
  for (const int stages : {2, 4}) {
    const SimOptions options = MeasuredChain(stages, Kernels::kWgmma);
    Bench bench;
    bench.Measure(1, 2048, 4);
    bench.Run(options);
    const double rate = bench.TimesOf(0).prompt_per_second;
    std::printf("| %s | first of all, 2,048 | %.0f tok/s | best %.0f |\n",
                NameOf(stages, Kernels::kWgmma, true).c_str(), rate,
                2048 / BestPrompt(options, 2048));
    EXPECT_GE(rate, 0.9 * 2048 / BestPrompt(options, 2048)) << stages;
  }
}

// Rows seem to cost as much as all of a step when only steps of one row were measured.
TEST(GpuPrompts, OneBehindShortAnswersIsNotCutIntoCrumbs) {
  for (const int prompt : {128, 2048}) {
    const SimOptions options = MeasuredChain(2, Kernels::kWgmma);
    Bench bench;
    for (int i = 0; i < 2; ++i) bench.Ask(5, 64, 1.5);
    bench.Measure(1, prompt, 4);
    bench.Run(options);
    const double rate = bench.TimesOf(0).prompt_per_second;
    std::printf("| 2 stages, wgmma, behind short answers | %d | %.0f tok/s | best %.0f |\n", prompt,
                rate, prompt / BestPrompt(options, prompt));
    EXPECT_GE(rate, 0.85 * prompt / BestPrompt(options, prompt)) << prompt;
  }
}

// The first step of a size takes much longer, for whatever reason: no reason to keep away from the
// size for ever.
TEST(GpuPrompts, SizesThatWereSlowTheFirstTimeAreTriedAgain) {
  for (const double first : {0.0, 0.01, 0.03, 0.1}) {
    SimOptions options = MeasuredChain(2, Kernels::kWgmma);
    for (StageCost& stage : options.stages) stage.first_of_size = first;
    Bench bench;
    bench.Ask(2048, 4, 0.25 + 20 * first);
    const std::vector<std::pair<int, int>> loads = {{1, 2048}, {8, 4096}, {1, 4096}, {8, 4096}};
    for (const auto& [streams, prompt] : loads) bench.Measure(streams, prompt, 4);
    bench.Run(options);
    for (size_t i = 0; i < loads.size(); ++i) {
      const auto& [streams, prompt] = loads[i];
      const double rate = bench.TimesOf(i).prompt_per_second;
      const double best = streams * prompt / BestPrompt(options, prompt, streams);
      std::printf(
          "| 2 stages, wgmma, first steps %.0f ms longer | %d of %d | %.0f tok/s | best %.0f |\n",
          1e3 * first, streams, prompt, rate, best);
      // Eight at once may meet a size that nobody has seen yet.
      EXPECT_GE(rate, (streams > 1 && i < 3 ? 0.75 : 0.9) * best) << streams << " of " << prompt;
    }
  }
}

// Equal stages: the first one would wait in each step for the last one's result to reach the
// coordinator and for the next plan.
TEST(GpuPrompts, TheWayToTheCoordinatorAndBackIsHidden) {
  for (const int stages : {2, 4}) {
    for (const double session : {5e-4, 1e-3}) {
      SimOptions options = MeasuredChain(stages, Kernels::kWgmma);
      options.stages[1].fixed = 0;
      options.stages.assign(static_cast<size_t>(stages), options.stages[1]);
      options.session_seconds = session;
      Bench bench;
      for (const int streams : {1, 4, 16, 64}) bench.Measure(streams, 128, 64);
      for (const int streams : {1, 1}) bench.Measure(streams, 2048, 4);
      for (const int streams : {8, 8}) bench.Measure(streams, 4096, 4);
      bench.Run(options);
      const double rate = bench.TimesOf(7).prompt_per_second;
      const double best = 8 * 4096 / BestPrompt(options, 4096, 8);
      std::printf("| %d equal stages, %.1f ms to the coordinator | %.0f tok/s | best %.0f |\n",
                  stages, 1e3 * session, rate, best);
      EXPECT_GE(rate, (stages == 2 ? 0.98 : 0.9) * best);
    }
  }
}

// Four cards where a step of 512 rows takes as long as twenty of decodes: 7 ms to read the weights,
// 0.3 ms to compute a row beside (a GeForce RTX 3090 by its data sheet).
TEST(GpuPrompts, SlowCardsKeepTheGapsOfTheirStreams) {
  SimOptions options = MeasuredChain(4, Kernels::kWgmma);
  for (StageCost& stage : options.stages) {
    stage = {.fixed = 7e-3, .per_entry = 5e-8, .compute_row = 3e-4};
  }
  base::SeededRandom random(11);
  std::vector<SimRequest> requests;
  const auto ask = [&](double at, int prompt, int tokens) {
    SimRequest request;
    request.at = at;
    request.request = SimPrompt(RandomTokens(random, prompt), tokens, random.Next());
    requests.push_back(std::move(request));
  };
  for (int i = 0; i < 8; ++i) ask(0.01 * i, 64, 2000);
  for (int i = 0; i < 12; ++i) ask(3 + 2.0 * i, i % 3 == 0 ? 4000 : 500, 1);
  const auto tokenizer = MakeSimTokenizer();
  const SimReport report = Simulation(options, *tokenizer, 1).Run(requests);
  ASSERT_TRUE(report.failure.ok()) << report.failure;
  const double alone = 4 * options.stages[0].SecondsOf({.rows = 2, .entries = 1000});
  const std::vector<double> gaps = TokenGaps(report, 5, 30);
  std::printf("| 4 slow stages | gap p50 %.0f, p99 %.0f, largest %.0f ms | alone %.0f |\n",
              1e3 * Percentile(gaps, 0.5), 1e3 * Percentile(gaps, 0.99), 1e3 * Percentile(gaps, 1),
              1e3 * alone);
  EXPECT_LE(Percentile(gaps, 0.99), 2.2 * alone);
  EXPECT_LE(Percentile(gaps, 1), 2.7 * alone);
}

}  // namespace
}  // namespace layercake::simulation
