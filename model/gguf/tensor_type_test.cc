#include "model/gguf/tensor_type.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace layercake::model {
namespace {

using ::testing::HasSubstr;

TEST(TensorType, KnowsExactlyTheTypesThatWeRead) {
  const std::set<uint32_t> supported = {0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 30, 39};
  for (uint32_t id = 0; id < 300; ++id) {
    const auto type = TensorTypeFromGgufId(id);
    EXPECT_EQ(type.has_value(), supported.contains(id)) << id;
    if (!type) continue;
    EXPECT_EQ(static_cast<uint32_t>(*type), id);
    EXPECT_GE(TensorBlockOf(*type).elements, 1u);
    EXPECT_GE(TensorBlockOf(*type).bytes, 1u);
  }
}

TEST(TensorType, NamesTypesThatAreRefused) {
  EXPECT_EQ(DescribeGgufTypeId(40), "NVFP4 (id 40)");
  EXPECT_EQ(DescribeGgufTypeId(36), "IQ4_NL_4_4, removed (id 36)");
  EXPECT_EQ(DescribeGgufTypeId(42), "Q2_0 (id 42)");
  EXPECT_EQ(DescribeGgufTypeId(255), "unknown type (id 255)");
  EXPECT_EQ(DescribeGgufTypeId(12), "Q4_K (id 12)");
}

TEST(TensorType, GivesRowBytesOfRealModels) {
  struct Case {
    TensorType type;
    uint64_t k;
    uint64_t bytes;
  };
  const Case cases[] = {
      {TensorType::kF32, 5, 20},       {TensorType::kF16, 5, 10},
      {TensorType::kBF16, 5, 10},      {TensorType::kQ4_0, 576, 324},
      {TensorType::kQ4_1, 576, 360},   {TensorType::kQ5_0, 896, 616},
      {TensorType::kQ5_1, 896, 672},   {TensorType::kQ8_0, 29568, 31416},
      {TensorType::kQ2_K, 512, 168},   {TensorType::kQ3_K, 512, 220},
      {TensorType::kQ4_K, 4096, 2304}, {TensorType::kQ5_K, 4096, 2816},
      {TensorType::kQ6_K, 4096, 3360}, {TensorType::kIQ4_NL, 64, 36},
      {TensorType::kIQ4_XS, 256, 136}, {TensorType::kMXFP4, 64, 34},
  };
  for (const Case& one : cases) {
    const auto bytes = RowBytes(one.type, one.k);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_EQ(*bytes, one.bytes) << TensorTypeName(one.type);
  }
}

TEST(TensorType, RefusesRowsThatAreNotWholeBlocks) {
  EXPECT_THAT(RowBytes(TensorType::kQ4_K, 896).status().message(), HasSubstr("896"));
  EXPECT_FALSE(RowBytes(TensorType::kQ8_0, 0).ok());
  EXPECT_FALSE(RowBytes(TensorType::kF32, uint64_t{1} << 62).ok());
}

}  // namespace
}  // namespace layercake::model
