// What users of other servers met (a stop that is found late, a full cache, a reader that stands
// still, a prompt that stops everyone), as simulated runs with stated bounds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "proto/errors.h"
#include "tests/sim/traces.h"

namespace layercake::simulation {
namespace {

// As production runs it.
SimOptions AheadChain(int stages) {
  SimOptions options = GpuChain(stages);
  options.scheduler.run_ahead = true;
  return options;
}

class Cases : public ::testing::Test {
 protected:
  std::vector<int32_t> Right(const SimRequest& request, const SimOptions& options) {
    return SerialTokens(static_cast<int>(options.stages.size()), options.reads,
                        request.request.prompt, request.request.max_tokens,
                        request.request.sampling.seed());
  }
  SimRequest Ask(double at, int prompt, int tokens) {
    SimRequest request;
    request.at = at;
    request.request = SimPrompt(RandomTokens(random_, prompt), tokens, random_.Next());
    return request;
  }
  static double LargestGap(const SimOutcome& outcome, double from = 0) {
    double gap = 0;
    const std::vector<double>& times = outcome.choices[0].times;
    for (size_t i = 1; i < times.size(); ++i) {
      if (times[i] >= from) gap = std::max(gap, times[i] - times[i - 1]);
    }
    return gap;
  }

  const std::unique_ptr<model::Tokenizer> tokenizer_ = MakeSimTokenizer();
  base::SeededRandom random_{5};
};

// A word of the output as its text: two letters.
std::string TextOf(int32_t token) {
  return {static_cast<char>('a' + token / 16), static_cast<char>('a' + token % 16)};
}

TEST_F(Cases, NoStageComputesForARequestAfterItsStopStringButOneRowThatRanAhead) {
  SimOptions options = AheadChain(4);
  SimRequest request = Ask(0, 100, 400);
  const std::vector<int32_t> right = Right(request, options);
  // The stop spans two tokens; the first of them is held back.
  request.request.stop = {TextOf(right[49]).substr(1) + TextOf(right[50])};
  std::string text;
  for (int i = 0; i < 400; ++i) text += TextOf(right[static_cast<size_t>(i)]);
  const size_t found = text.find(request.request.stop[0]);
  const auto last = static_cast<int64_t>((found + 2) / 2);  // the token that completes it
  for (const bool ahead : {false, true}) {
    options.scheduler.run_ahead = ahead;
    const SimReport report = Simulation(options, *tokenizer_, 1).Run({request});
    const SimOutcome::Choice& choice = report.outcomes[0].choices[0];
    EXPECT_EQ(choice.text, text.substr(0, found));
    ASSERT_TRUE(choice.finished);
    EXPECT_EQ(choice.finished->matched_stop(), request.request.stop[0]);
    EXPECT_EQ(report.rows, 100 + last + (ahead ? 1 : 0))
        << "rows of the prompt and of each token before the last";
  }
}

TEST_F(Cases, MoreContextsThanTheCacheHoldsQueueUpAndAllEndRight) {
  SimOptions options = AheadChain(3);
  options.context_tokens = 512;
  options.scheduler.kv_blocks = 40;  // one context and a bit
  std::vector<SimRequest> requests;
  for (int i = 0; i < 40; ++i) requests.push_back(Ask(0, 150 + 5 * i, 60));
  const SimReport report = Simulation(options, *tokenizer_, 1).Run(requests);
  ASSERT_TRUE(report.failure.ok()) << report.failure;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(report.outcomes[i].choices[0].tokens, Right(requests[i], options)) << i;
  }
  EXPECT_EQ(report.loads.kv_blocks_used(), 0);
}

TEST_F(Cases, AFullQueueRefusesAndAnOldWaitEnds) {
  SimOptions options = AheadChain(2);
  options.scheduler.max_sequences = 1;
  options.scheduler.max_queued = 3;
  options.scheduler.queue_timeout = absl::Seconds(2);
  std::vector<SimRequest> requests;
  for (int i = 0; i < 6; ++i) requests.push_back(Ask(0.001 * i, 20, 1000));
  const SimReport report = Simulation(options, *tokenizer_, 1).Run(requests);
  EXPECT_TRUE(report.outcomes[0].error.ok());
  for (size_t i = 1; i < requests.size(); ++i) {
    EXPECT_EQ(ReasonOf(report.outcomes[i].error), ErrorReason::kQueueFull) << i;
    EXPECT_LE(report.outcomes[i].ended - report.outcomes[i].submitted, 2.001);
  }
  EXPECT_LT(report.outcomes[5].ended, 0.01) << "refused at once";
}

TEST_F(Cases, ReadersThatStandStillArePausedThenEndedAndDisturbNobody) {
  SimOptions options = AheadChain(4);
  options.max_pending_bytes = 2000;
  options.reader_timeout = absl::Seconds(3);
  std::vector<SimRequest> requests = {Ask(0, 64, 2000)};
  const SimReport alone = Simulation(options, *tokenizer_, 1).Run(requests);
  for (int i = 0; i < 50; ++i) {
    requests.push_back(Ask(0.5, 32, 4000));
    requests.back().bytes_per_second = i == 0 ? 1 : 0;
  }
  const SimReport report = Simulation(options, *tokenizer_, 1).Run(requests);
  const double paused_by = 0.5 + 6;  // 2,000 bytes are soon written
  for (size_t i = 1; i < requests.size(); ++i) {
    EXPECT_EQ(ReasonOf(report.outcomes[i].error), ErrorReason::kDeadline) << i;
    EXPECT_LE(report.outcomes[i].ended, paused_by + 3.1) << i;
    EXPECT_LE(report.outcomes[i].peak_pending_bytes, 2000u + 64u) << "the limit and one delta";
  }
  EXPECT_EQ(report.outcomes[0].choices[0].tokens, Right(requests[0], options));
  EXPECT_LE(LargestGap(report.outcomes[0], paused_by), 1.1 * LargestGap(alone.outcomes[0]));
  EXPECT_EQ(report.loads.kv_blocks_used(), 0);
}

class LongPrompt : public Cases, public ::testing::WithParamInterface<int> {};

TEST_P(LongPrompt, StopsNobodyAndIsNotStoppedItself) {
  const int stages = GetParam();
  SimOptions options = AheadChain(stages);
  std::vector<SimRequest> requests = {Ask(0, 64, 3000), Ask(6, 8000, 3), Ask(6.05, 60, 3)};
  for (int i = 0; i < 8; ++i) requests.push_back(Ask(8, 8000, 3));
  requests.push_back(Ask(8.1, 60, 3));
  const SimReport report = Simulation(options, *tokenizer_, 1).Run(requests);
  ASSERT_TRUE(report.failure.ok()) << report.failure;
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_EQ(report.outcomes[i].choices[0].tokens, Right(requests[i], options)) << i;
  }
  // A step of the stream alone goes through every stage.
  const double step = stages * (options.stages[0].fixed + 1e-4) + 3e-4;
  // Twice is the rule (max_stretch); in a chain, also the way through stages that become slower.
  EXPECT_LE(LargestGap(report.outcomes[0], 2), (stages == 1 ? 2.1 : 2.5) * step);
  const auto first_token = [&](size_t i) {
    return report.outcomes[i].choices[0].times[0] - report.outcomes[i].submitted;
  };
  std::printf("%d stages: gap %.1f ms (alone %.1f), long %.2f s, short %.3f s and %.3f s\n", stages,
              1e3 * LargestGap(report.outcomes[0], 2), 1e3 * step, first_token(1), first_token(2),
              first_token(11));
  EXPECT_LE(first_token(2), 0.25) << "a short prompt beside a long one";
  EXPECT_LE(first_token(11), 0.25) << "a short prompt beside eight long ones";
  EXPECT_LE(first_token(1), 8);
}

