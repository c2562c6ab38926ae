#include "stage_worker/stage_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stage_worker/testing/manual_time.h"
#include "stage_worker/testing/tiny_stages.h"

namespace layercake::stage_worker {
namespace {

using kernels::Buffer;
using kernels::KvType;
using stage_worker::testing::ManualTime;
using stage_worker::testing::TinyModel;
using ::testing::Return;
using ::testing::StrictMock;

class MockOps : public kernels::Ops {
 public:
  MOCK_METHOD(absl::StatusOr<std::unique_ptr<kernels::Matrix>>, LoadMatrix,
              (kernels::WeightType, int64_t, int64_t, absl::Span<const std::byte>), (override));
  MOCK_METHOD(absl::StatusOr<std::unique_ptr<kernels::Vector>>, LoadVector,
              (absl::Span<const float>), (override));
  MOCK_METHOD(absl::Status, CheckKvType, (KvType), (const, override));
  MOCK_METHOD(absl::StatusOr<std::unique_ptr<kernels::KvCache>>, CreateKvCache,
              (const kernels::KvCacheSpec&), (override));
  MOCK_METHOD(absl::Status, Prepare, (const kernels::StepLimits&), (override));
  MOCK_METHOD(uint64_t, scratch_bytes, (), (const, override));
  MOCK_METHOD(absl::Status, BeginStep, (const kernels::StepRows&), (override));
  MOCK_METHOD(absl::Status, Embed, (const kernels::Matrix&, absl::Span<const int32_t>, Buffer),
              (override));
  MOCK_METHOD(absl::Status, AttentionInput,
              (const kernels::AttentionWeights&, const kernels::Rope&, Buffer, kernels::KvCache&,
               int, Buffer),
              (override));
  MOCK_METHOD(absl::Status, Attention, (Buffer, const kernels::KvCache&, int, int, Buffer),
              (override));
  MOCK_METHOD(absl::Status, LinearAdd,
              (const kernels::Matrix&, const kernels::Vector*, Buffer, Buffer), (override));
  MOCK_METHOD(absl::Status, FfnInput, (const kernels::FfnWeights&, Buffer, Buffer), (override));
  MOCK_METHOD(absl::Status, FindNonFinite, (Buffer, int, absl::Span<uint8_t>), (override));
  MOCK_METHOD(absl::Status, Logits,
              (const kernels::Vector&, float, const kernels::Matrix&, absl::Span<const int32_t>,
               Buffer, Buffer),
              (override));
  MOCK_METHOD(absl::Status, Sample,
              (Buffer, int64_t, absl::Span<const kernels::SampleRequest>,
               absl::Span<kernels::SampleResult>),
              (override));
  MOCK_METHOD(absl::Status, Finish, (), (override));
};

class CountingExecutor final : public base::Executor {
 public:
  bool Post(base::Task) override {
    ++posted;
    return true;
  }
  int posted = 0;
};

TEST(StageLoader, AsksTheDeviceForItsKvTypesBeforeItFetchesAnything) {
  const TinyModel model((model::testing::TinyModelOptions()));
  ManualTime time;
  StrictMock<MockOps> ops;
  CountingExecutor loading;
  EXPECT_CALL(ops, CheckKvType(KvType::kQ8_0))
      .WillOnce(Return(absl::UnimplementedError("use f16")));
  EXPECT_CALL(ops, CheckKvType(KvType::kF16)).WillOnce(Return(absl::OkStatus()));
  const auto start = [&](v1::KvCacheType type) {
    v1::Assignment assignment = model.Assign(0, 1);
    assignment.set_kv_type(type);
    StageLoader loader({.clock = &time,
                        .timers = &time,
                        .step_thread = &time,
                        .loading_thread = &loading,
                        .ops = &ops},
                       assignment, {});
    return loader.Start();
  };
  EXPECT_EQ(start(v1::KV_CACHE_TYPE_Q8_0), absl::UnimplementedError("use f16"));
  EXPECT_EQ(loading.posted, 0);
  EXPECT_TRUE(start(v1::KV_CACHE_TYPE_F16).ok());
  EXPECT_EQ(loading.posted, 1);
}

}  // namespace
}  // namespace layercake::stage_worker
