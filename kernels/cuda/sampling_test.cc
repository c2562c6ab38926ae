// Sampling on the device against the CPU's sampler: equal logits give equal tokens.
#include "kernels/cuda/sampling.h"

#include <cmath>
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

class SamplingTest : public GpuTest {
 protected:
  // Runs the requests (request i on logits row i) on both and compares.
  void Compare(std::vector<float> logits, int vocabulary,
               const std::vector<SampleRequest>& requests, bool greedy = false) {
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
    const DeviceArray outcomes = Upload(std::vector<SampleOutcome>(requests.size()));
    ASSERT_EQ(
        LaunchSample(context_, device_logits.as<float>(), vocabulary, device_jobs.as<SampleJob>(),
                     static_cast<int>(jobs.size()), greedy, outcomes.as<SampleOutcome>()),
        cudaSuccess);
    const auto got = Download<SampleOutcome>(outcomes, static_cast<int64_t>(jobs.size()));
    Sampler sampler(ScalarKernels());
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto row = absl::MakeConstSpan(logits).subspan(i * static_cast<size_t>(vocabulary),
                                                           static_cast<size_t>(vocabulary));
      const SampleResult expected = sampler.Sample(row, requests[i]);
      SCOPED_TRACE(absl::StrCat("request ", i));
      ASSERT_EQ(got[i].token, expected.token);
      ASSERT_EQ(got[i].non_finite != 0, expected.non_finite);
      if (requests[i].top_logprobs < 0 || expected.non_finite) continue;
      EXPECT_NEAR(got[i].logprob, expected.logprob, 1e-4);
      ASSERT_EQ(got[i].top_count, static_cast<int>(expected.top.size()));
      for (size_t t = 0; t < expected.top.size(); ++t) {
        EXPECT_EQ(got[i].top_token[t], expected.top[t].token);
        EXPECT_NEAR(got[i].top_logprob[t], expected.top[t].logprob, 1e-4);
      }
    }
    // Penalties were taken back.
    EXPECT_EQ(
        std::memcmp(Download<float>(device_logits, static_cast<int64_t>(logits.size())).data(),
                    logits.data(), logits.size() * sizeof(float)),
        0);
  }
};

TEST_F(SamplingTest, TakesTheFirstOfTheLargestWhenGreedy) {
  base::SeededRandom random(kSeed);
  for (const int vocabulary : {1, 31, 1025, 49152, 151936}) {
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
    const int vocabulary = round % 4 == 0 ? 151936 : 3000 + static_cast<int>(random.Below(50000));
    const int count = vocabulary > 100000 ? 16 : 64;
    Drawn drawn;
    drawn.seen.resize(static_cast<size_t>(count));
    drawn.allowed.resize(static_cast<size_t>(count));
    std::vector<float> logits;
    for (int i = 0; i < count; ++i) {
      const float spread = std::ldexp(1.0f, static_cast<int>(random.Below(7)) - 3);
      const std::vector<float> row = ModelLogits(random, vocabulary, spread);
      logits.insert(logits.end(), row.begin(), row.end());
      SampleRequest request;
      request.logits_row = i;
      request.position = random.Below(1 << 20);
      request.params.temperature = Uniform(random, 0.2f, 2);
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
    Compare(logits, vocabulary, drawn.requests);
  }
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