INSTANTIATE_TEST_SUITE_P(Stages, LongPrompt, ::testing::Values(1, 4));

TEST_F(Cases, SixtyFourRequestsComputeTheirCommonPromptOnce) {
  const SimOptions options = AheadChain(4);
  const std::vector<int32_t> common = RandomTokens(random_, 2000);
  std::vector<SimRequest> requests;
  int64_t own = 0;
  for (int i = 0; i < 64; ++i) {
    SimRequest request = Ask(0.002 * i, 10 + i, 20);
    own += 10 + i + 20 - 1;
    request.request.prompt.insert(request.request.prompt.begin(), common.begin(), common.end());
    requests.push_back(std::move(request));
  }
  const SimReport report = Simulation(options, *tokenizer_, 1).Run(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(report.outcomes[i].choices[0].tokens, Right(requests[i], options)) << i;
  }
  EXPECT_EQ(report.rows, 2000 + own);
  EXPECT_EQ(report.loads.cached_prompt_tokens_total(), 63u * 2000u);

  SimOptions cold = options;
  cold.scheduler.prefix_cache = false;
  EXPECT_EQ(Simulation(cold, *tokenizer_, 1).Run(requests).rows, 64 * 2000 + own);
}

TEST_F(Cases, ChoicesShareThePromptAndDrawFromSeedsOfTheirOwn) {
  const SimOptions options = AheadChain(3);
  for (const bool cache : {true, false}) {
    SimRequest request = Ask(0, 330, 40);
    request.request.n = 4;
    request.request.use_prefix_cache = cache;
    const SimReport report = Simulation(options, *tokenizer_, 1).Run({request});
    const SimOutcome& outcome = report.outcomes[0];
    EXPECT_EQ(outcome.choices[0].tokens, Right(request, options));
    std::set<std::vector<int32_t>> different;
    for (const SimOutcome::Choice& choice : outcome.choices) {
      ASSERT_TRUE(choice.finished);
      EXPECT_EQ(choice.tokens.size(), 40u);
      different.insert(choice.tokens);
    }
    EXPECT_EQ(different.size(), 4u);
    // 320 tokens lie in full blocks.
    EXPECT_EQ(report.rows, 330 + 3 * 10 + 4 * 39);
    // Beside others they draw the same.
    std::vector<SimRequest> crowd = {Ask(0, 50, 60), request, Ask(0, 70, 60)};
    const SimReport again = Simulation(options, *tokenizer_, 2).Run(crowd);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(again.outcomes[1].choices[i].tokens, outcome.choices[i].tokens);
    }
  }
}

