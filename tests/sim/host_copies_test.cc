// Blocks of sequences that give way, copied to host memory and back: right under every seed, and
// what it saves. The figures of docs/performance.md ("Scheduling") come from here.
#include <gtest/gtest.h>

#include <cstdio>
#include <iostream>
#include <string>

#include "simulation/figures.h"
#include "tests/sim/traces.h"

namespace layercake::simulation {
namespace {

// tests/sim/swarm_test.cc runs the same seeds and more, each twice.
TEST(HostCopies, AreMadeOftenBySwarms) {
  const auto tokenizer = MakeSimTokenizer();
  int64_t saved = 0;
  int64_t restored = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    for (const bool run_ahead : {false, true}) {
      Swarm swarm = MakeSwarm(seed);
      swarm.options.scheduler.run_ahead = run_ahead;
      const SimReport report = Simulation(swarm.options, *tokenizer, seed).Run(swarm.requests);
      ASSERT_EQ(FindFault(swarm, report), "") << "seed " << seed;
      saved += report.saved_blocks;
      restored += report.restored_blocks;
    }
  }
  EXPECT_GE(saved, 200);
  EXPECT_GE(restored, 200);
}

TEST(HostCopies, FromTheWrongHostBlockAreFoundWithinAThousandSeeds) {
  const auto tokenizer = MakeSimTokenizer();
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    Swarm swarm = MakeSwarm(seed);
    if (swarm.options.scheduler.host_blocks == 0) continue;
    swarm.options.scheduler.fault = coordinator::SchedulerFault::kWrongHostBlock;
    const SimReport report = Simulation(swarm.options, *tokenizer, seed).Run(swarm.requests);
    const std::string fault = FindFault(swarm, report);
    if (fault.empty()) continue;
    std::cout << "seed " << seed << ": " << fault << "\n";
    return;
  }
  FAIL() << "a thousand seeds did not find it";
}

// 64 streams that grow to four times the blocks that there are.
SimReport UnderPressure(int host_blocks, const std::vector<SimRequest>& requests) {
  SimOptions options = GpuChain(4);
  options.scheduler.kv_blocks = 1600;
  options.scheduler.host_blocks = host_blocks;
  // A block of 16 tokens and 16 layers with 8 heads of 128 in f16 is 1 MiB: 25 GB/s.
  for (StageCost& stage : options.stages) stage.per_copy = 42e-6;
  const auto tokenizer = MakeSimTokenizer();
  return Simulation(options, *tokenizer, 1).Run(requests);
}

TEST(HostCopies, SaveTimeUnderPressure) {
  base::SeededRandom random(5);
  std::vector<SimRequest> requests;
  for (int i = 0; i < 64; ++i) {
    SimRequest request;
    request.at = 0.05 * i;
    request.request = SimPrompt(RandomTokens(random, 400), 1200, random.Next());
    requests.push_back(std::move(request));
  }
  const SimReport computed = UnderPressure(0, requests);
  const SimReport copied = UnderPressure(4096, requests);
  for (const SimReport* report : {&computed, &copied}) {
    ASSERT_TRUE(report->failure.ok()) << report->failure;
    const double tokens = 64 * 1200;
    const auto gaps = TokenGaps(*report, 0, report->seconds);
    std::printf("| %s | %.1f s | %.0f | %llu | %lld | %lld | %.1f ms |\n",
                report == &computed ? "computed again" : "copied", report->seconds,
                tokens / report->seconds,
                static_cast<unsigned long long>(report->loads.preemptions_total()),
                static_cast<long long>(report->rows), static_cast<long long>(report->saved_blocks),
                1e3 * Percentile(gaps, 0.99));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(copied.outcomes[i].choices[0].tokens, computed.outcomes[i].choices[0].tokens) << i;
  }
  EXPECT_GT(copied.saved_blocks, 0);
  EXPECT_LT(copied.rows, computed.rows);
  EXPECT_LT(copied.seconds, computed.seconds);
}

}  // namespace
}  // namespace layercake::simulation
