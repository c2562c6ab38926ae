#include "kernels/cuda/cublas_lt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"

namespace layercake::kernels::cuda {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(CublasLt, IsSoughtOnTheLoadersPathAndThenUnderCudaHome) {
  EXPECT_THAT(CublasLtNames(nullptr), ElementsAre("libcublasLt.so.13", "libcublasLt.so.12"));
  EXPECT_THAT(CublasLtNames(""), ElementsAre("libcublasLt.so.13", "libcublasLt.so.12"));
  EXPECT_THAT(CublasLtNames("/opt/cuda"), ElementsAre("libcublasLt.so.13", "libcublasLt.so.12",
                                                      "/opt/cuda/lib64/libcublasLt.so.13",
                                                      "/opt/cuda/lib64/libcublasLt.so.12"));
}

TEST(CublasLt, AMissingLibraryIsNotFoundWithTheLoadersReason) {
  const auto library = CublasLt::Load(Context(), {"libno_such_library.so.13"});
  EXPECT_EQ(library.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(library.status().message(), HasSubstr("libno_such_library.so.13"));
}

TEST(CublasLt, RowsShareAnAlgorithmByBuckets) {
  EXPECT_EQ(RowsBucket(1), 32);
  EXPECT_EQ(RowsBucket(32), 32);
  EXPECT_EQ(RowsBucket(33), 64);
  EXPECT_EQ(RowsBucket(257), 512);
  EXPECT_EQ(RowsBucket(2048), 2048);
  EXPECT_EQ(RowsBucket(2049), 4096);
  EXPECT_EQ(RowsBucket(5000), 6144);
}

TEST(CublasLt, SplitsKOnlyForFewOutputs) {
  EXPECT_TRUE(MaySplitK(32, 27648));
  EXPECT_TRUE(MaySplitK(2048, 511));
  EXPECT_FALSE(MaySplitK(2048, 512));
  EXPECT_FALSE(MaySplitK(256, 5120));
  EXPECT_FALSE(MaySplitK(2048, 27648));
}

}  // namespace
}  // namespace layercake::kernels::cuda
