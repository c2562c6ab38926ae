#include "kernels/cpu/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/kernels_test_support.h"
#include "kernels/sampling_rule.h"

namespace layercake::kernels {
namespace {

using ::testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

const CpuKernels& Table() { return Avx2Kernels() != nullptr ? *Avx2Kernels() : ScalarKernels(); }

SampleResult SampleOnce(const std::vector<float>& logits, const SampleRequest& request) {
  Sampler sampler(Table());
  return sampler.Sample(logits, request);
}

// Vectors of the Random123 distribution's kat_vectors file.
TEST(Philox, EqualsThePublishedVectors) {
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(
      Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
      ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(
      Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(Gumbel, IsNeverAboveItsBound) {
  base::SeededRandom random(3);
  for (int i = 0; i < 20000; ++i) {
    const auto bits = static_cast<uint32_t>(random.Next()) | ~(0xFFFFFFFFu >> (i % 32));
    EXPECT_LE(GumbelFromBits(bits), GumbelBound(bits)) << bits;
  }
  EXPECT_LE(GumbelFromBits(0xFFFFFFFF), GumbelBound(0xFFFFFFFF));
  EXPECT_TRUE(std::isfinite(GumbelFromBits(0)));
}

TEST(Sampler, TakesTheLowestIdOfTheLargestWhenGreedy) {
  std::vector<float> logits(1003, -1.0f);
  logits[901] = logits[77] = logits[1002] = 3;
  EXPECT_EQ(SampleOnce(logits, {}).token, 77);
  EXPECT_FALSE(SampleOnce(logits, {}).non_finite);
}

TEST(Sampler, SaysWhenLogitsAreNotFinite) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
    for (const size_t at : {size_t{0}, size_t{500}, size_t{1002}}) {
      std::vector<float> logits(1003, 1.0f);
      logits[at] = bad;
      const SampleResult result = SampleOnce(logits, {});
      EXPECT_TRUE(result.non_finite);
      EXPECT_EQ(result.token, -1);
    }
  }
  std::vector<float> logits(40, -kInfinity);
  EXPECT_TRUE(SampleOnce(logits, {}).non_finite);
  logits[39] = -5;
  EXPECT_EQ(SampleOnce(logits, {}).token, 39);
}

TEST(Sampler, ObeysTheMask) {
  std::vector<float> logits(70);
  for (size_t t = 0; t < 70; ++t) logits[t] = static_cast<float>(t);
  std::vector<uint32_t> allowed(3, 0);
  SampleRequest request;
  request.allowed = allowed;
  EXPECT_TRUE(SampleOnce(logits, request).non_finite);
  allowed[1] = 1u << 3;  // token 35
  allowed[0] = 1u << 31;
  EXPECT_EQ(SampleOnce(logits, request).token, 35);
  request.params.temperature = 5;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    request.params.seed = seed;
    EXPECT_THAT(SampleOnce(logits, request).token, testing::AnyOf(31, 35));
  }
}

TEST(Sampler, AppliesEachPenalty) {
  const std::vector<float> logits = {2.0f, 1.9f, -1.0f, -1.1f};
  SampleRequest request;
  const std::vector<SeenToken> prompt_only = {{0, 0}};
  request.seen = prompt_only;
  EXPECT_EQ(SampleOnce(logits, request).token, 0);
  request.params.repetition_penalty = 1.1f;
  EXPECT_EQ(SampleOnce(logits, request).token, 1);
  request.params = {};
  request.params.presence_penalty = 0.5f;
  EXPECT_EQ(SampleOnce(logits, request).token, 0);  // the prompt does not count
  const std::vector<SeenToken> output = {{0, 3}, {1, 1}};
  request.seen = output;
  request.params.presence_penalty = 0;
  request.params.frequency_penalty = 0.1f;
  EXPECT_EQ(SampleOnce(logits, request).token, 1);
  EXPECT_FLOAT_EQ(Penalized(2, 3, {.presence_penalty = 0.5f, .frequency_penalty = 0.1f}), 1.2f);
  EXPECT_FLOAT_EQ(Penalized(-1, 0, {.repetition_penalty = 2}), -2);
}

// All tokens that 400 seeds draw.
std::set<int32_t> Drawn(const std::vector<float>& logits, SampleRequest request) {
  std::set<int32_t> tokens;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    request.params.seed = seed;
    tokens.insert(SampleOnce(logits, request).token);
  }
  return tokens;
}

TEST(Sampler, CutsByTopKTopPAndMinP) {
  // Probabilities 0.4, 0.2, 0.2, 0.1, 0.1 at shuffled ids.
  std::vector<float> logits(100, -kInfinity);
  const std::vector<std::pair<size_t, double>> likely = {
      {60, 0.4}, {7, 0.2}, {80, 0.2}, {3, 0.1}, {99, 0.1}};
  for (const auto& [token, p] : likely) logits[token] = static_cast<float>(std::log(p));
  SampleRequest request;
  request.params.temperature = 1;
  EXPECT_THAT(Drawn(logits, request), ElementsAre(3, 7, 60, 80, 99));
  request.params.top_k = 2;  // the tie goes to the lower id
  EXPECT_THAT(Drawn(logits, request), ElementsAre(7, 60));
  request.params.top_k = 4;
  EXPECT_THAT(Drawn(logits, request), ElementsAre(3, 7, 60, 80));
  request.params.top_p = 0.6f;  // of the four: 0.44, 0.22, 0.22, 0.11
  EXPECT_THAT(Drawn(logits, request), ElementsAre(7, 60));
  request.params.top_k = 0;
  request.params.top_p = 0.75f;
  EXPECT_THAT(Drawn(logits, request), ElementsAre(7, 60, 80));
  request.params.top_p = 0;
  EXPECT_THAT(Drawn(logits, request), ElementsAre(60));
  request.params.top_p = 1;
  request.params.min_p = 0.4f;
  EXPECT_THAT(Drawn(logits, request), ElementsAre(7, 60, 80));
  request.params.min_p = 0.4f;
  request.params.temperature = 3;  // flatter: the cube roots of the ratios
  EXPECT_THAT(Drawn(logits, request), ElementsAre(3, 7, 60, 80, 99));
}

TEST(Sampler, FindsTheNucleusOfAWideDistribution) {
  base::SeededRandom random(21);
  std::vector<float> logits = RandomFloats(random, 5000, 4);
  std::vector<std::pair<double, int32_t>> order;
  double total = 0;
  for (size_t t = 0; t < logits.size(); ++t) {
    const double p = std::exp(static_cast<double>(logits[t]));
    total += p;
    order.push_back({-p, static_cast<int32_t>(t)});
  }
  std::sort(order.begin(), order.end());
  std::set<int32_t> nucleus;
  for (double sum = 0; sum < 0.3 * total;) {
    sum -= order[nucleus.size()].first;
    nucleus.insert(order[nucleus.size()].second);
  }
  SampleRequest request;
  request.params.temperature = 1;
  request.params.top_p = 0.3f;
  const std::set<int32_t> drawn = Drawn(logits, request);
  EXPECT_GT(drawn.size(), 100u);
  for (const int32_t token : drawn) EXPECT_TRUE(nucleus.contains(token)) << token;
}

// With 40000 draws the statistic of 15 degrees of freedom exceeds 45 once in 10000 runs; the seeds
// are fixed, so it is the same every time.
TEST(Sampler, DrawsByTheSoftmax) {
  base::SeededRandom random(22);
  const std::vector<float> logits = RandomFloats(random, 16, 1.5f);
  for (const float temperature : {0.7f, 1.0f, 2.0f}) {
    for (const int32_t top_k : {0, 15}) {
      std::vector<double> expected(16);
      double total = 0;
      const float least = *std::min_element(logits.begin(), logits.end());
      for (size_t t = 0; t < 16; ++t) {
        expected[t] = top_k > 0 && logits[t] == least
                          ? 0
                          : std::exp(static_cast<double>(logits[t]) / temperature);
        total += expected[t];
      }
      std::vector<int> counts(16, 0);
      Sampler sampler(Table());
      constexpr int kDraws = 40000;
      for (int i = 0; i < kDraws; ++i) {
        SampleRequest request;
        request.params.temperature = temperature;
        request.params.top_k = top_k;
        request.params.seed = static_cast<uint64_t>(i % 200) << 33;
        request.position = static_cast<uint64_t>(i / 200);
        ++counts[static_cast<size_t>(sampler.Sample(logits, request).token)];
      }
      double statistic = 0;
      for (size_t t = 0; t < 16; ++t) {
        const double mean = kDraws * expected[t] / total;
        if (mean == 0) {
          EXPECT_EQ(counts[t], 0);
          continue;
        }
        statistic += (counts[t] - mean) * (counts[t] - mean) / mean;
      }
      EXPECT_LT(statistic, 45) << "temperature " << temperature;
    }
  }
}

TEST(Sampler, DrawsTheSameWithAndWithoutItsShortCuts) {
  base::SeededRandom random(23);
  const std::vector<float> logits = RandomFloats(random, 3001, 6);
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SampleRequest request;
    request.params.temperature = 1.5f;
    request.params.seed = seed * 0x9E3779B97F4A7C15;
    request.position = seed;
    int32_t best = -1;
    double largest = -std::numeric_limits<double>::infinity();
    for (uint32_t t = 0; t < logits.size(); ++t) {
      const double value =
          logits[t] / static_cast<double>(request.params.temperature) +
          GumbelFromBits(GumbelBits(request.params.seed, request.position, t / 4)[t % 4]);
      if (value > largest) {
        largest = value;
        best = static_cast<int32_t>(t);
      }
    }
    EXPECT_EQ(SampleOnce(logits, request).token, best);
    request.params.min_p = 1e-30f;  // the other path, nothing cut
    EXPECT_EQ(SampleOnce(logits, request).token, best);
  }
}

