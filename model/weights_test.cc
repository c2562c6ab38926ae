#include "model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "model/gguf/testing/gguf_builder.h"
#include "model/gguf/testing/status_matchers.h"
#include "model/gguf/testing/tiny_model.h"
#include "model/layer_split.h"

namespace layercake::model {
namespace {

using testing::BuildTinyModel;
using testing::GgufBuilder;
using testing::IsError;
using testing::TinyModelOptions;
using testing::Words;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotFound = absl::StatusCode::kNotFound;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

// A parsed file with the bytes it points into.
struct Model {
  explicit Model(const GgufBuilder& builder)
      : bytes(builder.Build()), file(*GgufFile::Parse(bytes, "test.gguf")) {
    const auto read = ReadModelConfig(file.metadata(), file.tensors());
    if (read.ok()) config = *read;
    EXPECT_TRUE(read.ok()) << read.status();
  }
  absl::StatusOr<WeightMap> Plan(uint32_t first, uint32_t end) const {
    return PlanWeights(config, file.tensors(), first, end);
  }

  std::vector<std::byte> bytes;
  GgufFile file;
  ModelConfig config;
};

TEST(Weights, GivesEachStageItsOwnTensors) {
  const Model model(BuildTinyModel({}));
  const auto first = model.Plan(0, 2);
  ASSERT_OK(first);
  EXPECT_NE(first->Find(WeightRole::kTokenEmbedding), nullptr);
  EXPECT_EQ(first->Find(WeightRole::kOutput), nullptr);
  EXPECT_EQ(first->Find(WeightRole::kOutputNorm), nullptr);
  EXPECT_NE(first->Find(WeightRole::kFfnUp, 1), nullptr);
  EXPECT_EQ(first->Find(WeightRole::kFfnUp, 2), nullptr);

  const auto last = model.Plan(2, 4);
  ASSERT_OK(last);
  EXPECT_EQ(last->Find(WeightRole::kTokenEmbedding), nullptr);
  EXPECT_NE(last->Find(WeightRole::kOutput), nullptr);
  EXPECT_NE(last->Find(WeightRole::kOutputNorm), nullptr);
  EXPECT_EQ(last->Find(WeightRole::kFfnUp, 1), nullptr);

  const Weight* up = last->Find(WeightRole::kFfnUp, 3);
  ASSERT_NE(up, nullptr);
  EXPECT_EQ(up->tensor_name, "blk.3.ffn_up.weight");
  EXPECT_EQ(up->rows, 96u);
  EXPECT_EQ(up->columns, 64u);
  EXPECT_EQ(up->row_bytes, 256u);
  EXPECT_EQ(up->byte_size, 96u * 256);
  EXPECT_EQ(up->tensor_offset, 0u);
  EXPECT_FALSE(model.Plan(2, 2).ok());
  EXPECT_FALSE(model.Plan(2, 5).ok());
}

// CASES A7 (ii) and (iv): any cut owns every layer once, and the last stage has its own copy of a
// tied embedding and counts it.
TEST(Weights, GivesTheLastStageItsOwnTiedEmbedding) {
  TinyModelOptions options;
  options.n_layers = 5;
  options.tied_output = true;
  options.rope_factors = true;
  const Model model(BuildTinyModel(options));
  const auto sizes = CountWeightBytes(model.config, model.file.tensors());
  ASSERT_OK(sizes);
  const uint64_t embedding = 64u * 320 * 4;
  EXPECT_EQ(sizes->embedding, embedding);
  EXPECT_EQ(sizes->head, embedding + 64 * 4);
  EXPECT_EQ(sizes->every_stage, 8u * 4);
  const uint64_t one_stage = model.Plan(0, 5)->total_bytes;
  for (uint32_t stages = 1; stages <= 5; ++stages) {
    const auto ranges = SplitLayers(sizes->layers, sizes->embedding, sizes->head, stages);
    ASSERT_OK(ranges);
    std::map<int32_t, int> owners;
    uint64_t total = 0;
    for (const LayerRange& range : *ranges) {
      const auto map = model.Plan(range.first, range.end);
      ASSERT_OK(map);
      total += map->total_bytes;
      EXPECT_NE(map->Find(WeightRole::kRopeFreqs), nullptr) << "CASES G2";
      for (const Weight& weight : map->weights) {
        if (weight.role == WeightRole::kFfnUp) ++owners[weight.layer];
      }
      const Weight* output = map->Find(WeightRole::kOutput);
      EXPECT_EQ(output != nullptr, range.end == 5);
      if (output != nullptr) {
        EXPECT_EQ(output->tensor_name, "token_embd.weight");
      }
    }
    EXPECT_EQ(owners.size(), 5u);
    for (const auto& [layer, count] : owners) EXPECT_EQ(count, 1) << layer;
    const uint64_t extra_copy = stages > 1 ? embedding : 0;
    EXPECT_EQ(total, one_stage + extra_copy + (stages - 1) * sizes->every_stage);
  }
}

// CASES A7 (i).
TEST(Weights, TakesHeadsWiderThanTheHiddenSize) {
  TinyModelOptions options;
  options.architecture = "qwen3";
  options.head_dim = 32;  // 4 heads: queries are 128 wide in a model of 64
  const Model model(BuildTinyModel(options));
  const auto map = model.Plan(0, 4);
  ASSERT_OK(map);
  EXPECT_EQ(map->Find(WeightRole::kAttnQ, 0)->rows, 128u);
  EXPECT_EQ(map->Find(WeightRole::kAttnK, 0)->rows, 64u);
  EXPECT_EQ(map->Find(WeightRole::kAttnOutput, 0)->columns, 128u);
  EXPECT_EQ(map->Find(WeightRole::kAttnQNorm, 0)->columns, 32u);
}

// CASES A7 (iii).
TEST(Weights, NamesAMissingTensorOnTheStageThatNeedsIt) {
  const Model model(BuildTinyModel({}).RemoveTensor("blk.2.ffn_up.weight"));
  ASSERT_OK(model.Plan(0, 2));
  EXPECT_THAT(model.Plan(2, 4), IsError(kNotFound, Words{"blk.2.ffn_up.weight", "layers 2 to 3"}));
  for (const char* name : {"token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight",
                           "blk.1.attn_k.weight", "blk.3.attn_output.weight"}) {
    EXPECT_THAT(Model(BuildTinyModel({}).RemoveTensor(name)).Plan(0, 4),
                IsError(kNotFound, Words{name}));
  }
  TinyModelOptions qwen2;
  qwen2.architecture = "qwen2";
  EXPECT_THAT(Model(BuildTinyModel(qwen2).RemoveTensor("blk.0.attn_q.bias")).Plan(0, 4),
              IsError(kNotFound, Words{"blk.0.attn_q.bias"}));
  TinyModelOptions qwen3;
  qwen3.architecture = "qwen3";
  EXPECT_THAT(Model(BuildTinyModel(qwen3).RemoveTensor("blk.0.attn_q_norm.weight")).Plan(0, 4),
              IsError(kNotFound, Words{"blk.0.attn_q_norm.weight"}));
}

TEST(Weights, NamesBothShapesOfAMisfit) {
  GgufBuilder builder = BuildTinyModel({});
  builder.RemoveTensor("blk.1.attn_k.weight")
      .AddF32Tensor("blk.1.attn_k.weight", {64, 64}, std::vector<float>(64 * 64));
  EXPECT_THAT(Model(builder).Plan(0, 4),
              IsError(kInvalid, Words{"blk.1.attn_k.weight", "{64, 64}", "{64, 32}"}));
  builder = BuildTinyModel({});
  builder.Remove("tokenizer.ggml.tokens").SetU32("llama.vocab_size", 321);
  EXPECT_THAT(Model(builder).Plan(0, 4),
              IsError(kInvalid, Words{"token_embd.weight", "{64, 320}", "{64, 321}"}));
}

TEST(Weights, SplitsFusedQkvIntoRowViews) {
  TinyModelOptions options;
  options.architecture = "qwen2";
  options.fused_qkv = true;
  options.matrix_type = TensorType::kQ8_0;
  const Model model(BuildTinyModel(options));
  EXPECT_TRUE(model.config.qkv_bias);
  const auto map = model.Plan(0, 4);
  ASSERT_OK(map);
  const uint64_t row = 64 / 32 * 34;
  struct Case {
    WeightRole role;
    WeightRole bias;
    uint64_t first;
    uint64_t rows;
  };
  const Case cases[] = {{WeightRole::kAttnQ, WeightRole::kAttnQBias, 0, 64},
                        {WeightRole::kAttnK, WeightRole::kAttnKBias, 64, 32},
                        {WeightRole::kAttnV, WeightRole::kAttnVBias, 96, 32}};
  for (const Case& one : cases) {
    const Weight* weight = map->Find(one.role, 3);
    ASSERT_NE(weight, nullptr);
    EXPECT_EQ(weight->tensor_name, "blk.3.attn_qkv.weight");
    EXPECT_EQ(weight->rows, one.rows);
    EXPECT_EQ(weight->tensor_offset, one.first * row);
    EXPECT_EQ(weight->byte_size, one.rows * row);
    const Weight* bias = map->Find(one.bias, 3);
    ASSERT_NE(bias, nullptr);
    EXPECT_EQ(bias->columns, one.rows);
    EXPECT_EQ(bias->rows, 1u);
    EXPECT_EQ(bias->tensor_offset, one.first * 4);
    EXPECT_EQ(bias->byte_size, one.rows * 4);
  }
  uint64_t file_bytes = 0;
  for (const TensorInfo& tensor : model.file.tensors()) file_bytes += tensor.byte_size;
  EXPECT_EQ(map->total_bytes, file_bytes);
}

TEST(Weights, TakesOptionalBiases) {
  TinyModelOptions options;
  options.output_biases = true;
  const Model model(BuildTinyModel(options));
  const auto map = model.Plan(0, 4);
  ASSERT_OK(map);
  for (const WeightRole role : {WeightRole::kAttnOutputBias, WeightRole::kFfnGateBias,
                                WeightRole::kFfnUpBias, WeightRole::kFfnDownBias}) {
    EXPECT_NE(map->Find(role, 2), nullptr) << WeightRoleName(role);
  }
}

TEST(Weights, RefusesWhatItWouldHaveToIgnore) {
  EXPECT_THAT(Model(BuildTinyModel({}).AddF32Tensor("rope_factors_long.weight", {8},
                                                    std::vector<float>(8, 1.0f)))
                  .Plan(0, 1),
              IsError(kUnimplemented, Words{"rope_factors_long.weight", "longrope"}));
  const Model odd(BuildTinyModel({}).AddF32Tensor("blk.2.post_attention_norm.weight", {64},
                                                  std::vector<float>(64, 1.0f)));
  EXPECT_THAT(odd.Plan(2, 4),
              IsError(kUnimplemented, Words{"blk.2.post_attention_norm.weight", "llama"}));
  ASSERT_OK(odd.Plan(0, 2));
  GgufBuilder builder = BuildTinyModel({});
  base::SeededRandom random(1);
  builder.RemoveTensor("blk.0.ffn_norm.weight")
      .AddRandomTensor("blk.0.ffn_norm.weight", TensorType::kF16, {64}, 1.0, random);
  EXPECT_THAT(Model(builder).Plan(0, 4),
              IsError(kUnimplemented, Words{"blk.0.ffn_norm.weight", "F16", "F32"}));
}

TEST(Weights, ListsTensorsThatNoStageUses) {
  const Model model(BuildTinyModel({})
                        .AddF32Tensor("mm.0.weight", {8}, std::vector<float>(8))
                        .AddF32Tensor("blk.9.extra", {8}, std::vector<float>(8)));
  const auto unused = UnusedTensors(model.config, model.file.tensors());
  ASSERT_OK(unused);
  EXPECT_THAT(*unused, ::testing::ElementsAre("mm.0.weight", "blk.9.extra"));
}

}  // namespace
}  // namespace layercake::model
