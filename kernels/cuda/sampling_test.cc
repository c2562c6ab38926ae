// Sampling on the device against the CPU's sampler: equal logits give equal tokens.
#include "kernels/cuda/sampling.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/sampler.h"
#include "kernels/cuda/gpu_test_support.h"

namespace layercake::kernels::cuda {
namespace {

constexpr uint64_t kSeed = 20240702;

// Logits as models have them: a bulk, and a few far ahead.
std::vector<float> ModelLogits(base::Random& random, int vocabulary, float spread) {
  std::vector<float> logits;
  for (int i = 0; i < vocabulary; ++i) {
    float sum = 0;
    for (int j = 0; j < 4; ++j) sum += Uniform(random, -1, 1);
    logits.push_back(spread * sum);
  }
  for (int i = 0; i < 20; ++i) {
    logits[random.Below(static_cast<uint64_t>(vocabulary))] = spread * Uniform(random, 2, 6);
  }
  return logits;
}

struct Drawn {
  std::vector<SampleRequest> requests;
  std::vector<std::vector<SeenToken>> seen;
  std::vector<std::vector<uint32_t>> allowed;
};

// One request per row, of all kinds.
Drawn RandomRequests(base::Random& random, int count, int vocabulary) {
  Drawn drawn;
  drawn.seen.resize(static_cast<size_t>(count));
  drawn.allowed.resize(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    SampleRequest request;
    request.logits_row = i;
    request.position = random.Below(1 << 20);
    request.params.temperature = random.Below(8) == 0 ? 0 : Uniform(random, 0.2f, 2);
    request.params.seed = random.Below(uint64_t{1} << 62);
    if (random.Below(2) == 0) request.params.top_k = 1 + static_cast<int>(random.Below(100));
    if (random.Below(8) == 0) request.params.top_k = 5000;
    if (random.Below(2) == 0) request.params.top_p = Uniform(random, 0.1f, 0.999f);
    if (random.Below(3) == 0) request.params.min_p = Uniform(random, 0.001f, 0.2f);
    if (random.Below(3) == 0) request.top_logprobs = static_cast<int>(random.Below(21));
    if (random.Below(3) == 0) {
      request.params.repetition_penalty = Uniform(random, 1, 1.5f);
      request.params.presence_penalty = Uniform(random, -1, 1);
      request.params.frequency_penalty = Uniform(random, -1, 1);
      for (int t = static_cast<int>(random.Below(20)); t < vocabulary; t += 97) {
        drawn.seen[static_cast<size_t>(i)].push_back({t, static_cast<int32_t>(random.Below(4))});
      }
      request.seen = drawn.seen[static_cast<size_t>(i)];
    }
    if (random.Below(4) == 0) {
      auto& words = drawn.allowed[static_cast<size_t>(i)];
      for (int w = 0; w < (vocabulary + 31) / 32; ++w) {
        words.push_back(static_cast<uint32_t>(random.Below(uint64_t{1} << 32)));
      }
      request.allowed = words;
    }
    drawn.requests.push_back(request);
  }
  return drawn;
}

SampleRequest WithTemperature(float temperature, int32_t top_k = 0, float top_p = 1,
                              float min_p = 0) {
  SampleRequest request;
  request.params.temperature = temperature;
  request.params.top_k = top_k;
  request.params.top_p = top_p;
  request.params.min_p = min_p;
  request.params.seed = 77;
  request.position = 5;
  return request;
}

bool operator==(const SampleOutcome& a, const SampleOutcome& b) {
  const auto count = static_cast<size_t>(a.top_count);
  return std::memcmp(&a, &b, offsetof(SampleOutcome, top_token)) == 0 &&
         std::memcmp(a.top_token, b.top_token, count * sizeof(int32_t)) == 0 &&
         std::memcmp(a.top_logprob, b.top_logprob, count * sizeof(float)) == 0;
}

class SamplingTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ASSERT_EQ(PrepareSampling(context_), cudaSuccess);
  }