TEST(Sampler, ReportsRawLogProbabilities) {
  base::SeededRandom random(24);
  std::vector<float> logits = RandomFloats(random, 2000, 5);
  logits[9] = logits[1500] = 6;
  logits[4] = -kInfinity;
  double sum = 0;
  for (const float v : logits) sum += std::exp(static_cast<double>(v));
  SampleRequest request;
  request.top_logprobs = 3;
  request.params.repetition_penalty = 2;
  const SeenToken seen{9, 1};
  request.seen = absl::MakeSpan(&seen, 1);
  const SampleResult result = SampleOnce(logits, request);
  EXPECT_EQ(result.token, 1500);
  EXPECT_NEAR(result.logprob, 6 - std::log(sum), 1e-5);
  ASSERT_EQ(result.top.size(), 3u);
  EXPECT_EQ(result.top[0].token, 9);
  EXPECT_EQ(result.top[1].token, 1500);
  EXPECT_NEAR(result.top[0].logprob, 6 - std::log(sum), 1e-5);
  EXPECT_GE(result.top[1].logprob, result.top[2].logprob);
  request.top_logprobs = 0;
  EXPECT_TRUE(SampleOnce(logits, request).top.empty());
  request.top_logprobs = -1;
  EXPECT_EQ(SampleOnce(logits, request).logprob, 0);
}

TEST(Sampler, ReportsNoAlternativeThatCannotCome) {
  std::vector<float> logits(50, -kInfinity);
  logits[7] = 1;
  logits[33] = 2;
  SampleRequest request;
  request.top_logprobs = 5;
  const SampleResult result = SampleOnce(logits, request);
  ASSERT_EQ(result.top.size(), 2u);
  EXPECT_EQ(result.top[0].token, 33);
  EXPECT_EQ(result.top[1].token, 7);
}

}  // namespace
}  // namespace layercake::kernels
