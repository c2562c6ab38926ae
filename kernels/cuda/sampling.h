// The sampling rule of kernels/sampling.h on the device. A cluster of eight blocks takes a row,
// each with a slice of it in shared memory; where there are no clusters, or a slice is too large,
// one block works on the row where it lies.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"

namespace layercake::kernels::cuda {

inline constexpr int kOutcomeLogprobs = 20;

struct DeviceSeenToken {
  int32_t token;
  int32_t output_count;
};

// One request, with device addresses.
struct SampleJob {
  uint64_t seed;
  uint64_t position;
  const DeviceSeenToken* seen;
  float* seen_raw;          // (seen_count): scratch, for the logits before penalties
  const uint32_t* allowed;  // null: all
  int32_t seen_count;       // 0 without penalties
  int32_t logits_row;
  int32_t top_logprobs;  // -1: none
  int32_t top_k;         // 0: off
  float temperature;
  float top_p;
  float min_p;
  float repetition_penalty;
  float presence_penalty;
  float frequency_penalty;
};

struct alignas(16) SampleOutcome {
  int32_t token;
  int32_t non_finite;
  float logprob;
  int32_t top_count;
  int32_t top_token[kOutcomeLogprobs];
  float top_logprob[kOutcomeLogprobs];
};

// Once per device, before the first launch: lets the kernels use its shared memory.
cudaError_t PrepareSampling(const Context& context);

// outcomes[i] from jobs[i]; no two jobs have one row. `outcomes` may be host memory that the device
// writes to; of top_* the first top_count are written. One block alone applies penalties in place
// and takes them back. `greedy`: every job has temperature 0, no penalty, no mask and no
// log-probability.
cudaError_t LaunchSample(const Context& context, float* logits, int64_t vocabulary,
                         const SampleJob* jobs, int count, bool greedy, SampleOutcome* outcomes);

}  // namespace layercake::kernels::cuda
