// Chooses tokens by the rule of kernels/sampling.h.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/sampling.h"

namespace layercake::kernels {

// One thread at a time; keeps its scratch memory between calls.
class Sampler {
 public:
  explicit Sampler(const CpuKernels& kernels) : kernels_(kernels) {}

  // `logits` is one row; seen tokens and the mask fit its length (the caller has checked).
  SampleResult Sample(absl::Span<const float> logits, const SampleRequest& request);

 private:
  struct Candidate {
    float logit;
    int32_t token;
  };

  // Penalties and mask applied, or `logits` itself when there are none.
  absl::Span<const float> Adjusted(absl::Span<const float> logits, const SampleRequest& request);
  int32_t Draw(absl::Span<const float> logits, float max, const SampleRequest& request);
  // Fills candidates_ with the tokens of logit >= floor, then cuts by top_k and top_p, best first.
  void Select(absl::Span<const float> logits, float max, const SamplingParams& params);
  void CutByTopP(double top_p, double total, float max, double temperature);
  void ReportLogprobs(absl::Span<const float> logits, float max, int32_t top_logprobs,
                      SampleResult& result);
  // The `count` best of candidates_, best first, at its front.
  void SortBest(size_t count);

  const CpuKernels& kernels_;
  std::vector<float> adjusted_;
  std::vector<Candidate> candidates_;
};

}  // namespace layercake::kernels
