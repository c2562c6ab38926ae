#include "simulation/device_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/gguf/model_files.h"
#include "model/gguf/testing/tiny_model.h"

namespace layercake::simulation {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// 4 layers, hidden 64, ffn 96, 4 heads and 2 kv heads of 16, 320 words; all F32.
class WorkOfStageTest : public ::testing::Test {
 protected:
  static constexpr double kLayerWeights = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96;
  static constexpr double kHeadWeights = 320 * 64;

  StageWork Work(uint32_t first, uint32_t end, bool tied = false) {
    model::testing::TinyModelOptions options;
    options.tied_output = tied;
    const std::string path = ::testing::TempDir() + "layercake_device_cost_test.gguf";
    EXPECT_TRUE(model::testing::BuildTinyModel(options).WriteFile(path).ok());
    const auto files = model::ModelFiles::Open(path);
    EXPECT_TRUE(files.ok()) << files.status();
    const auto config = model::ReadModelConfig(files->metadata(), files->tensors());
    EXPECT_TRUE(config.ok()) << config.status();
    const auto work = WorkOfStage(*config, files->tensors(), {first, end}, /*head_bytes=*/32);
    EXPECT_TRUE(work.ok()) << work.status();
    return *work;
  }
};

TEST_F(WorkOfStageTest, CountsLayersHeadAndCacheOfTheStageAlone) {
  const StageWork middle = Work(1, 3);
  EXPECT_EQ(middle.weights, 2 * kLayerWeights);
  EXPECT_EQ(middle.head_weights, 0);
  EXPECT_EQ(middle.kv_bytes_per_token, 2 * 2 * 2 * 32);
  EXPECT_EQ(middle.attention_elements, 2 * 64);
  // Two norms of 64 for each layer beside its matrices.
  EXPECT_EQ(middle.step_bytes, 4 * 2 * (kLayerWeights + 2 * 64));
  EXPECT_EQ(middle.weight_bytes, middle.step_bytes);
}

TEST_F(WorkOfStageTest, TakesTheHeadOnTheLastStageAndNotTheEmbeddingOnTheFirst) {
  const StageWork first = Work(0, 1);
  EXPECT_EQ(first.head_weights, 0);
  EXPECT_EQ(static_cast<double>(first.weight_bytes), first.step_bytes + 4 * kHeadWeights)
      << "the embedding lies in memory, a step reads rows of it";
  const StageWork last = Work(3, 4);
  EXPECT_EQ(last.head_weights, kHeadWeights);
  EXPECT_EQ(static_cast<double>(last.weight_bytes), last.step_bytes);
  // Where it is the head as well, it is read.
  const StageWork tied = Work(0, 4, /*tied=*/true);
  EXPECT_EQ(tied.head_weights, kHeadWeights);
  EXPECT_EQ(static_cast<double>(tied.weight_bytes), tied.step_bytes);
}

TEST(CostOfStage, IsTheLargerOfBytesAndOperations) {
  const StageWork work = {.weight_bytes = 0,
                          .step_bytes = 1e9,
                          .weights = 5e8,
                          .head_weights = 1e8,
                          .kv_bytes_per_token = 1e4,
                          .attention_elements = 1e3};
  const StageCost cost =
      CostOfStage(work, {.bytes_per_second = 1e12, .operations_per_second = 1e14}, 0.5);
  // One stream: 1 GB and 1,000 entries of 10 KB at 0.5 TB/s.
  EXPECT_DOUBLE_EQ(cost.SecondsOf({.rows = 1, .samples = 1, .reads = 1000, .entries = 1000}),
                   1.01e9 / 0.5e12);
  // A prompt: 1,000 rows of 2 * 5e8 operations, one sample, 500,500 reads, at 50 TFLOP/s.
  EXPECT_DOUBLE_EQ(cost.SecondsOf({.rows = 1000, .samples = 1, .reads = 500'500, .entries = 1000}),
                   (1e12 + 2e8 + 4e3 * 500'500) / 50e12);
}

TEST(FindCard, NamesAllCardsForAnUnknownOne) {
  ASSERT_TRUE(FindCard("4090").ok());
  EXPECT_EQ(FindCard("4090")->gb_per_second, 1008);
  const absl::Status status = FindCard("h100").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const Card& card : KnownCards()) {
    EXPECT_THAT(status.message(), HasSubstr(std::string(card.name)));
  }
  EXPECT_THAT(status.message(), AllOf(HasSubstr("h100"), HasSubstr("--memory-gbs")));
}

}  // namespace
}  // namespace layercake::simulation