TEST_F(Cases, ACancelledSequenceIsForgottenByTheChainWithTheStepsInFlight) {
  for (const double cancel_at : {0.0005, 0.02, 0.1, 0.4}) {
    const SimOptions options = AheadChain(4);
    std::vector<SimRequest> requests = {Ask(0, 3000, 500), Ask(0, 40, 200)};
    requests[0].cancel_at = cancel_at;
    Simulation simulation(options, *tokenizer_, 1);
    simulation.KeepPlans();
    const SimReport report = simulation.Run(requests);
    // Plans that name the cancelled sequence: at most those that were sent before, and one end.
    const std::vector<v1::MicroBatchPlan>& plans = simulation.plans();
    int last_rows = -1;
    int end = -1;
    for (size_t i = 0; i < plans.size(); ++i) {
      for (const v1::RowDescriptor& row : plans[i].rows()) {
        if (row.sequence() == 1) last_rows = static_cast<int>(i);
      }
      for (const uint64_t id : plans[i].ends()) {
        if (id == 1) end = static_cast<int>(i);
      }
    }
    if (last_rows >= 0) {
      ASSERT_GE(end, 0) << "cancelled at " << cancel_at;
      EXPECT_LE(end - last_rows, 2) << "cancelled at " << cancel_at;
    }
    EXPECT_EQ(report.outcomes[1].choices[0].tokens, Right(requests[1], options));
    EXPECT_EQ(report.loads.kv_blocks_used(), 0);
  }
}

