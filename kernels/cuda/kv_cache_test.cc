#include "kernels/cuda/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace layercake::kernels::cuda {
namespace {

using ::testing::HasSubstr;

TEST(CudaKvCaches, AreOfEveryType) {
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kQ8_0}) {
    EXPECT_TRUE(CheckCudaKvCache({2, 8, 16, 2, 64, type}).ok()) << KvTypeName(type);
  }
}

TEST(CudaKvCaches, HaveHeadsThatKernelsTake) {
  const absl::Status status = CheckCudaKvCache({2, 8, 16, 2, 258, KvType::kF16});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("at most 256"));
}

TEST(CudaKvCaches, HaveWholeRunsOfScalesInABlock) {
  EXPECT_TRUE(CheckCudaKvCache({2, 8, 48, 2, 64, KvType::kQ8_0}).ok());
  const absl::Status status = CheckCudaKvCache({2, 8, 24, 2, 64, KvType::kQ8_0});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("a multiple of 16 tokens"));
  EXPECT_TRUE(CheckCudaKvCache({2, 8, 24, 2, 64, KvType::kBF16}).ok());
}

}  // namespace
}  // namespace layercake::kernels::cuda