  // The outcomes of `requests`; the logits must be what they were afterwards.
  std::vector<SampleOutcome> Run(const Context& context, const std::vector<float>& logits,
                                 int vocabulary, const std::vector<SampleRequest>& requests,
                                 bool greedy) {
    const DeviceArray device_logits = Upload(logits);
    std::vector<DeviceArray> kept;
    std::vector<SampleJob> jobs;
    for (const SampleRequest& request : requests) {
      SampleJob job = {};
      job.seed = request.params.seed;
      job.position = request.position;
      job.logits_row = request.logits_row;
      job.top_logprobs = request.top_logprobs;
      job.top_k = request.params.top_k;
      job.temperature = request.params.temperature;
      job.top_p = request.params.top_p;
      job.min_p = request.params.min_p;
      job.repetition_penalty = request.params.repetition_penalty;
      job.presence_penalty = request.params.presence_penalty;
      job.frequency_penalty = request.params.frequency_penalty;
      if (!request.seen.empty()) {
        kept.push_back(Upload(std::vector<SeenToken>(request.seen.begin(), request.seen.end())));
        job.seen = kept.back().as<DeviceSeenToken>();
        job.seen_count = static_cast<int32_t>(request.seen.size());
        kept.push_back(Upload(Poisoned(job.seen_count)));
        job.seen_raw = kept.back().as<float>();
      }
      if (!request.allowed.empty()) {
        kept.push_back(
            Upload(std::vector<uint32_t>(request.allowed.begin(), request.allowed.end())));
        job.allowed = kept.back().as<uint32_t>();
      }
      jobs.push_back(job);
    }
    const DeviceArray device_jobs = Upload(jobs);
    std::vector<SampleOutcome> poison(requests.size());
    std::memset(static_cast<void*>(poison.data()), 0xEE, poison.size() * sizeof(SampleOutcome));
    const DeviceArray outcomes = Upload(poison);
    EXPECT_EQ(
        LaunchSample(context, device_logits.as<float>(), vocabulary, device_jobs.as<SampleJob>(),
                     static_cast<int>(jobs.size()), greedy, outcomes.as<SampleOutcome>()),
        cudaSuccess);
    auto got = Download<SampleOutcome>(outcomes, static_cast<int64_t>(jobs.size()));
    EXPECT_EQ(
        std::memcmp(Download<float>(device_logits, static_cast<int64_t>(logits.size())).data(),
                    logits.data(), logits.size() * sizeof(float)),
        0)
        << "the logits changed";
    return got;
  }

  // Runs the requests on the device, by a cluster of blocks per row where there are such and by one
  // block, and on the host, and compares.
  void Compare(const std::vector<float>& logits, int vocabulary,
               const std::vector<SampleRequest>& requests, bool greedy = false) {
    Context without_clusters = context_;
    without_clusters.code_major = 8;
    const auto got = Run(context_, logits, vocabulary, requests, greedy);
    const auto alone = Run(without_clusters, logits, vocabulary, requests, greedy);
    Sampler sampler(ScalarKernels());
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto row = absl::MakeConstSpan(logits).subspan(
          static_cast<size_t>(requests[i].logits_row) * static_cast<size_t>(vocabulary),
          static_cast<size_t>(vocabulary));
      const SampleResult expected = sampler.Sample(row, requests[i]);
      const SamplingParams& params = requests[i].params;
      SCOPED_TRACE(absl::StrCat("request ", i, " of vocabulary ", vocabulary, ", temperature ",
                                params.temperature, ", top_k ", params.top_k, ", top_p ",
                                params.top_p, ", min_p ", params.min_p));
      ASSERT_EQ(alone[i].token, expected.token) << "one block";
      ASSERT_EQ(alone[i].top_count, static_cast<int>(expected.top.size()));
      ASSERT_EQ(got[i].token, expected.token);
      ASSERT_EQ(got[i].non_finite != 0, expected.non_finite);
      ASSERT_EQ(got[i].top_count, static_cast<int>(expected.top.size()));
      if (requests[i].top_logprobs < 0 || expected.non_finite) continue;
      EXPECT_NEAR(got[i].logprob, expected.logprob, 1e-4);
      EXPECT_NEAR(alone[i].logprob, expected.logprob, 1e-4);
      for (size_t t = 0; t < expected.top.size(); ++t) {
        EXPECT_EQ(got[i].top_token[t], expected.top[t].token);
        EXPECT_EQ(alone[i].top_token[t], expected.top[t].token);
        EXPECT_NEAR(got[i].top_logprob[t], expected.top[t].logprob, 1e-4);
      }
    }
  }

  // All requests on one row.
  void CompareOn(const std::vector<float>& row, std::vector<SampleRequest> requests) {
    std::vector<float> logits;
    for (size_t i = 0; i < requests.size(); ++i) {
      logits.insert(logits.end(), row.begin(), row.end());
      requests[i].logits_row = static_cast<int32_t>(i);
    }
    Compare(logits, static_cast<int>(row.size()), requests);
  }
};

