#include "model/gguf/tokenizer_metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "model/gguf/gguf_file.h"
#include "model/gguf/testing/gguf_builder.h"
#include "model/gguf/testing/status_matchers.h"
#include "model/gguf/testing/tiny_model.h"

namespace layercake::model {
namespace {

using testing::GgufBuilder;
using testing::IsError;
using testing::Words;

absl::StatusOr<TokenizerSpec> Load(const GgufBuilder& builder) {
  const std::vector<std::byte> bytes = builder.Build();
  const auto file = GgufFile::Parse(bytes, "test.gguf");
  if (!file.ok()) return file.status();
  return LoadTokenizerSpec(file->metadata());
}

TEST(TokenizerMetadata, ReadsTheTinyModel) {
  const auto spec = Load(testing::BuildTinyModel({}));
  ASSERT_OK(spec);
  EXPECT_EQ(spec->model, "gpt2");
  EXPECT_EQ(spec->pre, "gpt-2");
  ASSERT_EQ(spec->tokens.size(), 320u);
  EXPECT_EQ(spec->tokens['A'], "A");
  EXPECT_EQ(spec->tokens[' '], "\u0120");
  EXPECT_EQ(spec->tokens[319], "<|im_end|>");
  EXPECT_EQ(spec->token_types.size(), 320u);
  EXPECT_EQ(spec->token_types[319], static_cast<int32_t>(TokenType::kControl));
  EXPECT_THAT(spec->merges, ::testing::Contains("th e"));
  EXPECT_EQ(spec->bos_id, 317);
  EXPECT_EQ(spec->eos_id, 319);
  EXPECT_EQ(spec->unknown_id, std::nullopt);
  EXPECT_EQ(spec->add_bos, false);
  EXPECT_EQ(spec->add_eos, std::nullopt);
}

TEST(TokenizerMetadata, KeepsSpecialIdsAsWritten) {
  const auto spec = Load(testing::BuildTinyModel({})
                             .Remove("tokenizer.ggml.eos_token_id")
                             .SetU32("tokenizer.ggml.eos_token_id", 4294967295u));
  ASSERT_OK(spec);
  EXPECT_EQ(spec->eos_id, 4294967295);
}

TEST(TokenizerMetadata, RefusesMissingAndMisfitKeys) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  GgufBuilder builder = testing::BuildTinyModel({});
  EXPECT_THAT(Load(GgufBuilder(builder).Remove("tokenizer.ggml.tokens")),
              IsError(absl::StatusCode::kNotFound, Words{"tokenizer.ggml.tokens"}));
  EXPECT_THAT(Load(GgufBuilder(builder).Remove("tokenizer.ggml.model")),
              IsError(absl::StatusCode::kNotFound, Words{"tokenizer.ggml.model"}));
  EXPECT_THAT(
      Load(GgufBuilder(builder).SetF32Array("tokenizer.ggml.scores", std::vector<float>(3))),
      IsError(kInvalid, Words{"tokenizer.ggml.scores has 3", "320"}));
  EXPECT_THAT(Load(GgufBuilder(builder)
                       .Remove("tokenizer.ggml.token_type")
                       .SetI32Array("tokenizer.ggml.token_type", std::vector<int32_t>(321))),
              IsError(kInvalid, Words{"tokenizer.ggml.token_type has 321", "320"}));
  EXPECT_THAT(Load(GgufBuilder(builder)
                       .Remove("tokenizer.ggml.bos_token_id")
                       .SetString("tokenizer.ggml.bos_token_id", "1")),
              IsError(kInvalid, Words{"bos_token_id", "string"}));
}

TEST(TokenizerMetadata, ReadsChatTemplates) {
  GgufBuilder builder = testing::BuildTinyModel({});
  builder.SetString("tokenizer.chat_template.tool_use", "tools {{ x }}")
      .SetStringArray("tokenizer.chat_templates", std::vector<std::string>{"tool_use"});
  const std::vector<std::byte> bytes = builder.Build();
  const auto file = GgufFile::Parse(bytes, "test.gguf");
  ASSERT_OK(file);
  const auto templates = LoadChatTemplates(file->metadata());
  ASSERT_OK(templates);
  EXPECT_THAT(templates->default_template, ::testing::HasSubstr("<|im_start|>"));
  ASSERT_EQ(templates->named.size(), 1u);
  EXPECT_EQ(templates->named[0].name, "tool_use");
  EXPECT_EQ(templates->named[0].source, "tools {{ x }}");
}

TEST(TokenizerMetadata, ReadsVocabularyOnlyFiles) {
  const std::filesystem::path folder =
      std::filesystem::path(LAYERCAKE_SOURCE_DIR) / ".." / "shared" / "data" / "vocab";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no vocabulary files at " << folder;
  struct Case {
    const char* name;
    const char* model;
    size_t tokens;
  };
  const Case cases[] = {{"ggml-vocab-gpt-2.gguf", "gpt2", 50257},
                        {"ggml-vocab-llama-bpe.gguf", "gpt2", 128256},
                        {"ggml-vocab-llama-spm.gguf", "llama", 32000},
                        {"ggml-vocab-qwen2.gguf", "gpt2", 151936}};
  for (const Case& one : cases) {
    const auto file = GgufFile::Open((folder / one.name).string());
    ASSERT_OK(file);
    EXPECT_TRUE(file->tensors().empty());
    const auto spec = LoadTokenizerSpec(file->metadata());
    ASSERT_OK(spec);
    EXPECT_EQ(spec->model, one.model);
    EXPECT_EQ(spec->tokens.size(), one.tokens) << one.name;
  }
}

}  // namespace
}  // namespace layercake::model
