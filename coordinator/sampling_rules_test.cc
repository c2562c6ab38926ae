#include "coordinator/sampling_rules.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/gguf/gguf_file.h"
#include "model/gguf/testing/gguf_builder.h"
#include "proto/errors.h"

namespace layercake::coordinator {
namespace {

using Params = v1::SamplingParams;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(SamplingRules, NamesTheFieldThatIsOutOfRange) {
  const struct {
    const char* param;
    void (Params::*set)(float);
    std::vector<float> refused;
    std::vector<float> accepted;
  } rows[] = {
      {"temperature", &Params::set_temperature, {kNan, -1, -1e-9f, kInfinity}, {0, 1e-3f, 2, 100}},
      {"top_p", &Params::set_top_p, {kNan, 0, -0.1f, 1.0001f, kInfinity}, {1e-6f, 0.5f, 1}},
      {"min_p", &Params::set_min_p, {kNan, -0.1f, 1.0001f, -kInfinity}, {0, 0.5f, 1}},
      {"repetition_penalty",
       &Params::set_repetition_penalty,
       {kNan, 0, -1, kInfinity},
       {0.1f, 1, 2}},
      {"presence_penalty", &Params::set_presence_penalty, {kNan, -2.01f, 2.01f}, {-2, 0, 2}},
      {"frequency_penalty", &Params::set_frequency_penalty, {kNan, -2.01f, 2.01f}, {-2, 0, 2}},
  };
  for (const auto& row : rows) {
    for (const float value : row.refused) {
      Params params;
      (params.*row.set)(value);
      const absl::Status status = CheckSampling(params);
      EXPECT_EQ(ReasonOf(status), ErrorReason::kInvalidParameter) << row.param << " " << value;
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.param << " " << value;
      EXPECT_EQ(ParamOf(status), row.param);
    }
    for (const float value : row.accepted) {
      Params params;
      (params.*row.set)(value);
      EXPECT_TRUE(CheckSampling(params).ok()) << row.param << " " << value;
    }
  }
  Params params;
  params.set_top_k(-1);
  EXPECT_EQ(ParamOf(CheckSampling(params)), "top_k");
  params.set_top_k(0);
  EXPECT_TRUE(CheckSampling(params).ok());
}

TEST(SamplingRules, ZeroIsAValueAndAbsentIsADefault) {
  const v1::ResolvedSampling plain = Resolve({}, {}, 99);
  EXPECT_FLOAT_EQ(plain.temperature(), 0.8f);
  EXPECT_EQ(plain.top_k(), 40);
  EXPECT_FLOAT_EQ(plain.top_p(), 0.95f);
  EXPECT_FLOAT_EQ(plain.min_p(), 0.05f);
  EXPECT_FLOAT_EQ(plain.repetition_penalty(), 1.0f);
  EXPECT_FLOAT_EQ(plain.presence_penalty(), 0.0f);
  EXPECT_FLOAT_EQ(plain.frequency_penalty(), 0.0f);
  EXPECT_EQ(plain.seed(), 99u);
  EXPECT_EQ(plain.top_logprobs(), -1);

  Params model;
  model.set_temperature(0.6f);
  model.set_top_k(20);
  Params asked;
  asked.set_temperature(0.0f);
  asked.set_min_p(0.0f);
  asked.set_seed(0);
  const v1::ResolvedSampling resolved = Resolve(asked, model, 99);
  EXPECT_EQ(resolved.temperature(), 0.0f);
  EXPECT_EQ(resolved.top_k(), 20);
  EXPECT_EQ(resolved.min_p(), 0.0f);
  EXPECT_EQ(resolved.seed(), 0u);
}

absl::StatusOr<Params> DefaultsOf(const model::testing::GgufBuilder& builder) {
  const std::vector<std::byte> bytes = builder.Build();
  const auto file = model::GgufFile::Parse(bytes, "test");
  return SamplingDefaults(file.value().metadata());
}

TEST(SamplingRules, TakesTheModelFilesOwnDefaults) {
  model::testing::GgufBuilder builder;
  builder.SetF32("general.sampling.temp", 0.6f).SetI32("general.sampling.top_k", 20);
  builder.SetF32("general.sampling.top_p", 0.9f);
  const auto defaults = DefaultsOf(builder);
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_FLOAT_EQ(defaults->temperature(), 0.6f);
  EXPECT_EQ(defaults->top_k(), 20);
  EXPECT_FLOAT_EQ(defaults->top_p(), 0.9f);
  EXPECT_FALSE(defaults->has_min_p());
  EXPECT_FALSE(defaults->has_repetition_penalty());
}

TEST(SamplingRules, RefusesAModelFileWhoseDefaultsAreNonsense) {
  EXPECT_EQ(DefaultsOf(model::testing::GgufBuilder().SetF32("general.sampling.temp", kNan))
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DefaultsOf(model::testing::GgufBuilder().SetString("general.sampling.top_p", "high"))
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DefaultsOf(model::testing::GgufBuilder().SetI32("general.sampling.top_k", -5))
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace layercake::coordinator
