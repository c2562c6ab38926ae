// Seeded runs in which everything is random, and the proof that they would find what they look for.
//
// LAYERCAKE_SIM_SEEDS: how many seeds (default 1,000; under sanitizers 100), LAYERCAKE_SIM_FIRST:
// from which on. A failure prints its seed;
// --gtest_filter=Swarm.OneSeed with LAYERCAKE_SIM_SEED=n runs that one alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/sim/traces.h"

namespace layercake::simulation {
namespace {

using coordinator::SchedulerFault;

// Sanitizers cost ten times the time; the interleavings are the same.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 100;
#else
constexpr uint64_t kSeeds = 1000;
#endif

uint64_t NumberFrom(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Runs the seed twice.
std::string FaultOfSeed(uint64_t seed, const model::Tokenizer& tokenizer) {
  const Swarm swarm = MakeSwarm(seed);
  const SimReport first = Simulation(swarm.options, tokenizer, seed).Run(swarm.requests);
  std::string fault = FindFault(swarm, first);
  if (!fault.empty()) return fault;
  const SimReport second = Simulation(swarm.options, tokenizer, seed).Run(swarm.requests);
  return first.trace == second.trace ? "" : "two runs differ";
}

TEST(Swarm, EveryRequestEndsRightAndNothingIsLeftOver) {
  const auto tokenizer = MakeSimTokenizer();
  const uint64_t seeds = NumberFrom("LAYERCAKE_SIM_SEEDS", kSeeds);
  const uint64_t first = NumberFrom("LAYERCAKE_SIM_FIRST", 1);
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    ASSERT_EQ(FaultOfSeed(seed, *tokenizer), "") << "seed " << seed;
  }
}

TEST(Swarm, OneSeed) {
  const uint64_t seed = NumberFrom("LAYERCAKE_SIM_SEED", 0);
  if (seed == 0) GTEST_SKIP() << "LAYERCAKE_SIM_SEED is not set";
  EXPECT_EQ(FaultOfSeed(seed, *MakeSimTokenizer()), "");
}

TEST(Swarm, PreemptsAndHitsThePrefixCacheOften) {
  const auto tokenizer = MakeSimTokenizer();
  uint64_t preemptions = 0;
  uint64_t cached = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const Swarm swarm = MakeSwarm(seed);
    const SimReport report = Simulation(swarm.options, *tokenizer, seed).Run(swarm.requests);
    preemptions += report.loads.preemptions_total();
    cached += report.loads.cached_prompt_tokens_total();
  }
  EXPECT_GE(preemptions, 100u);
  EXPECT_GE(cached, 1000u);
}

class SwarmFault : public ::testing::TestWithParam<SchedulerFault> {};

TEST_P(SwarmFault, IsFoundWithinAThousandSeeds) {
  const auto tokenizer = MakeSimTokenizer();
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    Swarm swarm = MakeSwarm(seed);
    swarm.options.scheduler.fault = GetParam();
    const SimReport report = Simulation(swarm.options, *tokenizer, seed).Run(swarm.requests);
    const std::string fault = FindFault(swarm, report);
    if (fault.empty()) continue;
    RecordProperty("seed", static_cast<int>(seed));
    std::cout << "seed " << seed << ": " << fault << "\n";
    return;
  }
  FAIL() << "a thousand seeds did not find it";
}

INSTANTIATE_TEST_SUITE_P(Each, SwarmFault,
                         ::testing::Values(SchedulerFault::kLeakBlock, SchedulerFault::kReuseBlock,
                                           SchedulerFault::kDropCancel,
                                           SchedulerFault::kCacheUnwritten),
                         [](const auto& tested) {
                           switch (tested.param) {
                             case SchedulerFault::kLeakBlock:
                               return "LeakBlock";
                             case SchedulerFault::kReuseBlock:
                               return "ReuseBlock";
                             case SchedulerFault::kDropCancel:
                               return "DropCancel";
                             case SchedulerFault::kCacheUnwritten:
                               return "CacheUnwritten";
                             case SchedulerFault::kNone:
                               break;
                           }
                           return "None";
                         });

}  // namespace
}  // namespace layercake::simulation
