#include "model/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "model/gguf/testing/gguf_builder.h"
#include "model/gguf/testing/status_matchers.h"
#include "model/gguf/testing/tiny_model.h"

namespace layercake::model {
namespace {

using testing::BuildTinyModel;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::IsError;
using testing::TinyModelOptions;
using testing::Words;

// Models whose bytes are in memory.
class InspectTest : public ::testing::Test {
 protected:
  absl::StatusOr<ModelFiles> Load(const GgufBuilder& builder) {
    kept_.push_back(builder.Build());
    auto file = GgufFile::Parse(kept_.back(), "test.gguf");
    if (!file.ok()) return file.status();
    std::vector<GgufFile> shards;
    shards.push_back(*std::move(file));
    return ModelFiles::FromShards(std::move(shards));
  }
  absl::Status Check(const GgufBuilder& builder) {
    const auto files = Load(builder);
    return files.ok() ? CheckModel(*files) : files.status();
  }

 private:
  std::vector<std::vector<std::byte>> kept_;
};

TEST_F(InspectTest, FindsTinyModelsOfEveryArchitectureGood) {
  for (const char* arch : {"llama", "qwen2", "qwen3"}) {
    for (const bool odd : {false, true}) {
      TinyModelOptions options;
      options.architecture = arch;
      options.tied_output = odd;
      options.fused_qkv = odd;
      options.rope_factors = odd;
      options.yarn_factor = odd ? 4.0 : 0.0;
      options.head_dim = odd ? 32 : 16;
      EXPECT_TRUE(Check(BuildTinyModel(options)).ok()) << Check(BuildTinyModel(options));
    }
  }
}

TEST_F(InspectTest, PrintsMetadataTensorsAndSizes) {
  TinyModelOptions options;
  options.matrix_type = TensorType::kQ8_0;
  GgufBuilder builder = BuildTinyModel(options);
  builder.SetString("general.description", "\x1b[2Jhostile");
  const auto files = Load(builder);
  ASSERT_OK(files);
  const std::string text = InspectModel(*files, {});
  for (const char* part :
       {"test.gguf", "general.architecture = \"llama\"", "... 314 more]", "blk.3.ffn_down.weight",
        "{96, 64}", "Q8_0", "layer 3", "outside layers", "check     good"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_EQ(text.find('\x1b'), std::string::npos);

  InspectOptions json_options;
  json_options.json = true;
  const auto json = nlohmann::json::parse(InspectModel(*files, json_options));
  EXPECT_EQ(json["good"], true);
  EXPECT_EQ(json["layer_bytes"].size(), 4u);
  EXPECT_EQ(json["tensors"].size(), files->tensors().size());
  EXPECT_EQ(json["types"]["Q8_0"]["tensors"], 28);
  EXPECT_EQ(json["model"]["architecture"], "llama");
}

TEST_F(InspectTest, EndsABadFileWithAClearLine) {
  const auto files = Load(BuildTinyModel({}).RemoveTensor("blk.1.ffn_up.weight"));
  ASSERT_OK(files);
  EXPECT_THAT(CheckModel(*files),
              IsError(absl::StatusCode::kNotFound, Words{"blk.1.ffn_up.weight"}));
  EXPECT_THAT(InspectModel(*files, {}),
              HasSubstr("\ncheck     FAILED: tensor blk.1.ffn_up.weight is missing"));
  const auto unknown = Load(
      BuildTinyModel({}).Remove("general.architecture").SetString("general.architecture", "mamba"));
  ASSERT_OK(unknown);
  EXPECT_THAT(InspectModel(*unknown, {}), HasSubstr("FAILED: general.architecture = \"mamba\""));
}

// CASES A2 (v).
TEST_F(InspectTest, RefusesSpecialIdsBeyondTheVocabulary) {
  const std::string key = "tokenizer.ggml.eos_token_id";
  EXPECT_THAT(Check(BuildTinyModel({}).Remove(key).SetU32(key, 4294967295u)),
              IsError(absl::StatusCode::kInvalidArgument, Words{key, "4294967295", "320"}));
}

TEST_F(InspectTest, RefusesRopeFactorsThatAreNotPositive) {
  TinyModelOptions options;
  options.rope_factors = true;
  EXPECT_THAT(Check(BuildTinyModel(options)
                        .RemoveTensor("rope_freqs.weight")
                        .AddF32Tensor("rope_freqs.weight", {8}, std::vector<float>(8, 0.0f))),
              IsError(absl::StatusCode::kInvalidArgument, Words{"rope_freqs.weight[0]"}));
}

TEST_F(InspectTest, FindsTheReferenceModelsGood) {
  const std::filesystem::path folder = LAYERCAKE_SOURCE_DIR "/tests/reference/goldens/tiny";
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".gguf") continue;
    ++seen;
    const auto files = ModelFiles::Open(entry.path().string());
    ASSERT_OK(files);
    EXPECT_TRUE(CheckModel(*files).ok()) << entry.path() << ": " << CheckModel(*files);
  }
  EXPECT_GE(seen, 8);
}

TEST_F(InspectTest, FindsVocabularyOnlyFilesGood) {
  const std::filesystem::path folder = LAYERCAKE_SOURCE_DIR "/../shared/data/vocab";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no vocabulary files at " << folder;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".gguf") continue;
    const auto files = ModelFiles::Open(entry.path().string());
    ASSERT_OK(files);
    EXPECT_TRUE(CheckModel(*files).ok()) << entry.path() << ": " << CheckModel(*files);
    EXPECT_THAT(InspectModel(*files, {}), HasSubstr("vocabulary only"));
  }
}

// CASES A6 (i): a real file of mixed types. LAYERCAKE_TEST_MODEL names it.
TEST_F(InspectTest, FindsARealModelGood) {
  const char* path = std::getenv("LAYERCAKE_TEST_MODEL");
  if (path == nullptr || *path == '\0') GTEST_SKIP() << "set LAYERCAKE_TEST_MODEL to a .gguf file";
  const auto files = ModelFiles::Open(path);
  ASSERT_OK(files);
  EXPECT_TRUE(CheckModel(*files).ok()) << CheckModel(*files);
  InspectOptions options;
  options.list_tensors = false;
  EXPECT_THAT(InspectModel(*files, options), HasSubstr("check     good"));
}

// CASES A6 (i): rows of 576 are no multiple of 256, so a "Q4_K_M" file mixes other types in.
TEST_F(InspectTest, LetsTheTypeOfEachTensorDecide) {
  TinyModelOptions options;
  options.hidden_size = 576;
  options.ffn_size = 768;
  options.n_heads = 9;
  options.n_kv_heads = 3;
  options.head_dim = 64;
  options.n_layers = 2;
  options.matrix_type = TensorType::kQ5_0;
  options.embedding_type = TensorType::kQ8_0;
  options.tied_output = true;
  GgufBuilder builder = BuildTinyModel(options);
  base::SeededRandom random(3);
  builder.SetU32("general.file_type", 15)
      .RemoveTensor("blk.0.ffn_down.weight")
      .AddRandomTensor("blk.0.ffn_down.weight", TensorType::kQ6_K, {768, 576}, 0.04, random)
      .RemoveTensor("blk.1.ffn_down.weight")
      .AddRandomTensor("blk.1.ffn_down.weight", TensorType::kQ4_K, {768, 576}, 0.04, random);
  EXPECT_TRUE(Check(builder).ok()) << Check(builder);
}

}  // namespace
}  // namespace layercake::model
