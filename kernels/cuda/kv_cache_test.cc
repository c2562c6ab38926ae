#include "kernels/cuda/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace layercake::kernels::cuda {
namespace {

TEST(CudaKvTypes, RefuseThoseWithoutKernelsAndSayWhatToUse) {
  EXPECT_TRUE(CheckCudaKvType(KvType::kF16).ok());
  EXPECT_TRUE(CheckCudaKvType(KvType::kF32).ok());
  for (const KvType type : {KvType::kBF16, KvType::kQ8_0}) {
    const absl::Status status = CheckCudaKvType(type);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(status.message(), testing::HasSubstr(KvTypeName(type)));
    EXPECT_THAT(status.message(), testing::HasSubstr("--kv-type f16"));
  }
}

}  // namespace
}  // namespace layercake::kernels::cuda
