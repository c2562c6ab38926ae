// Ranges and defaults of the sampling parameters. Pure functions; any thread.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "layercake/v1/control.pb.h"
#include "layercake/v1/types.pb.h"
#include "model/gguf/metadata.h"

namespace layercake::coordinator {

// MakeError(kInvalidParameter) naming the first field that is out of the range that types.proto
// states; NaN and infinities always are.
absl::Status CheckSampling(const v1::SamplingParams& params);

// Every field of `asked` that is set, else of `defaults`, else the value in types.proto. Both have
// passed CheckSampling. `random_seed` is used when nobody chose one; top_logprobs is left at -1.
v1::ResolvedSampling Resolve(const v1::SamplingParams& asked, const v1::SamplingParams& defaults,
                             uint64_t random_seed);

// The general.sampling.* keys of a model file: temp, top_k, top_p, min_p, penalty_repeat.
// InvalidArgument names a key that holds another type or a value out of range.
absl::StatusOr<v1::SamplingParams> SamplingDefaults(const model::Metadata& metadata);

}  // namespace layercake::coordinator
