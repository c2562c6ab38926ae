// Seeded runs in which everything is random, and the proof that they would find what they look for.
//
// LAYERCAKE_SIM_SEEDS: how many seeds (default 1,000; under sanitizers 100), LAYERCAKE_SIM_FIRST:
// from which on. A failure prints its seed and the commit of the source; Swarm.OneSeed with
// LAYERCAKE_SIM_SEED=n runs that one alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
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

// What is checked out now, read when a seed fails; LAYERCAKE_COMMIT where the source came without
// git. Empty: not known.
std::string Commit() {
  if (const char* const given = std::getenv("LAYERCAKE_COMMIT")) return given;
  const std::string git = LAYERCAKE_SOURCE_DIR "/.git/";
  std::string line;
  std::getline(std::ifstream(git + "HEAD") >> std::ws, line);
  absl::string_view reference = line;
  if (!absl::ConsumePrefix(&reference, "ref: ")) return line;
  std::string commit;
  if (std::getline(std::ifstream(git + std::string(reference)), commit)) return commit;
  std::ifstream packed(git + "packed-refs");
  while (std::getline(packed, line)) {
    if (absl::EndsWith(line, reference)) return line.substr(0, line.find(' '));
  }
  return "";
}

SimReport RunSwarm(const Swarm& swarm, const model::Tokenizer& tokenizer, uint64_t seed) {
  return Simulation(swarm.options, tokenizer, seed).Run(swarm.requests);
}

// Runs the seed twice with rows that run ahead, and once without.
std::string FaultOfSeed(uint64_t seed, const model::Tokenizer& tokenizer) {
  Swarm swarm = MakeSwarm(seed);
  swarm.options.scheduler.run_ahead = true;
  const SimReport first = RunSwarm(swarm, tokenizer, seed);
  std::string fault = FindFault(swarm, first);
  if (!fault.empty()) return fault;
  if (RunSwarm(swarm, tokenizer, seed).trace != first.trace) return "two runs differ";
  swarm.options.scheduler.run_ahead = false;
  fault = FindFault(swarm, RunSwarm(swarm, tokenizer, seed));
  return fault.empty() ? "" : "without running ahead: " + fault;
}

TEST(Swarm, EveryRequestEndsRightAndNothingIsLeftOver) {
  const auto tokenizer = MakeSimTokenizer();
  const uint64_t seeds = NumberFrom("LAYERCAKE_SIM_SEEDS", kSeeds);
  const uint64_t first = NumberFrom("LAYERCAKE_SIM_FIRST", 1);
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    ASSERT_EQ(FaultOfSeed(seed, *tokenizer), "") << "seed " << seed << ", commit " << Commit();
  }
}

TEST(Swarm, OneSeed) {
  const uint64_t seed = NumberFrom("LAYERCAKE_SIM_SEED", 0);
  if (seed == 0) GTEST_SKIP() << "LAYERCAKE_SIM_SEED is not set";
  EXPECT_EQ(FaultOfSeed(seed, *MakeSimTokenizer()), "") << "commit " << Commit();
}

TEST(Swarm, PreemptsAndHitsThePrefixCacheOften) {
  const auto tokenizer = MakeSimTokenizer();
  uint64_t preemptions = 0;
  uint64_t cached = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const Swarm swarm = MakeSwarm(seed);
    const SimReport report = RunSwarm(swarm, *tokenizer, seed);
    preemptions += report.loads.preemptions_total();
    cached += report.loads.cached_prompt_tokens_total();
  }
  EXPECT_GE(preemptions, 100u);
  EXPECT_GE(cached, 1000u);
}

struct Mutation {
  const char* name = "";
  SchedulerFault fault = SchedulerFault::kNone;
};

class SwarmFault : public ::testing::TestWithParam<Mutation> {};

constexpr int kFound = 3;

// Ends the process with kFound when a seed shows the fault. A check of the coordinator may see it
// first and abort.
void LookForFault(SchedulerFault fault) {
  const auto tokenizer = MakeSimTokenizer();
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    Swarm swarm = MakeSwarm(seed);
    swarm.options.scheduler.run_ahead = true;
    swarm.options.scheduler.fault = fault;
    const std::string found = FindFault(swarm, RunSwarm(swarm, *tokenizer, seed));
    if (found.empty()) continue;
    std::cerr << "found with seed " << seed << ": " << found << "\n";
    std::_Exit(kFound);
  }
}

TEST_P(SwarmFault, IsFoundWithinAThousandSeeds) {
  const auto is_found = [](int status) {
    return (WIFEXITED(status) && WEXITSTATUS(status) == kFound) ||
           (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  };
  EXPECT_EXIT(LookForFault(GetParam().fault), is_found, "found with seed|check failed: ");
}

INSTANTIATE_TEST_SUITE_P(Each, SwarmFault,
                         ::testing::Values(Mutation{"LeakBlock", SchedulerFault::kLeakBlock},
                                           Mutation{"ReuseBlock", SchedulerFault::kReuseBlock},
                                           Mutation{"ReuseInStep", SchedulerFault::kReuseInStep},
                                           Mutation{"DropCancel", SchedulerFault::kDropCancel},
                                           Mutation{"CacheUnwritten",
                                                    SchedulerFault::kCacheUnwritten}),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace layercake::simulation
