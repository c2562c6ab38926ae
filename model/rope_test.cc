#include "model/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/gguf/testing/status_matchers.h"

namespace layercake::model {
namespace {

using testing::IsError;
using testing::Words;

ModelConfig PlainConfig(uint32_t rope_dim, double base) {
  ModelConfig config;
  config.rope_dim = rope_dim;
  config.head_dim = rope_dim;
  config.rope_base = base;
  config.context_length = 32768;
  return config;
}

ModelConfig YarnConfig() {
  ModelConfig config = PlainConfig(128, 1e6);
  config.rope_scaling.type = RopeScalingType::kYarn;
  config.rope_scaling.factor = 4.0;
  config.rope_scaling.original_context_length = 32768;
  return config;
}

// CASES G2: cosines and sines at positions 0, 1k, 9k and 40k as transformers has them.
TEST(Rope, EqualsTheReferenceAtFarPositions) {
  std::ifstream file(LAYERCAKE_SOURCE_DIR "/tests/reference/goldens/rope.json");
  ASSERT_TRUE(file.good());
  const nlohmann::json golden = nlohmann::json::parse(file);
  ASSERT_GE(golden["cases"].size(), 6u);
  for (const auto& one : golden["cases"]) {
    SCOPED_TRACE(one["name"].get<std::string>());
    const auto& rope = one["rope"];
    ModelConfig config = PlainConfig(one["head_dim"], rope["rope_theta"]);
    const std::string type = rope["rope_type"];
    if (type == "yarn" || type == "linear") config.rope_scaling.factor = rope["factor"];
    if (type == "linear") config.rope_scaling.type = RopeScalingType::kLinear;
    if (type == "yarn") {
      config.rope_scaling.type = RopeScalingType::kYarn;
      config.rope_scaling.original_context_length = rope["original_max_position_embeddings"];
    }
    const auto factors = one.value("rope_freqs", std::vector<float>());
    EXPECT_EQ(factors.empty(), type != "llama3");
    const auto table = ComputeRopeTable(config, factors);
    ASSERT_OK(table);
    EXPECT_NEAR(table->magnitude_scale, one["mscale"].get<double>(), 1e-6);
    const auto inv_freq = one["inv_freq"].get<std::vector<double>>();
    ASSERT_EQ(table->inv_freq.size(), inv_freq.size());
    for (size_t j = 0; j < inv_freq.size(); ++j) {
      EXPECT_NEAR(table->inv_freq[j], inv_freq[j], 1e-6 * inv_freq[j]) << j;
    }
    for (const auto& at : one["angles"]) {
      const double position = at["position"];
      const double tolerance = at["tolerance"];
      SCOPED_TRACE(position);
      for (size_t j = 0; j < inv_freq.size(); ++j) {
        const double angle = position * static_cast<double>(table->inv_freq[j]);
        EXPECT_NEAR(std::cos(angle) * table->magnitude_scale, at["cos"][j].get<double>(), tolerance)
            << j;
        EXPECT_NEAR(std::sin(angle) * table->magnitude_scale, at["sin"][j].get<double>(), tolerance)
            << j;
      }
    }
  }
}

// CASES G2: Qwen2.5 with YaRN, factor 4, original context 32,768. In double precision
// (Python): corr dims 23 and 40.
TEST(Rope, MixesYarnFrequenciesOverTheRamp) {
  const auto table = ComputeRopeTable(YarnConfig(), {});
  ASSERT_OK(table);
  EXPECT_NEAR(table->magnitude_scale, 1.1386294361119891, 1e-7);
  for (int j = 0; j < 64; ++j) {
    const double plain = std::pow(1e6, -2.0 * j / 128.0);
    const double ramp = j <= 23 ? 0.0 : j >= 40 ? 1.0 : (j - 23) / 17.0;
    const double wanted = plain / 4.0 * ramp + plain * (1.0 - ramp);
    EXPECT_NEAR(table->inv_freq[static_cast<size_t>(j)], wanted, 1e-7 * wanted) << j;
  }
}

TEST(Rope, AppliesEveryYarnParameter) {
  ModelConfig config = YarnConfig();
  config.rope_scaling.ext_factor = 0.0;  // plain interpolation, no change of magnitude
  config.rope_scaling.attn_factor = 0.5;
  const auto table = ComputeRopeTable(config, {});
  ASSERT_OK(table);
  EXPECT_EQ(table->magnitude_scale, 0.5f);
  EXPECT_FLOAT_EQ(table->inv_freq[0], 0.25f);

  config.rope_scaling.ext_factor = 1.0;
  config.rope_scaling.attn_factor = 1.0;
  config.rope_scaling.log_multiplier = 1.0;
  EXPECT_FLOAT_EQ(ComputeRopeTable(config, {})->magnitude_scale, 1.0f);

  config = YarnConfig();
  config.rope_scaling.beta_fast = 64.0;
  const auto wider = ComputeRopeTable(config, {});
  EXPECT_NE(wider->inv_freq[22], ComputeRopeTable(YarnConfig(), {})->inv_freq[22]);
}

TEST(Rope, DividesByFactorsAndScale) {
  const std::vector<float> factors = {1.0f, 2.0f, 4.0f, 8.0f};
  ModelConfig config = PlainConfig(8, 10000.0);
  config.rope_scaling.type = RopeScalingType::kLinear;
  config.rope_scaling.factor = 2.0;
  const auto table = ComputeRopeTable(config, factors);
  ASSERT_OK(table);
  EXPECT_THAT(table->inv_freq,
              ::testing::Pointwise(::testing::FloatEq(), {0.5f, 0.1f / 4, 0.01f / 8, 0.001f / 16}));
  EXPECT_EQ(table->magnitude_scale, 1.0f);
}

TEST(Rope, RefusesFactorsThatAreNone) {
  const ModelConfig config = PlainConfig(8, 10000.0);
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(ComputeRopeTable(config, std::vector<float>(3, 1.0f)),
              IsError(kInvalid, Words{"3 factors", "expected 4"}));
  for (const float bad : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THAT(ComputeRopeTable(config, std::vector<float>{1.0f, 1.0f, bad, 1.0f}),
                IsError(kInvalid, Words{"rope_freqs.weight[2]"}));
  }
}

}  // namespace
}  // namespace layercake::model
