#include "coordinator/kv_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/kv_cache_type.h"

namespace layercake::coordinator {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

struct Model {
  model::ModelConfig config;
  model::WeightBytes weights;

  Model() {
    config.hidden_size = 5120;
    config.n_heads = 40;
    config.n_kv_heads = 8;
    config.head_dim = 128;
    config.ffn_size = 27648;
    config.vocab_size = 152064;
    config.n_layers = 64;
    weights.layers.assign(64, 280'000'000);
    weights.embedding = 440'000'000;
    weights.head = 640'000'000;
  }
};

KvBudget BudgetOf(const std::vector<uint64_t>& memory) {
  KvBudget budget;
  budget.stage_memory_bytes = memory;
  budget.head_bytes = KvHeadBytes(v1::KV_CACHE_TYPE_F16, 128);
  budget.max_rows = 256;
  budget.most = 1 << 20;
  return budget;
}

TEST(KvBudget, FillsTheTightestStage) {
  const Model model;
  const std::vector<model::LayerRange> stages = {{0, 32}, {32, 64}};
  const std::vector<uint64_t> memory = {80 * kGiB, 24 * kGiB};
  const auto blocks = KvBlocksThatFit(model.config, model.weights, stages, BudgetOf(memory));
  ASSERT_TRUE(blocks.has_value());
  // A block of 16 tokens is 2 MiB on 32 layers: what is left of nine tenths of 24 GiB after 9.6 GB
  // of weights.
  EXPECT_GT(*blocks, 5000);
  EXPECT_LT(*blocks, (24 * kGiB / 10 * 9 - 9'600'000'000) / (2 << 20));
  const std::vector<uint64_t> more = {80 * kGiB, 34 * kGiB};
  EXPECT_NEAR(*KvBlocksThatFit(model.config, model.weights, stages, BudgetOf(more)),
              *blocks + 9 * 512, 1);
}

TEST(KvBudget, CountsTheBytesOfABlock) {
  const Model model;
  EXPECT_EQ(KvBlockBytes(model.config, {0, 32}, 16, KvHeadBytes(v1::KV_CACHE_TYPE_F16, 128)),
            uint64_t{2} << 20);
  EXPECT_EQ(KvBlockBytes(model.config, {60, 61}, 16, KvHeadBytes(v1::KV_CACHE_TYPE_Q8_0, 128)),
            2 * 8 * 16 * 136u);
}

TEST(KvBudget, HasRoomForMoreBlocksOfASmallerType) {
  const Model model;
  const std::vector<model::LayerRange> stages = {{0, 64}};
  const std::vector<uint64_t> memory = {80 * kGiB};
  const auto blocks = [&](v1::KvCacheType type) {
    KvBudget budget = BudgetOf(memory);
    budget.head_bytes = KvHeadBytes(type, model.config.head_dim);
    return *KvBlocksThatFit(model.config, model.weights, stages, budget);
  };
  const int half = blocks(v1::KV_CACHE_TYPE_F16);
  EXPECT_EQ(blocks(v1::KV_CACHE_TYPE_BF16), half);
  EXPECT_EQ(blocks(v1::KV_CACHE_TYPE_F32), half / 2);
  // 34 bytes for 32 values instead of 64.
  EXPECT_NEAR(blocks(v1::KV_CACHE_TYPE_Q8_0), half * 64.0 / 34.0, 2);
}

TEST(KvBudget, PromisesTheSumOfWhatAStageHolds) {
  const Model model;
  const std::vector<model::LayerRange> stages = {{0, 32}, {32, 64}};
  const KvBudget budget = BudgetOf({});
  const StageMemory first =
      PromisedMemory(model.config, model.weights, stages, 0, budget, /*blocks=*/1000);
  const StageMemory last =
      PromisedMemory(model.config, model.weights, stages, 1, budget, /*blocks=*/1000);
  EXPECT_EQ(first.weights, uint64_t{32} * 280'000'000 + 440'000'000);
  EXPECT_EQ(last.weights, uint64_t{32} * 280'000'000 + 640'000'000);
  EXPECT_EQ(first.kv, uint64_t{1000} * (2 << 20));
  // 256 rows: hidden, twice queries, keys and values, gate and up, and twice the widest row.
  EXPECT_EQ(first.buffers,
            uint64_t{4} * 256 * (5120 + 2 * 5120 + 2 * 1024 + 2 * 27648 + 2 * 27648));
  EXPECT_EQ(last.buffers - first.buffers, uint64_t{4} * 64 * (152064 + 2 * 5120));
  EXPECT_EQ(first.total(), first.weights + first.kv + first.buffers + first.backend);
  // What fits is what the promise leaves nine tenths for.
  const std::vector<uint64_t> memory = {24 * kGiB, 24 * kGiB};
  const int blocks = *KvBlocksThatFit(model.config, model.weights, stages, BudgetOf(memory));
  const auto promised = [&](int count) {
    return PromisedMemory(model.config, model.weights, stages, 1, budget, count).total();
  };
  EXPECT_LE(promised(blocks), 24 * kGiB / 10 * 9);
  EXPECT_GT(promised(blocks + 1), 24 * kGiB / 10 * 9);
}

TEST(KvBudget, RefusesMoreThanADeviceHasWithNumbersAndTheWayOut) {
  const StageMemory fits = {.weights = 10 * kGiB, .kv = 4 * kGiB, .buffers = kGiB, .backend = kGiB};
  StageMemory larger = fits;
  larger.kv = 9 * kGiB;
  const std::vector<StageMemory> promised = {fits, larger};
  const auto check = [&](const std::vector<uint64_t>& free_bytes,
                         const std::vector<uint64_t>& total_bytes = {}) {
    return CheckMemory(promised, {.free_bytes = free_bytes, .total_bytes = total_bytes});
  };
  EXPECT_TRUE(check({16 * kGiB, 21 * kGiB}).ok());
  EXPECT_TRUE(check({16 * kGiB, 0}).ok());
  EXPECT_TRUE(check({}).ok());
  const absl::Status status = check({16 * kGiB, 20 * kGiB + kGiB / 2});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  for (const char* part : {"stage 1 ", "21.0 GiB", "weights 10.0", "KV cache 9.0", "buffers 1.0",
                           "CUDA 1.0", "20.5 GiB free", "--context", "--kv-blocks", "--max-rows",
                           "--kv-memory", "--kv-type q8_0", "more stages"}) {
    EXPECT_THAT(status.message(), testing::HasSubstr(part));
  }
  EXPECT_THAT(check({16 * kGiB, 12 * kGiB}, {24 * kGiB, 140 * kGiB}).message(),
              testing::HasSubstr("12.0 GiB free for it (of 140.0; others hold 128.0)"));
}

TEST(KvBudget, WarnsOfADeviceThatOthersHoldMuchOf) {
  const std::vector<StageMemory> promised(
      3, {.weights = 8 * kGiB, .kv = kGiB, .buffers = kGiB, .backend = kGiB});
  // One that others hold most of, one with a desktop, one that is not known.
  const std::vector<uint64_t> free_bytes = {12 * kGiB, 22 * kGiB + kGiB / 2, 0};
  const std::vector<uint64_t> total_bytes = {140 * kGiB, 24 * kGiB, 24 * kGiB};
  const std::vector<std::string> warnings =
      TakenDeviceWarnings(promised, {.free_bytes = free_bytes, .total_bytes = total_bytes});
  ASSERT_EQ(warnings.size(), 1u);
  for (const char* part : {"stage 0:", "140.0 GiB", "12.0 GiB are free", "hold 128.0", "nvidia-smi",
                           "11.0 GiB (weights 8.0, KV cache 1.0"}) {
    EXPECT_THAT(warnings.front(), testing::HasSubstr(part));
  }
  EXPECT_THAT(TakenDeviceWarnings(promised, {.free_bytes = free_bytes, .total_bytes = {}}),
              testing::IsEmpty());
}

TEST(KvBudget, TakesATenthAndADesktopForNothing) {
  EXPECT_FALSE(MuchIsTaken(8 * kGiB, 8 * kGiB));
  EXPECT_FALSE(MuchIsTaken(6 * kGiB, 8 * kGiB));
  EXPECT_TRUE(MuchIsTaken(6 * kGiB - 1, 8 * kGiB));
  EXPECT_FALSE(MuchIsTaken(127 * kGiB, 140 * kGiB));
  EXPECT_TRUE(MuchIsTaken(125 * kGiB, 140 * kGiB));
  EXPECT_FALSE(MuchIsTaken(9 * kGiB, 8 * kGiB));
}

TEST(KvBudget, WarnsOfACacheForFewContexts) {
  EXPECT_FALSE(SmallCacheWarning(/*blocks=*/1024, 256, 16, /*max_sequences=*/64).has_value());
  EXPECT_FALSE(SmallCacheWarning(/*blocks=*/256, 256, 16, /*max_sequences=*/1).has_value());
  const auto warning = SmallCacheWarning(/*blocks=*/1023, 512, 16, /*max_sequences=*/64);
  ASSERT_TRUE(warning.has_value());
  for (const char* part : {"2.0 full contexts of 8192 tokens", "64 sequences", "--max-sequences",
                           "--context", "--kv-type q8_0", "more stages"}) {
    EXPECT_THAT(*warning, testing::HasSubstr(part));
  }
}

TEST(KvBudget, KnowsNothingWithoutMemory) {
  const Model model;
  const std::vector<model::LayerRange> stages = {{0, 32}, {32, 64}};
  EXPECT_FALSE(KvBlocksThatFit(model.config, model.weights, stages, BudgetOf({})).has_value());
  EXPECT_FALSE(KvBlocksThatFit(model.config, model.weights, stages, BudgetOf({0, 0})).has_value());
}

TEST(KvBudget, StopsAtTheMostThatIsOfUseAndAtNothing) {
  const Model model;
  const std::vector<model::LayerRange> stages = {{0, 64}};
  const std::vector<uint64_t> plenty = {1000 * kGiB};
  KvBudget budget = BudgetOf(plenty);
  budget.most = 777;
  EXPECT_EQ(KvBlocksThatFit(model.config, model.weights, stages, budget), 777);
  const std::vector<uint64_t> little = {10 * kGiB};
  EXPECT_EQ(KvBlocksThatFit(model.config, model.weights, stages, BudgetOf(little)), 0);
}

}  // namespace
}  // namespace layercake::coordinator
