#include "kernels/cpu/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/sampling_rule.h"

namespace layercake::kernels {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

int32_t FirstEqual(absl::Span<const float> logits, float value) {
  return static_cast<int32_t>(std::find(logits.begin(), logits.end(), value) - logits.begin());
}

// Keeps the best of the Gumbel-perturbed logits; the lowest id on ties.
struct GumbelMax {
  double best = -std::numeric_limits<double>::infinity();
  int32_t token = -1;

  void Offer(int32_t id, double scaled_logit, uint32_t bits) {
    if (scaled_logit + GumbelBound(bits) < best) return;
    const double value = scaled_logit + GumbelFromBits(bits);
    if (value > best || (value == best && id < token)) {
      best = value;
      token = id;
    }
  }
};

}  // namespace

SampleResult Sampler::Sample(absl::Span<const float> logits, const SampleRequest& request) {
  SampleResult result;
  bool nan_or_inf = false;
  const auto size = static_cast<int64_t>(logits.size());
  const float raw_max = kernels_.max_value(logits.data(), size, &nan_or_inf);
  if (nan_or_inf) {
    result.non_finite = true;
    return result;
  }
  const absl::Span<const float> adjusted = Adjusted(logits, request);
  const float max = adjusted.data() == logits.data()
                        ? raw_max
                        : kernels_.max_value(adjusted.data(), size, &nan_or_inf);
  if (nan_or_inf || max == kMinusInfinity) {
    result.non_finite = true;
    return result;
  }
  result.token =
      request.params.temperature > 0 ? Draw(adjusted, max, request) : FirstEqual(adjusted, max);
  if (request.top_logprobs >= 0) {
    ReportLogprobs(logits, raw_max, request.top_logprobs, result);
  }
  return result;
}

absl::Span<const float> Sampler::Adjusted(absl::Span<const float> logits,
                                          const SampleRequest& request) {
  const bool penalties = HasPenalty(request.params) && !request.seen.empty();
  if (!penalties && request.allowed.empty()) return logits;
  adjusted_.assign(logits.begin(), logits.end());
  if (penalties) {
    for (const SeenToken& seen : request.seen) {
      float& logit = adjusted_[static_cast<size_t>(seen.token)];
      logit = Penalized(logit, seen.output_count, request.params);
    }
  }
  if (!request.allowed.empty()) {
    for (size_t t = 0; t < adjusted_.size(); ++t) {
      if (((request.allowed[t / 32] >> (t % 32)) & 1u) == 0) adjusted_[t] = kMinusInfinity;
    }
  }
  return adjusted_;
}

int32_t Sampler::Draw(absl::Span<const float> logits, float max, const SampleRequest& request) {
  const SamplingParams& params = request.params;
  const double temperature = params.temperature;
  GumbelMax winner;
  const bool cuts = (params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size()) ||
                    params.top_p < 1 || params.min_p > 0;
  if (cuts) {
    Select(logits, max, params);
    for (const Candidate& candidate : candidates_) {
      const auto id = static_cast<uint32_t>(candidate.token);
      winner.Offer(candidate.token, candidate.logit / temperature,
                   GumbelBits(params.seed, request.position, id / 4)[id % 4]);
    }
    return winner.token;
  }
  // The likeliest token first: it sets a bar that spares most others their logarithms.
  const auto likeliest = static_cast<uint32_t>(FirstEqual(logits, max));
  winner.Offer(static_cast<int32_t>(likeliest), max / temperature,
               GumbelBits(params.seed, request.position, likeliest / 4)[likeliest % 4]);
  for (size_t first = 0; first < logits.size(); first += 4) {
    const auto bits = GumbelBits(params.seed, request.position, static_cast<uint32_t>(first / 4));
    const size_t end = std::min(first + 4, logits.size());
    for (size_t t = first; t < end; ++t) {
      if (logits[t] == kMinusInfinity) continue;
      winner.Offer(static_cast<int32_t>(t), logits[t] / temperature, bits[t - first]);
    }
  }
  return winner.token;
}

void Sampler::Select(absl::Span<const float> logits, float max, const SamplingParams& params) {
  const double temperature = params.temperature;
  const bool top_k = params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size();
  const bool top_p = params.top_p < 1;
  double total = 0;
  float floor = std::numeric_limits<float>::lowest();
  if (top_p && !top_k) {
    total = kernels_.sum_exp(logits.data(), static_cast<int64_t>(logits.size()), max,
                             params.temperature);
    // Tokens of probability below (1 - top_p) / vocabulary hold less than 1 - top_p together, so
    // the likelier ones reach top_p without them. The 0.01 is room for rounding.
    const double least = (1.0 - params.top_p) * total / static_cast<double>(logits.size());
    floor = std::max(floor, static_cast<float>(max + temperature * (std::log(least) - 0.01)));
  }
  candidates_.clear();
  for (size_t t = 0; t < logits.size(); ++t) {
    if (logits[t] >= floor) candidates_.push_back({logits[t], static_cast<int32_t>(t)});
  }
  if (top_k) {
    SortBest(static_cast<size_t>(params.top_k));
    candidates_.resize(std::min(candidates_.size(), static_cast<size_t>(params.top_k)));
    for (const Candidate& candidate : candidates_) {
      total += std::exp((double{candidate.logit} - max) / temperature);
    }
  }
  if (top_p) CutByTopP(params.top_p, total, max, temperature);
  if (params.min_p > 0) {
    const double least = max + temperature * std::log(double{params.min_p});
    std::erase_if(candidates_,
                  [&](const Candidate& c) { return c.logit < least && c.logit < max; });
  }
}

void Sampler::CutByTopP(double top_p, double total, float max, double temperature) {
  // Sorted in growing pieces: the nucleus is mostly small.
  double sum = 0;
  size_t sorted = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (i == sorted) {
      sorted = std::min(candidates_.size(), std::max<size_t>(64, sorted * 4));
      SortBest(sorted);
    }
    sum += std::exp((double{candidates_[i].logit} - max) / temperature);
    if (sum >= top_p * total) {
      candidates_.resize(i + 1);
      return;
    }
  }
}

void Sampler::SortBest(size_t count) {
  count = std::min(count, candidates_.size());
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<ptrdiff_t>(count),
                    candidates_.end(), [](const Candidate& a, const Candidate& b) {
                      return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
                    });
}

void Sampler::ReportLogprobs(absl::Span<const float> logits, float max, int32_t top_logprobs,
                             SampleResult& result) {
  const double sum = kernels_.sum_exp(logits.data(), static_cast<int64_t>(logits.size()), max, 1);
  const double log_sum = max + std::log(sum);
  result.logprob = static_cast<float>(logits[static_cast<size_t>(result.token)] - log_sum);
  if (top_logprobs == 0) return;
  candidates_.clear();
  for (size_t t = 0; t < logits.size(); ++t) {
    // What cannot come is no alternative.
    if (logits[t] != kMinusInfinity) candidates_.push_back({logits[t], static_cast<int32_t>(t)});
  }
  const size_t count = std::min(static_cast<size_t>(top_logprobs), candidates_.size());
  SortBest(count);
  for (size_t i = 0; i < count; ++i) {
    result.top.push_back(
        {candidates_[i].token, static_cast<float>(candidates_[i].logit - log_sum)});
  }
}

}  // namespace layercake::kernels
