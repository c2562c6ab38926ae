#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace layercake::model {
namespace {

// The pair whose wavelength makes `rotations` turns over the original context (arXiv 2309.00071,
// section 3.2, solved for the index).
double PairOfRotations(const ModelConfig& config, double rotations) {
  const double context = config.rope_scaling.original_context_length;
  return config.rope_dim * std::log(context / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(config.rope_base));
}

// 1 for pairs that turn fast (left alone), 0 for slow ones (stretched), a ramp between.
class YarnRamp {
 public:
  explicit YarnRamp(const ModelConfig& config) {
    const double last = config.rope_dim - 1.0;
    start_ =
        std::clamp(std::floor(PairOfRotations(config, config.rope_scaling.beta_fast)), 0.0, last);
    end_ = std::clamp(std::ceil(PairOfRotations(config, config.rope_scaling.beta_slow)), 0.0, last);
  }
  double At(uint32_t pair) const {
    return 1.0 - std::clamp((pair - start_) / std::max(0.001, end_ - start_), 0.0, 1.0);
  }

 private:
  double start_ = 0.0;
  double end_ = 0.0;
};

double MagnitudeOf(double factor, double multiplier) {
  return factor <= 1.0 ? 1.0 : 1.0 + 0.1 * multiplier * std::log(factor);
}

double MagnitudeScale(const RopeScaling& scaling) {
  if (scaling.type != RopeScalingType::kYarn) return 1.0;
  if (scaling.ext_factor == 0.0) return scaling.attn_factor;
  double magnitude = MagnitudeOf(scaling.factor, 1.0);
  if (scaling.log_multiplier != 0.0) {
    magnitude /= MagnitudeOf(scaling.factor, scaling.log_multiplier);
  }
  return scaling.attn_factor * magnitude;
}

}  // namespace

absl::StatusOr<RopeTable> ComputeRopeTable(const ModelConfig& config,
                                           absl::Span<const float> rope_factors) {
  const uint32_t pairs = config.rope_dim / 2;
  if (!rope_factors.empty() && rope_factors.size() != pairs) {
    return absl::InvalidArgumentError(absl::StrCat("rope_freqs.weight has ", rope_factors.size(),
                                                   " factors, expected ", pairs,
                                                   " (half of rope.dimension_count)"));
  }
  const RopeScaling& scaling = config.rope_scaling;
  const bool yarn = scaling.type == RopeScalingType::kYarn;
  const YarnRamp ramp(config);
  RopeTable table;
  table.magnitude_scale = static_cast<float>(MagnitudeScale(scaling));
  table.inv_freq.reserve(pairs);
  for (uint32_t pair = 0; pair < pairs; ++pair) {
    double frequency = std::pow(config.rope_base, -2.0 * pair / config.rope_dim);
    if (!rope_factors.empty()) {
      const double divisor = rope_factors[pair];
      if (!(divisor > 0.0) || !std::isfinite(divisor)) {
        return absl::InvalidArgumentError(absl::StrCat("rope_freqs.weight[", pair, "] = ", divisor,
                                                       ", expected a positive number"));
      }
      frequency /= divisor;
    }
    const double stretched = frequency / scaling.factor;
    const double keep = yarn ? ramp.At(pair) * scaling.ext_factor : 0.0;
    table.inv_freq.push_back(static_cast<float>(stretched * (1.0 - keep) + frequency * keep));
  }
  return table;
}

}  // namespace layercake::model
