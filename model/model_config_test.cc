#include "model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/gguf/testing/gguf_builder.h"
#include "model/gguf/testing/status_matchers.h"
#include "model/gguf/testing/tiny_model.h"

namespace layercake::model {
namespace {

using testing::BuildTinyModel;
using testing::GgufBuilder;
using testing::IsError;
using testing::TinyModelOptions;
using testing::Words;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

absl::StatusOr<ModelConfig> Read(const GgufBuilder& builder) {
  const std::vector<std::byte> bytes = builder.Build();
  const auto file = GgufFile::Parse(bytes, "test.gguf");
  if (!file.ok()) return file.status();
  return ReadModelConfig(file->metadata(), file->tensors());
}

// The tiny llama with one number replaced.
GgufBuilder With(const std::string& key, uint32_t value) {
  GgufBuilder builder = BuildTinyModel({});
  return builder.Remove(key).SetU32(key, value);
}

// The keys of a model and nothing else.
GgufBuilder Keys(const std::string& arch) {
  GgufBuilder builder;
  builder.SetString("general.architecture", arch)
      .SetU32(arch + ".block_count", 28)
      .SetU32(arch + ".embedding_length", 1024)
      .SetU32(arch + ".feed_forward_length", 3072)
      .SetU32(arch + ".context_length", 40960)
      .SetU32(arch + ".attention.head_count", 16)
      .SetU32(arch + ".attention.head_count_kv", 8)
      .SetF32(arch + ".attention.layer_norm_rms_epsilon", 1e-6f)
      .SetU32(arch + ".vocab_size", 151936);
  return builder;
}

TEST(ModelConfig, ReadsEveryArchitecture) {
  for (const char* arch : {"llama", "qwen2", "qwen3"}) {
    TinyModelOptions options;
    options.architecture = arch;
    options.tied_output = std::string(arch) == "qwen2";
    options.rope_factors = std::string(arch) == "llama";
    const auto config = Read(BuildTinyModel(options));
    ASSERT_OK(config);
    EXPECT_EQ(ArchitectureName(config->architecture), arch);
    EXPECT_EQ(config->n_layers, 4u);
    EXPECT_EQ(config->hidden_size, 64u);
    EXPECT_EQ(config->ffn_size, 96u);
    EXPECT_EQ(config->n_heads, 4u);
    EXPECT_EQ(config->n_kv_heads, 2u);
    EXPECT_EQ(config->head_dim, 16u);
    EXPECT_EQ(config->rope_dim, 16u);
    EXPECT_EQ(config->vocab_size, 320u);
    EXPECT_EQ(config->context_length, 512u);
    EXPECT_FLOAT_EQ(config->norm_eps, 1e-5f);
    EXPECT_EQ(config->rope_style,
              std::string(arch) == "llama" ? RopeStyle::kNorm : RopeStyle::kNeox);
    EXPECT_EQ(config->tied_output, options.tied_output);
    EXPECT_EQ(config->qkv_bias, std::string(arch) == "qwen2");
    EXPECT_EQ(config->qk_norm, std::string(arch) == "qwen3");
    EXPECT_EQ(config->has_rope_factors, options.rope_factors);
    EXPECT_EQ(config->rope_scaling.type, RopeScalingType::kNone);
  }
}

// CASES A7 (i): Qwen3-0.6B's queries are 2,048 wide, not 1,024.
TEST(ModelConfig, TakesHeadWidthFromKeyLength) {
  const auto config = Read(Keys("qwen3")
                               .SetU32("qwen3.attention.key_length", 128)
                               .SetU32("qwen3.attention.value_length", 128));
  ASSERT_OK(config);
  EXPECT_EQ(config->head_dim, 128u);
  EXPECT_EQ(config->q_size(), 2048u);
  EXPECT_EQ(config->kv_size(), 1024u);
  EXPECT_EQ(config->rope_dim, 128u);
  const auto narrow = Read(Keys("qwen3"));
  ASSERT_OK(narrow);
  EXPECT_EQ(narrow->head_dim, 64u);
  EXPECT_THAT(Read(Keys("qwen3").SetU32("qwen3.attention.key_length", 128)),
              IsError(kUnimplemented, Words{"key_length = 128", "value_length = 64"}));
}

TEST(ModelConfig, TakesPerLayerNumbersWhenAllAreEqual) {
  const std::string key = "llama.attention.head_count_kv";
  GgufBuilder builder = BuildTinyModel({}).Remove(key);
  const auto config = Read(GgufBuilder(builder).SetI32Array(key, std::vector<int32_t>(4, 2)));
  ASSERT_OK(config);
  EXPECT_EQ(config->n_kv_heads, 2u);
  EXPECT_THAT(Read(GgufBuilder(builder).SetI32Array(key, std::vector<int32_t>{2, 2, 4, 2})),
              IsError(kUnimplemented, Words{key, "2 for layer 0", "4 for layer 2"}));
  EXPECT_THAT(Read(GgufBuilder(builder).SetI32Array(key, std::vector<int32_t>{2, 2})),
              IsError(kInvalid, Words{key, "expected 4"}));
  // Without the key every head has its own keys and values.
  const auto plain = Read(builder);
  ASSERT_OK(plain);
  EXPECT_EQ(plain->n_kv_heads, 4u);
}

TEST(ModelConfig, RefusesOtherArchitecturesByName) {
  for (const char* arch : {"gemma3", "qwen3moe", "clip", "", "LLAMA"}) {
    EXPECT_THAT(Read(Keys(arch)),
                IsError(kUnimplemented, Words{"general.architecture", arch, "llama"}));
  }
  EXPECT_THAT(Read(Keys("llama").SetU32("llama.expert_count", 8)),
              IsError(kUnimplemented, Words{"llama.expert_count = 8"}));
  EXPECT_THAT(Read(Keys("qwen2").SetBool("qwen2.attention.causal", false)),
              IsError(kUnimplemented, Words{"qwen2.attention.causal"}));
  EXPECT_THAT(Read(Keys("llama").SetF32("llama.logit_scale", 0.5f)),
              IsError(kUnimplemented, Words{"llama.logit_scale = 0.5"}));
}

TEST(ModelConfig, RefusesNumbersOutsideTheirLimits) {
  struct Case {
    const char* key;
    uint32_t value;
  };
  const Case cases[] = {
      {"llama.block_count", 0},
      {"llama.block_count", 1025},
      {"llama.block_count", 0xFFFFFFFF},
      {"llama.embedding_length", 0},
      {"llama.embedding_length", 0x7FFFFFFF},
      {"llama.embedding_length", 63},  // no multiple of the heads
      {"llama.feed_forward_length", 0},
      {"llama.feed_forward_length", 0x7FFFFFFF},
      {"llama.context_length", 0},
      {"llama.context_length", 0x80000000},
      {"llama.attention.head_count", 0},
      {"llama.attention.head_count", 5000},
      {"llama.attention.head_count", 3},
      {"llama.attention.head_count_kv", 0},
      {"llama.attention.head_count_kv", 3},
      {"llama.attention.head_count_kv", 8},
      {"llama.attention.key_length", 0},
      {"llama.attention.key_length", 2048},
      {"llama.rope.dimension_count", 0},
      {"llama.rope.dimension_count", 15},
      {"llama.rope.dimension_count", 18},
      {"llama.rope.freq_base", 0},
  };
  for (const Case& one : cases) {
    EXPECT_THAT(Read(With(one.key, one.value)), IsError(kInvalid, Words{one.key})) << one.key;
  }
  EXPECT_THAT(
      Read(With("llama.attention.key_length", 15).SetU32("llama.attention.value_length", 15)),
      IsError(kInvalid, Words{"15 wide"}));
  const std::string eps = "llama.attention.layer_norm_rms_epsilon";
  for (const float bad : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity()}) {
    EXPECT_THAT(Read(BuildTinyModel({}).Remove(eps).SetF32(eps, bad)),
                IsError(kInvalid, Words{eps}));
  }
}

TEST(ModelConfig, NamesMissingKeys) {
  for (const char* key :
       {"llama.block_count", "llama.embedding_length", "llama.feed_forward_length",
        "llama.context_length", "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon", "general.architecture"}) {
    EXPECT_THAT(Read(BuildTinyModel({}).Remove(key)),
                IsError(absl::StatusCode::kNotFound, Words{key}));
  }
}

// CASES G2.
TEST(ModelConfig, ReadsRopeScaling) {
  const std::string p = "qwen2.rope.scaling.";
  const auto yarn = Read(Keys("qwen2")
                             .SetString(p + "type", "yarn")
                             .SetF32(p + "factor", 4.0f)
                             .SetU32(p + "original_context_length", 32768)
                             .SetF32(p + "yarn_beta_fast", 16.0f)
                             .SetF32(p + "yarn_beta_slow", 2.0f)
                             .SetF32(p + "yarn_attn_factor", 0.5f)
                             .SetF32(p + "yarn_ext_factor", 0.75f));
  ASSERT_OK(yarn);
  EXPECT_EQ(yarn->rope_scaling.type, RopeScalingType::kYarn);
  EXPECT_EQ(yarn->rope_scaling.factor, 4.0);
  EXPECT_EQ(yarn->rope_scaling.original_context_length, 32768u);
  EXPECT_EQ(yarn->rope_scaling.beta_fast, 16.0);
  EXPECT_EQ(yarn->rope_scaling.beta_slow, 2.0);
  EXPECT_EQ(yarn->rope_scaling.attn_factor, 0.5);
  EXPECT_EQ(yarn->rope_scaling.ext_factor, 0.75);

  const auto linear = Read(Keys("qwen2").SetF32("qwen2.rope.scale_linear", 2.0f));
  ASSERT_OK(linear);
  EXPECT_EQ(linear->rope_scaling.type, RopeScalingType::kLinear);
  EXPECT_EQ(linear->rope_scaling.factor, 2.0);

  const auto none = Read(Keys("qwen2").SetString(p + "type", "none").SetF32(p + "factor", 2.0f));
  ASSERT_OK(none);
  EXPECT_EQ(none->rope_scaling.type, RopeScalingType::kNone);
  EXPECT_EQ(none->rope_scaling.factor, 1.0);
}

TEST(ModelConfig, RefusesUnknownRopeScaling) {
  const std::string p = "qwen2.rope.scaling.";
  for (const char* type : {"longrope", "dynamic", "llama3", ""}) {
    EXPECT_THAT(Read(Keys("qwen2").SetString(p + "type", type)),
                IsError(kUnimplemented, Words{p + "type", type}));
  }
  EXPECT_THAT(Read(Keys("qwen2").SetF32(p + "factor", -4.0f)),
              IsError(kInvalid, Words{p + "factor"}));
  EXPECT_THAT(Read(Keys("qwen2").SetF32(p + "factor", std::numeric_limits<float>::quiet_NaN())),
              IsError(kInvalid, Words{p + "factor"}));
}

}  // namespace
}  // namespace layercake::model
