#include "coordinator/sampling_rules.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/errors.h"

namespace layercake::coordinator {
namespace {

absl::Status OutOfRange(absl::string_view param, double value, absl::string_view range) {
  return MakeError(ErrorReason::kInvalidParameter,
                   absl::StrCat(param, " is ", value, "; it must be ", range), param);
}

}  // namespace

absl::Status CheckSampling(const v1::SamplingParams& params) {
  // Written so that a NaN fails: every comparison with one is false.
  const auto within = [](float value, float low, float high) {
    return value >= low && value <= high;
  };
  if (params.has_temperature() &&
      !(params.temperature() >= 0.0f && std::isfinite(params.temperature()))) {
    return OutOfRange("temperature", params.temperature(), "a finite number of at least 0");
  }
  if (params.has_top_k() && params.top_k() < 0) {
    return OutOfRange("top_k", params.top_k(), "at least 0 (0 turns it off)");
  }
  if (params.has_top_p() && !(params.top_p() > 0.0f && params.top_p() <= 1.0f)) {
    return OutOfRange("top_p", params.top_p(), "above 0 and at most 1 (1 turns it off)");
  }
  if (params.has_min_p() && !within(params.min_p(), 0.0f, 1.0f)) {
    return OutOfRange("min_p", params.min_p(), "0 to 1 (0 turns it off)");
  }
  if (params.has_repetition_penalty() &&
      !(params.repetition_penalty() > 0.0f && std::isfinite(params.repetition_penalty()))) {
    return OutOfRange("repetition_penalty", params.repetition_penalty(),
                      "a finite number above 0 (1 turns it off)");
  }
  if (params.has_presence_penalty() && !within(params.presence_penalty(), -2.0f, 2.0f)) {
    return OutOfRange("presence_penalty", params.presence_penalty(), "-2 to 2");
  }
  if (params.has_frequency_penalty() && !within(params.frequency_penalty(), -2.0f, 2.0f)) {
    return OutOfRange("frequency_penalty", params.frequency_penalty(), "-2 to 2");
  }
  return absl::OkStatus();
}

v1::ResolvedSampling Resolve(const v1::SamplingParams& asked, const v1::SamplingParams& defaults,
                             uint64_t random_seed) {
  v1::SamplingParams merged;
  merged.set_temperature(0.8f);
  merged.set_top_k(40);
  merged.set_top_p(0.95f);
  merged.set_min_p(0.05f);
  merged.set_repetition_penalty(1.0f);
  merged.set_presence_penalty(0.0f);
  merged.set_frequency_penalty(0.0f);
  merged.set_seed(random_seed);
  // Optional fields: the later one wins where it is set, even to zero.
  merged.MergeFrom(defaults);
  merged.MergeFrom(asked);

  v1::ResolvedSampling resolved;
  resolved.set_temperature(merged.temperature());
  resolved.set_top_k(merged.top_k());
  resolved.set_top_p(merged.top_p());
  resolved.set_min_p(merged.min_p());
  resolved.set_repetition_penalty(merged.repetition_penalty());
  resolved.set_presence_penalty(merged.presence_penalty());
  resolved.set_frequency_penalty(merged.frequency_penalty());
  resolved.set_seed(merged.seed());
  resolved.set_top_logprobs(-1);
  return resolved;
}

absl::StatusOr<v1::SamplingParams> SamplingDefaults(const model::Metadata& metadata) {
  v1::SamplingParams defaults;
  const auto read_float = [&](absl::string_view key, auto set) -> absl::Status {
    if (!metadata.Has(key)) return absl::OkStatus();
    LC_ASSIGN_OR_RETURN(const double value, metadata.GetFloat(key));
    (defaults.*set)(static_cast<float>(value));
    return absl::OkStatus();
  };
  LC_RETURN_IF_ERROR(read_float("general.sampling.temp", &v1::SamplingParams::set_temperature));
  LC_RETURN_IF_ERROR(read_float("general.sampling.top_p", &v1::SamplingParams::set_top_p));
  LC_RETURN_IF_ERROR(read_float("general.sampling.min_p", &v1::SamplingParams::set_min_p));
  LC_RETURN_IF_ERROR(
      read_float("general.sampling.penalty_repeat", &v1::SamplingParams::set_repetition_penalty));
  if (metadata.Has("general.sampling.top_k")) {
    LC_ASSIGN_OR_RETURN(const int64_t top_k, metadata.GetI64("general.sampling.top_k"));
    // A vocabulary has at most 2^22 tokens: more means all of them, as 0 does.
    defaults.set_top_k(top_k > (1 << 22) ? 0 : top_k < 0 ? -1 : static_cast<int32_t>(top_k));
  }
  if (const absl::Status status = CheckSampling(defaults); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model file's general.sampling.* defaults: ", status.message()));
  }
  return defaults;
}

}  // namespace layercake::coordinator
