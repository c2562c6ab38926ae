// The simulator itself: the same twice, and right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "simulation/simulation.h"

namespace layercake::simulation {
namespace {

SimOptions SmallChain(int stages) {
  SimOptions options;
  options.stages.assign(static_cast<size_t>(stages),
                        {.fixed = 1e-3, .per_row = 1e-5, .per_read = 1e-8});
  options.hop_seconds = 20e-6;
  options.session_seconds = 100e-6;
  options.scheduler.max_in_flight = stages;
  options.scheduler.max_rows = 64;
  options.scheduler.prefill_rows = 32;
  options.scheduler.max_sequences = 16;
  options.scheduler.kv_blocks = 128;
  options.scheduler.block_tokens = 8;
  return options;
}

std::vector<SimRequest> SomeRequests(uint64_t seed, int count) {
  base::SeededRandom random(seed);
  std::vector<SimRequest> requests;
  for (int i = 0; i < count; ++i) {
    SimRequest request;
    request.at = static_cast<double>(i) * 2e-3;
    request.request = SimPrompt(RandomTokens(random, 1 + static_cast<int>(random.Below(100))),
                                1 + static_cast<int>(random.Below(30)), random.Next());
    requests.push_back(std::move(request));
  }
  return requests;
}

TEST(Simulation, DoesTheSameTwiceAndWhatTheSerialModelDoes) {
  const auto tokenizer = MakeSimTokenizer();
  for (const int stages : {1, 2, 5}) {
    for (const Reads reads : {Reads::kEvery, Reads::kChained}) {
      SimOptions options = SmallChain(stages);
      options.reads = reads;
      const std::vector<SimRequest> requests = SomeRequests(7, 20);
      const SimReport first = Simulation(options, *tokenizer, 1).Run(requests);
      ASSERT_TRUE(first.failure.ok()) << first.failure;
      for (size_t i = 0; i < requests.size(); ++i) {
        const coordinator::PreparedRequest& asked = requests[i].request;
        ASSERT_GE(first.outcomes[i].ended, 0) << "request " << i << " of " << stages << " stages";
        ASSERT_EQ(
            first.outcomes[i].choices[0].tokens,
            SerialTokens(stages, reads, asked.prompt, asked.max_tokens, asked.sampling.seed()))
            << "request " << i << " of " << stages << " stages";
      }
      const SimReport second = Simulation(options, *tokenizer, 1).Run(requests);
      EXPECT_EQ(first.trace, second.trace);
      EXPECT_EQ(first.loads.kv_blocks_used(), 0);
    }
  }
}

TEST(Simulation, AWireCarriesOneFrameAfterTheOther) {
  const auto tokenizer = MakeSimTokenizer();
  SimOptions options = SmallChain(2);
  options.reads = Reads::kChained;
  for (StageCost& stage : options.stages) stage = {.fixed = 1e-4};
  options.hop_row_seconds = 1e-3;  // ten steps' time
  std::vector<SimRequest> requests = SomeRequests(3, 16);
  for (SimRequest& request : requests) {
    request.at = 0;
    request.request.prompt.resize(8, 1);
    request.request.max_tokens = 100;
  }
  const SimReport report = Simulation(options, *tokenizer, 1).Run(requests);
  ASSERT_TRUE(report.failure.ok()) << report.failure;
  // Each row passes the one wire, which is what all wait for.
  EXPECT_GE(report.seconds, 1e-3 * static_cast<double>(report.rows));
  EXPECT_LE(report.seconds, 1.3e-3 * static_cast<double>(report.rows));
}

TEST(Simulation, AClientGoesOnWhenItsAnswerHasCome) {
  const auto tokenizer = MakeSimTokenizer();
  const SimOptions options = SmallChain(3);
  const std::vector<SimRequest> first = SomeRequests(5, 3);
  const std::vector<SimRequest> later = SomeRequests(6, 7);
  Simulation simulation(options, *tokenizer, 1);
  size_t asked = 0;
  std::vector<double> ended;
  simulation.AskNext([&](size_t, double now) -> std::optional<SimRequest> {
    ended.push_back(now);
    if (asked == later.size()) return std::nullopt;
    return later[asked++];
  });
  const SimReport report = simulation.Run(first);
  ASSERT_EQ(report.outcomes.size(), 10u);
  ASSERT_EQ(ended.size(), 10u);
  for (size_t i = 0; i < report.outcomes.size(); ++i) {
    const coordinator::PreparedRequest& request =
        i < first.size() ? first[i].request : later[i - first.size()].request;
    const SimOutcome& outcome = report.outcomes[i];
    EXPECT_EQ(outcome.choices[0].tokens, SerialTokens(3, options.reads, request.prompt,
                                                      request.max_tokens, request.sampling.seed()));
    if (i < first.size()) continue;
    EXPECT_DOUBLE_EQ(outcome.submitted, ended[i - first.size()]) << "request " << i;
  }
}

}  // namespace
}  // namespace layercake::simulation