TEST_F(SamplingTest, TakesTheFirstOfTheLargestWhenGreedy) {
  base::SeededRandom random(kSeed);
  for (const int vocabulary : {1, 31, 1025, 49152, 151936, 262144}) {
    std::vector<float> logits;
    std::vector<SampleRequest> requests;
    for (int i = 0; i < 5; ++i) {
      std::vector<float> row = ModelLogits(random, vocabulary, 3);
      if (i == 1) std::fill(row.begin(), row.end(), 2.5f);
      if (i == 2) row[random.Below(row.size())] = std::numeric_limits<float>::quiet_NaN();
      if (i == 3) row[random.Below(row.size())] = std::numeric_limits<float>::infinity();
      if (i == 4) std::fill(row.begin(), row.end(), -std::numeric_limits<float>::infinity());
      logits.insert(logits.end(), row.begin(), row.end());
      requests.emplace_back().logits_row = i;
    }
    Compare(logits, vocabulary, requests, /*greedy=*/true);
    Compare(logits, vocabulary, requests, /*greedy=*/false);
  }
}

// Every combination of cuts, penalties and masks, over peaked and flat rows.
TEST_F(SamplingTest, DrawsTheHostsTokens) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  base::SeededRandom random(kSeed);
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    const int vocabulary = round % 4 == 0   ? 151936
                           : round % 4 == 1 ? 1 + static_cast<int>(random.Below(200))
                                            : 3000 + static_cast<int>(random.Below(50000));
    const int count = vocabulary > 100000 ? 16 : 1 + static_cast<int>(random.Below(64));
    std::vector<float> logits;
    for (int i = 0; i < count; ++i) {
      const float spread = std::ldexp(1.0f, static_cast<int>(random.Below(7)) - 3);
      const std::vector<float> row = ModelLogits(random, vocabulary, spread);
      logits.insert(logits.end(), row.begin(), row.end());
    }
    Compare(logits, vocabulary, RandomRequests(random, count, vocabulary).requests);
    if (HasFatalFailure()) return;
  }
}

// From temperatures that leave one token to those that leave all alike, and cuts from one token to
// the whole vocabulary.
TEST_F(SamplingTest, DrawsTheHostsTokensAtTheEndsOfEveryRange) {
  base::SeededRandom random(kSeed);
  for (const int vocabulary : {32, 1001, 152064, 262144}) {
    const std::vector<float> row = ModelLogits(random, vocabulary, 2.5f);
    for (const float temperature : {1e-6f, 0.01f, 0.8f, 10.0f, 100.0f}) {
      std::vector<SampleRequest> requests = {WithTemperature(temperature)};
      for (const int32_t top_k : {1, 2, 31, 500, 700, vocabulary - 1, vocabulary}) {
        requests.push_back(WithTemperature(temperature, top_k));
        requests.push_back(WithTemperature(temperature, top_k, 0.7f, 0.01f));
      }
      for (const float top_p : {1e-6f, 0.1f, 0.9f, 0.9999f}) {
        requests.push_back(WithTemperature(temperature, 0, top_p));
      }
      requests.push_back(WithTemperature(temperature, 0, 1, 0.3f));
      requests.back().top_logprobs = 20;
      CompareOn(row, requests);
      if (HasFatalFailure()) return;
    }
  }
}

