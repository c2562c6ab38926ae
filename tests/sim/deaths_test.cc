// A worker that dies at any moment: every request ends, with the reason, and what was said before
// is right. (Nobody takes its place yet.)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/errors.h"
#include "tests/sim/traces.h"

namespace layercake::simulation {
namespace {

using ::testing::HasSubstr;

struct Death {
  Swarm swarm;
  int stage = 0;
  double at = 0;
};

Death MakeDeath(uint64_t seed) {
  Death death{.swarm = MakeSwarm(seed)};
  base::SeededRandom random(seed ^ 0xDEAD);
  death.stage = static_cast<int>(random.Below(death.swarm.options.stages.size()));
  death.at = 0.5 * random.Unit();
  return death;
}

SimReport RunDeath(const Death& death, const model::Tokenizer& tokenizer, uint64_t seed) {
  Simulation simulation(death.swarm.options, tokenizer, seed);
  simulation.KillWorker(death.stage, death.at);
  return simulation.Run(death.swarm.requests);
}

TEST(Deaths, EndEveryRequestWithTheReasonAndNoWrongToken) {
  const auto tokenizer = MakeSimTokenizer();
  int struck = 0;  // chains that had not ended by themselves
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Death death = MakeDeath(seed);
    const SimReport report = RunDeath(death, *tokenizer, seed);
    ASSERT_EQ(report.trace, RunDeath(death, *tokenizer, seed).trace) << "seed " << seed;
    if (report.failure.ok()) continue;
    ++struck;
    EXPECT_EQ(report.failure.code(), absl::StatusCode::kUnavailable) << "seed " << seed;
    EXPECT_THAT(report.failure.message(), HasSubstr(absl::StrCat("stage ", death.stage)));
    for (size_t i = 0; i < death.swarm.requests.size(); ++i) {
      const SimOutcome& outcome = report.outcomes[i];
      if (outcome.choices.empty()) continue;  // it was not sent any more
      ASSERT_GE(outcome.ended, 0) << "seed " << seed << ", request " << i;
      EXPECT_LE(outcome.ended, std::max(death.at, outcome.submitted) + 0.1) << "seed " << seed;
      const coordinator::PreparedRequest& asked = death.swarm.requests[i].request;
      const std::vector<int32_t> right = SerialTokens(
          static_cast<int>(death.swarm.options.stages.size()), death.swarm.options.reads,
          asked.prompt, asked.max_tokens, asked.sampling.seed());
      const std::vector<int32_t>& told = outcome.choices[0].tokens;
      ASSERT_LE(told.size(), right.size());
      EXPECT_TRUE(std::equal(told.begin(), told.end(), right.begin()))
          << "seed " << seed << ", request " << i;
    }
  }
  EXPECT_GE(struck, 50);
}

}  // namespace
}  // namespace layercake::simulation