TEST_F(Cases, BatchRequestsRunBesideInteractiveOnesAndBehindThem) {
  SimOptions options = AheadChain(2);
  options.scheduler.max_sequences = 4;
  std::vector<SimRequest> requests;
  for (int i = 0; i < 60; ++i) {
    requests.push_back(Ask(0.001 * i, 40, 40));
    if (i % 2 == 0) requests.back().request.priority = coordinator::Priority::kBatch;
  }
  const SimReport report = Simulation(options, *tokenizer_, 1).Run(requests);
  double interactive = 0;
  double batch = 0;
  double first_batch = 1e9;
  for (size_t i = 0; i < requests.size(); ++i) {
    (i % 2 == 0 ? batch : interactive) += report.outcomes[i].ended;
    if (i % 2 == 0) first_batch = std::min(first_batch, report.outcomes[i].ended);
  }
  EXPECT_LT(interactive, 0.8 * batch);
  EXPECT_LT(first_batch, 0.5 * report.seconds) << "none waits for all the others";
}

TEST_F(Cases, AClientWithManyRequestsDoesNotStarveOneWithFew) {
  SimOptions options = AheadChain(2);
  options.scheduler.max_sequences = 8;
  std::vector<SimRequest> requests;
  for (int i = 0; i < 200; ++i) {
    requests.push_back(Ask(0, 64, 50));
    requests.back().request.client = "many";
  }
  for (int i = 0; i < 10; ++i) {
    requests.push_back(Ask(1 + 0.5 * i, 64, 50));
    requests.back().request.client = "few";
  }
  const SimReport report = Simulation(options, *tokenizer_, 1).Run(requests);
  for (size_t i = 200; i < requests.size(); ++i) {
    const SimOutcome& outcome = report.outcomes[i];
    // As long as one of those that run takes to end, and its own way.
    EXPECT_LE(outcome.choices[0].times[0] - outcome.submitted, 0.5) << i;
  }
  EXPECT_GE(report.seconds, 8) << "the others had to wait for that long";
}

TEST_F(Cases, SixteenUnequalStagesAreAsBusyAsTheSlowestAllows) {
  SimOptions options = AheadChain(16);
  for (size_t i = 0; i < 16; ++i)
    options.stages[i].fixed *= i == 5 ? 1.0 : 0.6 + 0.02 * static_cast<double>(i);
  const auto requests = DecodeLoad(1, 96, 300);
  const SimReport report = Simulation(options, *tokenizer_, 1).Run(requests, std::pair{2.0, 6.0});
  ASSERT_TRUE(report.failure.ok()) << report.failure;
  EXPECT_GE(report.busy_seconds[5] / 4, 0.97);
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_EQ(report.outcomes[i].choices[0].tokens, Right(requests[i], options)) << i;
  }
}

TEST_F(Cases, OneMicroBatchMoreIsInFlightWhereHopsAreSlow) {
  for (const double hop : {30e-6, 4e-3}) {
    SimOptions options = AheadChain(4);
    options.hop_seconds = hop;
    for (StageCost& stage : options.stages) stage = {.fixed = 5e-4, .per_row = 2e-4};
    const auto requests = DecodeLoad(1, 60, 200);
    const SimReport ours = Simulation(options, *tokenizer_, 1).Run(requests, std::pair{2.0, 6.0});
    options.scheduler.max_in_flight = 4;
    const SimReport four = Simulation(options, *tokenizer_, 1).Run(requests, std::pair{2.0, 6.0});
    if (hop > 1e-3) {
      EXPECT_LT(ours.seconds, 0.95 * four.seconds);
    } else {
      EXPECT_LT(ours.seconds, 1.01 * four.seconds);
    }
  }
}

}  // namespace
}  // namespace layercake::simulation
