// Operations that are held back until their input has come compute what they compute otherwise, bit
// for bit.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "base/status_macros.h"
#include "kernels/cpu/kernels_test_support.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda_backend.h"

namespace layercake::kernels::cuda {
namespace {

constexpr uint64_t kSeed = 20261130;
constexpr int kHidden = 256;
constexpr int kHeadDim = 64;
constexpr int kRows = 3;
constexpr int kVocabulary = 300;

// The attention of one layer, over an embedding or over rows that were copied in.
class HeldOpsTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto devices = ListCudaDevices();
    if (!devices.ok()) GTEST_SKIP() << "no CUDA device: " << devices.status();
    device_ = CreateCudaDevice(devices->front(), executor_).value();
    ops_ = CreateCudaOps(*device_, {}).value();
    held_ = dynamic_cast<HeldOps*>(ops_.get());
    ASSERT_NE(held_, nullptr);
    table_ = Load(kVocabulary);
    wq_ = Load(kHidden);
    wk_ = Load(kHeadDim);
    wv_ = Load(kHeadDim);
    wo_ = Load(kHidden);
    norm_ = ops_->LoadVector(RandomFloats(random_, kHidden, 1)).value();
    cache_ =
        ops_->CreateKvCache(
                {.layers = 1, .blocks = 4, .block_tokens = 16, .kv_heads = 1, .head_dim = kHeadDim})
            .value();
    for (auto* memory : {&x_, &q_, &attention_}) {
      *memory = device_->Allocate(kRows * kHidden * sizeof(float)).value();
    }
    rope_.rope_dims = kHeadDim;
    rope_.inv_freq.assign(kHeadDim / 2, 0.01f);
    ASSERT_EQ(ops_->Prepare({.max_rows = kRows,
                             .max_sequences = kRows,
                             .context_tokens = 64,
                             .hidden = kHidden,
                             .q_width = kHidden,
                             .kv_width = kHeadDim,
                             .ffn = kHidden}),
              absl::OkStatus());
  }

  std::unique_ptr<Matrix> Load(int64_t n) {
    weights_.push_back(RandomWeights(random_, WeightType::kQ8_0, n, kHidden));
    const auto& bytes = weights_.back();
    return ops_
        ->LoadMatrix(WeightType::kQ8_0, n, kHidden,
                     {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()})
        .value();
  }
  // Of a sequence's first rows.
  absl::Status Begin() {
    return ops_->BeginStep({.rows = kRows,
                            .rope_position = positions_,
                            .kv_position = positions_,
                            .table_index = index_,
                            .block_tables = tables_});
  }
  absl::Status Embed(const std::vector<int32_t>& tokens) {
    return ops_->Embed(*table_, tokens, x_->buffer());
  }
  absl::Status Layer() {
    const AttentionWeights weights = {
        .norm = norm_.get(), .norm_eps = 1e-6f, .wq = wq_.get(), .wk = wk_.get(), .wv = wv_.get()};
    LC_RETURN_IF_ERROR(
        ops_->AttentionInput(weights, rope_, x_->buffer(), *cache_, 0, q_->buffer()));
    LC_RETURN_IF_ERROR(
        ops_->Attention(q_->buffer(), *cache_, 0, kHidden / kHeadDim, attention_->buffer()));
    return ops_->LinearAdd(*wo_, nullptr, attention_->buffer(), x_->buffer());
  }
  absl::Status CopyIn() {
    return device_->CopyIn(reinterpret_cast<const std::byte*>(input_.data()), x_->buffer(),
                           input_.size() * sizeof(float));
  }
  // The rows that a step leaves.
  std::vector<float> After(const std::function<absl::Status()>& step) {
    std::vector<float> rows(kRows * kHidden);
    const absl::Status status = RunOn(*device_, executor_, [&]() -> absl::Status {
      LC_RETURN_IF_ERROR(step());
      LC_RETURN_IF_ERROR(ops_->Finish());
      return device_->CopyOut(x_->buffer(), reinterpret_cast<std::byte*>(rows.data()),
                              rows.size() * sizeof(float));
    });
    EXPECT_EQ(status, absl::OkStatus());
    return rows;
  }
  std::vector<float> Embedded(const std::vector<int32_t>& tokens) {
    return After([&]() -> absl::Status {
      LC_RETURN_IF_ERROR(Begin());
      LC_RETURN_IF_ERROR(Embed(tokens));
      return Layer();
    });
  }

  CollectingExecutor executor_;
  base::SeededRandom random_{kSeed};
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  HeldOps* held_ = nullptr;
  std::vector<std::vector<uint8_t>> weights_;
  std::unique_ptr<Matrix> table_, wq_, wk_, wv_, wo_;
  std::unique_ptr<Vector> norm_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<DeviceMemory> x_, q_, attention_;
  Rope rope_;
  const std::vector<int32_t> positions_ = {0, 1, 2};
  const std::vector<int32_t> index_ = {0, 0, 0};
  const std::vector<int32_t> blocks_ = {2};
  const std::vector<absl::Span<const int32_t>> tables_ = {blocks_};
  const std::vector<float> input_ = RandomFloats(random_, kRows* kHidden, 1);
};

TEST_F(HeldOpsTest, TakeTheirTokensWhenTheyGoOn) {
  const std::vector<int32_t> tokens = {17, 299, 4};
  const std::vector<float> expected = Embedded(tokens);
  for (int round = 0; round < 3; ++round) {  // enqueued, recorded, replayed
    EXPECT_EQ(After([&]() -> absl::Status {
                LC_RETURN_IF_ERROR(Begin());
                LC_RETURN_IF_ERROR(Embed({0, 0, 0}));
                LC_RETURN_IF_ERROR(Layer());
                LC_RETURN_IF_ERROR(held_->Hold());
                return held_->Resume(tokens);
              }),
              expected);
  }
}

TEST_F(HeldOpsTest, LetRowsGoBeforeThem) {
  const std::vector<float> expected = After([&]() -> absl::Status {
    LC_RETURN_IF_ERROR(CopyIn());
    LC_RETURN_IF_ERROR(Begin());
    return Layer();
  });
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(After([&]() -> absl::Status {
                LC_RETURN_IF_ERROR(Begin());
                LC_RETURN_IF_ERROR(Layer());
                LC_RETURN_IF_ERROR(held_->Hold());
                LC_RETURN_IF_ERROR(CopyIn());
                return held_->Resume({});
              }),
              expected);
  }
}

TEST_F(HeldOpsTest, AreForgottenByTheNextStep) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  const std::vector<float> expected = Embedded(tokens);
  After([&]() -> absl::Status {
    LC_RETURN_IF_ERROR(Begin());
    LC_RETURN_IF_ERROR(Layer());
    return held_->Hold();
  });
  EXPECT_EQ(Embedded(tokens), expected);
}

TEST_F(HeldOpsTest, RefuseTokensOfAnotherNumberOrNone) {
  const absl::Status status = RunOn(*device_, executor_, [&]() -> absl::Status {
    EXPECT_EQ(held_->Resume({}).code(), absl::StatusCode::kFailedPrecondition);
    LC_RETURN_IF_ERROR(Begin());
    LC_RETURN_IF_ERROR(Embed({0, 0, 0}));
    LC_RETURN_IF_ERROR(held_->Hold());
    EXPECT_EQ(held_->Resume(std::vector<int32_t>{1}).code(), absl::StatusCode::kInvalidArgument);
    return ops_->Finish();
  });
  EXPECT_EQ(status, absl::OkStatus());
}

}  // namespace
}  // namespace layercake::kernels::cuda
