// From logits to a token: one rule for every backend.
//
// Order: penalties -> temperature -> top_k -> top_p -> min_p -> draw. Log-probabilities reported
// are those of the raw logits (before penalties and temperature).
//   repetition: seen tokens (prompt or output): logit > 0 ? logit / r : logit * r
//   presence, frequency: logit -= presence * (count > 0) + frequency * count, count over output
//   greedy (temperature 0): the largest logit, the lowest id on ties
//   draw: argmax over the kept tokens of logit / T + Gumbel(seed, position, token), where the noise
//   is counter based (Philox 4x32-10, Salmon et al. 2011), so a draw depends on nothing else.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace layercake::kernels {

// The most alternatives of one token whose log-probabilities a backend must report.
inline constexpr int kMaxTopLogprobs = 20;

struct SamplingParams {
  float temperature = 0;  // 0: greedy
  int32_t top_k = 0;      // 0: off
  float top_p = 1;        // 1: off
  float min_p = 0;        // 0: off; keeps p >= min_p * max p
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  uint64_t seed = 0;
};

// A token that the sequence holds already.
struct SeenToken {
  int32_t token = 0;
  int32_t output_count = 0;  // times in the output; 0: in the prompt only
};

struct SampleRequest {
  int32_t logits_row = 0;
  SamplingParams params;
  uint64_t position = 0;             // of the token drawn, in its sequence
  absl::Span<const SeenToken> seen;  // each token once; empty when no penalty is set
  int32_t top_logprobs = -1;  // -1: no log-probability; n >= 0: the token's own and the n best
  // Bit t % 32 of word t / 32 allows token t. Empty: all allowed. Else ceil(vocabulary / 32) words.
  absl::Span<const uint32_t> allowed;
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

struct SampleResult {
  int32_t token = -1;
  bool non_finite = false;  // a NaN or +infinity among the logits (or nothing allowed): no token
  float logprob = 0;
  std::vector<TokenLogprob> top;  // descending, lowest id first on ties
};

}  // namespace layercake::kernels
