#include "kernels/cuda/product_choice.h"

#include <gtest/gtest.h>

#include "kernels/cpu/kernels_test_support.h"
#include "kernels/cuda/decode.h"
#include "kernels/cuda/matmul_large.h"
#include "kernels/cuda/matmul_units.h"

namespace layercake::kernels::cuda {
namespace {

TEST(ProductChoice, GivesFewRowsToOneFamilyOfKernels) {
  for (const WeightType type : kAllTypes) {
    const ProductKernel one = ChooseProductKernel(type, 5120, 1);
    EXPECT_NE(one, ProductKernel::kLarge) << WeightTypeName(type);
    EXPECT_EQ(one == ProductKernel::kFloat, IsFloatType(type)) << WeightTypeName(type);
    for (int rows = 2; rows <= 16; ++rows) {
      EXPECT_EQ(ChooseProductKernel(type, 5120, rows), one) << WeightTypeName(type) << rows;
    }
  }
}

TEST(ProductChoice, GivesPromptsToTheKernelsForManyRows) {
  for (const WeightType type : {WeightType::kQ4_K, WeightType::kQ8_0, WeightType::kBF16}) {
    EXPECT_EQ(ChooseProductKernel(type, 5120, 512), ProductKernel::kLarge) << WeightTypeName(type);
  }
  EXPECT_EQ(ChooseProductKernel(WeightType::kF32, 5120, 512), ProductKernel::kFloat);
}

TEST(ProductChoice, AsksForTheFormsOfItsKernels) {
  EXPECT_EQ(FormsOfProduct(WeightType::kQ4_K, 5120, 16), kFixedForm);
  EXPECT_EQ(FormsOfProduct(WeightType::kF32, 5120, 16), kFloat32Form);
  for (const WeightType type : kAllTypes) {
    EXPECT_NE(FormsOfProduct(type, 5120, 512), 0u) << WeightTypeName(type);
  }
}

TEST(DecodeTogether, JoinsEqualTypesAndTheMixesOfCommonFiles) {
  for (const WeightType type : kAllTypes) EXPECT_TRUE(DecodeTogether(type, type));
  EXPECT_TRUE(DecodeTogether(WeightType::kQ4_K, WeightType::kQ6_K));
  EXPECT_TRUE(DecodeTogether(WeightType::kQ6_K, WeightType::kQ5_K));
  EXPECT_FALSE(DecodeTogether(WeightType::kQ4_K, WeightType::kQ5_K));
  EXPECT_FALSE(DecodeTogether(WeightType::kQ4_0, WeightType::kQ6_K));
}

TEST(ProductChoice, ReadsTilesWhereUnitsAreMultiplied) {
  for (const WeightType type : kAllTypes) {
    if (!HasUnitMatmul(type)) continue;
    SCOPED_TRACE(WeightTypeName(type));
    EXPECT_EQ(FormsOfProduct(type, 5120, 17), kTileForm);
    EXPECT_FALSE(NeedsPanels(type));
  }
  // A few groups of rows read less than panels do.
  EXPECT_EQ(FormsOfProduct(WeightType::kQ2_K, 5120, 64), kFixedForm);
  EXPECT_EQ(FormsOfProduct(WeightType::kQ2_K, 5120, 65), kFloat16Form);
  EXPECT_EQ(FormsOfProduct(WeightType::kQ2_K, 5120, 512), kFloat16Form);
  EXPECT_EQ(FormsOfProduct(WeightType::kMXFP4, 5120, 512), kBfloat16HighForm);
  EXPECT_TRUE(NeedsPanels(WeightType::kQ2_K));
  // Few rows read both parts of an activation, many the high one.
  EXPECT_EQ(FormsOfProduct(WeightType::kBF16, 5120, 16), kBfloat16Form);
  EXPECT_EQ(FormsOfProduct(WeightType::kBF16, 5120, 512), kBfloat16HighForm);
  EXPECT_FALSE(NeedsPanels(WeightType::kBF16));
}

}  // namespace
}  // namespace layercake::kernels::cuda