// Rows that a histogram of few bins, or a list of few candidates, says nothing about.
TEST_F(SamplingTest, DrawsFromRowsOfNoShape) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  base::SeededRandom random(kSeed);
  for (const int vocabulary : {31, 4099, 152064}) {
    const auto size = static_cast<size_t>(vocabulary);
    std::vector<std::vector<float>> rows;
    rows.emplace_back(size, 1.5f);  // all alike
    rows.emplace_back(size, -2.0f)[size / 2] = 60;
    rows.emplace_back(size, -kInfinity)[size - 1] = -5;
    rows.emplace_back(size, 0.0f)[size / 3] = 1e30f;  // one that no scale fits
    rows.emplace_back(size, -0.0f)[size / 3] = 0.0f;
    auto& steps = rows.emplace_back();  // many ties
    for (size_t t = 0; t < size; ++t) steps.push_back(static_cast<float>(random.Below(5)));
    auto& holes = rows.emplace_back(ModelLogits(random, vocabulary, 2));
    for (float& logit : holes) logit = random.Below(10) == 0 ? logit : -kInfinity;
    for (const std::vector<float>& row : rows) {
      std::vector<SampleRequest> requests = {WithTemperature(1),
                                             WithTemperature(1, 7),
                                             WithTemperature(1, 0, 0.6f),
                                             WithTemperature(1, 900),
                                             WithTemperature(0.5f, 40, 0.9f),
                                             WithTemperature(0.01f, 20),
                                             WithTemperature(2, 0, 1, 0.5f)};
      for (SampleRequest& request : requests) request.top_logprobs = 20;
      CompareOn(row, requests);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(SamplingTest, GivesARowTheSameWhateverIsSampledBesideIt) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  base::SeededRandom random(kSeed);
  constexpr int kRows = 64;
  constexpr int kVocabulary = 32001;
  std::vector<float> logits;
  for (int i = 0; i < kRows; ++i) {
    const std::vector<float> row = ModelLogits(random, kVocabulary, 1 + static_cast<float>(i % 3));
    logits.insert(logits.end(), row.begin(), row.end());
  }
  logits[5 * kVocabulary + 77] = std::numeric_limits<float>::quiet_NaN();
  const Drawn drawn = RandomRequests(random, kRows, kVocabulary);
  const auto together = Run(context_, logits, kVocabulary, drawn.requests, false);
  for (const size_t i : {size_t{0}, size_t{4}, size_t{5}, size_t{6}, size_t{40}, size_t{63}}) {
    const auto alone = Run(context_, logits, kVocabulary, {drawn.requests[i]}, false);
    EXPECT_TRUE(alone.front() == together[i]) << "row " << i;
  }
  EXPECT_EQ(together[5].non_finite, 1);
}

TEST_F(SamplingTest, CutsRowsOfEqualLogitsByTheirIds) {
  constexpr int kVocabulary = 40000;
  std::vector<float> logits(3 * kVocabulary, 1.5f);
  for (int i = 0; i < kVocabulary; ++i)
    logits[static_cast<size_t>(kVocabulary + i)] += static_cast<float>(i % 2);
  std::vector<SampleRequest> requests(3);
  for (int i = 0; i < 3; ++i) {
    requests[static_cast<size_t>(i)].logits_row = i;
    requests[static_cast<size_t>(i)].params.temperature = 1;
    requests[static_cast<size_t>(i)].params.seed = 5;
    requests[static_cast<size_t>(i)].top_logprobs = 20;
  }
  requests[0].params.top_k = 7000;
  requests[1].params.top_k = 25000;
  requests[2].params.top_p = 0.5f;
  Compare(logits, kVocabulary, requests);
}

TEST_F(SamplingTest, SaysWhenNothingIsAllowed) {
  base::SeededRandom random(kSeed);
  const std::vector<uint32_t> none(32, 0);
  SampleRequest request;
  request.allowed = none;
  request.params.temperature = 1;
  Compare(ModelLogits(random, 1024, 2), 1024, {request});
}

}  // namespace
}  // namespace layercake::kernels::cuda
