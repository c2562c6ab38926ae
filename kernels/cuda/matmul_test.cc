// Products with quantised weights of few rows, on a GPU. The oracle multiplies in double.
#include "kernels/cuda/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cuda/matmul_test_support.h"
#include "kernels/cuda/repack.h"

namespace layercake::kernels::cuda {
namespace {

constexpr WeightType kQuantised[] = {WeightType::kQ4_K, WeightType::kQ6_K,   WeightType::kQ8_0,
                                     WeightType::kQ5_K, WeightType::kQ4_0,   WeightType::kQ4_1,
                                     WeightType::kQ5_0, WeightType::kQ5_1,   WeightType::kQ2_K,
                                     WeightType::kQ3_K, WeightType::kIQ4_NL, WeightType::kIQ4_XS,
                                     WeightType::kMXFP4};

struct Size {
  int64_t n;
  int64_t k;
};

std::vector<Size> SizesFor(WeightType type) {
  std::vector<Size> sizes = {{1, 256}, {130, 1024}, {257, 3584}, {2065, 512}, {40, 29696}};
  if (BlockShapeOf(type).elements == 32) {
    sizes.push_back({151, 896});
    sizes.push_back({19, 3424});
    sizes.push_back({33, 32});
    sizes.push_back({48, 29568});
  }
  return sizes;
}

using QuantisedMatmul = MatmulTest;

TEST_F(QuantisedMatmul, RepacksOnTheDeviceAsOnTheHost) {
  base::SeededRandom random(1);
  for (const WeightType type : kQuantised) {
    for (const Size& size : SizesFor(type)) {
      const auto bytes = RandomWeights(random, type, size.n, size.k);
      const auto matrix = Matrix(type, size.n, size.k, bytes);
      ASSERT_NE(matrix, nullptr);
      std::vector<std::byte> expected(static_cast<size_t>(UnitsBytes(type, size.n, size.k)));
      RepackToUnits(
          type, size.n, size.k,
          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()),
          absl::MakeSpan(expected));
      ASSERT_EQ(matrix->bytes(), expected.size());
      std::vector<std::byte> units(expected.size());
      ASSERT_EQ(cudaMemcpy(units.data(), matrix->weights(), units.size(), cudaMemcpyDeviceToHost),
                cudaSuccess);
      ASSERT_EQ(units, expected) << WeightTypeName(type) << " " << size.n << " x " << size.k;
    }
  }
}

// Exact weights times the operand as it was rounded: only the order of additions differs. And times
// the activations as they were: within what 16 bits per block of 256 keep.
TEST_F(QuantisedMatmul, IsTheProductOfTheFilesNumbers) {
  base::SeededRandom random(2);
  for (const WeightType type : kQuantised) {
    for (const Size& size : SizesFor(type)) {
      const auto bytes = RandomWeights(random, type, size.n, size.k);
      const auto matrix = Matrix(type, size.n, size.k, bytes);
      const auto w = Dequantized(type, bytes, size.n, size.k);
      for (const int rows : {1, 3, 7, 16}) {
        const auto x = HeavyTailedRows(random, rows, size.k);
        const auto operand = Made(x, rows, size.k, kFixedForm);
        const auto rounded = FixedRows(ReadFixed(*operand, rows, size.k), rows, size.k);
        const auto out = Product1(*matrix, *operand, rows);
        const double exact = RelativeError(out, ReferenceProduct(rounded, w, rows, size.n, size.k));
        EXPECT_LT(exact, 2e-6) << WeightTypeName(type) << " " << size.n << " x " << size.k
                               << " rows " << rows;
        const double whole = RelativeError(out, ReferenceProduct(x, w, rows, size.n, size.k));
        // A single row of weights may cancel to anything.
        EXPECT_LT(whole, size.n == 1 ? 1e-2 : 5e-4)
            << WeightTypeName(type) << " " << size.n << " x " << size.k << " rows " << rows;
      }
    }
  }
}

TEST_F(QuantisedMatmul, GivesARowTheSameBitsWhateverRunsBesideIt) {
  base::SeededRandom random(3);
  for (const WeightType type : kQuantised) {
    for (const Size& size : {Size{5120, 1024}, Size{257, 8192}}) {
      const auto matrix = Matrix(type, size.n, size.k, RandomWeights(random, type, size.n, size.k));
      const auto x = HeavyTailedRows(random, 17, size.k);
      const auto all = Product1(*matrix, *Made(x, 16, size.k, kFixedForm), 16);
      for (int rows = 1; rows < 16; ++rows) {
        const auto some = Product1(*matrix, *Made(x, rows, size.k, kFixedForm), rows);
        ASSERT_EQ(std::memcmp(some.data(), all.data(), some.size() * sizeof(float)), 0)
            << WeightTypeName(type) << " rows " << rows;
      }
      // And at another place: row 1 alone.
      const std::vector<float> second(x.begin() + size.k, x.begin() + 2 * size.k);
      const auto alone = Product1(*matrix, *Made(second, 1, size.k, kFixedForm), 1);
      ASSERT_EQ(std::memcmp(alone.data(), all.data() + size.n, alone.size() * sizeof(float)), 0)
          << WeightTypeName(type);
    }
  }
}

// The multiplier of --deterministic: groups of rows, the last one not full.
TEST_F(QuantisedMatmul, GivesARowTheSameBitsAmongManyWhenDeterministic) {
  auto multiplier = Multiplier::Create(
      context_, {.max_rows = 300, .max_panel_weights = 257 * 1024, .deterministic = true});
  ASSERT_TRUE(multiplier.ok()) << multiplier.status();
  multiplier_ = *std::move(multiplier);
  base::SeededRandom random(6);
  const Size size = {257, 1024};
  for (const WeightType type : kQuantised) {
    const auto matrix = Matrix(type, size.n, size.k, RandomWeights(random, type, size.n, size.k));
    const CudaMatrix* const used = matrix.get();
    EXPECT_EQ(multiplier_->FormsFor({&used, 1}, 300), multiplier_->FormsFor({&used, 1}, 1));
    const auto x = HeavyTailedRows(random, 300, size.k);
    const auto all = Product1(*matrix, *Made(x, 300, size.k, kFixedForm), 300);
    for (const int rows : {1, 16, 64, 299}) {
      const auto some = Product1(*matrix, *Made(x, rows, size.k, kFixedForm), rows);
      ASSERT_EQ(std::memcmp(some.data(), all.data(), some.size() * sizeof(float)), 0)
          << WeightTypeName(type) << " rows " << rows;
    }
    const std::vector<float> last(x.end() - size.k, x.end());
    const auto alone = Product1(*matrix, *Made(last, 1, size.k, kFixedForm), 1);
    ASSERT_EQ(std::memcmp(alone.data(), all.data() + 299 * size.n, alone.size() * sizeof(float)), 0)
        << WeightTypeName(type);
  }
}

TEST_F(QuantisedMatmul, GivesTheSameBitsEveryTime) {
  base::SeededRandom random(4);
  const auto matrix =
      Matrix(WeightType::kQ4_K, 1280, 5120, RandomWeights(random, WeightType::kQ4_K, 1280, 5120));
  const auto operand = Made(HeavyTailedRows(random, 2, 5120), 2, 5120, kFixedForm);
  const auto first = Product1(*matrix, *operand, 2);
  for (int i = 0; i < 50; ++i) {
    const auto again = Product1(*matrix, *operand, 2);
    ASSERT_EQ(std::memcmp(first.data(), again.data(), first.size() * sizeof(float)), 0) << i;
  }
}

// q, k, v of a mixed file: two types, three sizes, biases, one accumulated, strided results.
TEST_F(QuantisedMatmul, MultipliesThreeMatricesAtOnceWithBiasAndAccumulation) {
  base::SeededRandom random(5);
  const int64_t k = 1536;
  const int rows = 5;
  const int64_t stride = 900;
  const WeightType types[3] = {WeightType::kQ4_K, WeightType::kQ4_K, WeightType::kQ6_K};
  const int64_t sizes[3] = {896, 131, 129};
  const auto x = HeavyTailedRows(random, rows, k);
  const auto operand = Made(x, rows, k, kFixedForm);
  const auto rounded = FixedRows(ReadFixed(*operand, rows, k), rows, k);
  std::vector<std::unique_ptr<CudaMatrix>> matrices;
  std::vector<DeviceArray> outs, biases;
  std::vector<std::vector<double>> references;
  std::vector<Product> products;
  for (int i = 0; i < 3; ++i) {
    const auto bytes = RandomWeights(random, types[i], sizes[i], k);
    matrices.push_back(Matrix(types[i], sizes[i], k, bytes));
    references.push_back(
        ReferenceProduct(rounded, Dequantized(types[i], bytes, sizes[i], k), rows, sizes[i], k));
    const auto before = RandomFloats(random, rows * stride, 50.0f);
    const auto bias = RandomFloats(random, sizes[i], 20.0f);
    const bool accumulate = i == 1;
    for (int r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < sizes[i]; ++c) {
        double& value = references.back()[static_cast<size_t>(r * sizes[i] + c)];
        value += static_cast<double>(bias[static_cast<size_t>(c)]);
        if (accumulate) value += static_cast<double>(before[static_cast<size_t>(r * stride + c)]);
      }
    }
    biases.push_back(Upload(bias));
    outs.push_back(Upload(accumulate ? before : Poisoned(rows * stride)));
    products.push_back({matrices.back().get(), biases.back().as<float>(), outs.back().as<float>(),
                        stride, accumulate});
  }
  ASSERT_TRUE(multiplier_->Multiply(products, *operand, rows).ok());
  for (size_t i = 0; i < 3; ++i) {
    const auto all = Download<float>(outs[i], rows * stride);
    std::vector<float> out;
    for (int r = 0; r < rows; ++r) {
      out.insert(out.end(), all.begin() + r * stride, all.begin() + r * stride + sizes[i]);
    }
    EXPECT_LT(RelativeError(out, references[i]), 2e-6) << i;
    // Nothing is written beside the results.
    EXPECT_TRUE(i == 1 || std::isnan(all[static_cast<size_t>(sizes[i])])) << i;
  }
}

TEST_F(QuantisedMatmul, ShowsANaNInItsRowOnly) {
  base::SeededRandom random(6);
  const int64_t n = 200;
  const int64_t k = 768;
  for (const WeightType type : kQuantised) {
    const auto matrix = Matrix(type, n, k, RandomWeights(random, type, n, k));
    auto x = RandomFloats(random, 3 * k);
    x[static_cast<size_t>(k + 300)] = std::numeric_limits<float>::infinity();
    const auto out = Product1(*matrix, *Made(x, 3, k, kFixedForm), 3);
    for (int64_t i = 0; i < 3 * n; ++i) {
      ASSERT_EQ(std::isnan(out[static_cast<size_t>(i)]), i / n == 1) << WeightTypeName(type);
    }
  }
}

TEST_F(QuantisedMatmul, RefusesWhatDoesNotFit) {
  base::SeededRandom random(7);
  const auto bytes = RandomWeights(random, WeightType::kQ4_K, 8, 256);
  const auto span =
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
  EXPECT_EQ(UploadMatrix(context_, WeightType::kQ4_K, 9, 256, span).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(UploadMatrix(context_, WeightType::kQ4_K, 8, 255, span).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto matrix = Matrix(WeightType::kQ4_K, 8, 256, bytes);
  const auto operand = Made(RandomFloats(random, 256), 1, 256, kFixedForm);
  const DeviceArray out = Upload(Poisoned(16));
  const Product narrow = {matrix.get(), nullptr, out.as<float>(), 7, false};
  EXPECT_EQ(multiplier_->Multiply({&narrow, 1}, *operand, 1).code(),
            absl::StatusCode::kInvalidArgument);
  const Product product = {matrix.get(), nullptr, out.as<float>(), 8, false};
  EXPECT_EQ(multiplier_->Multiply({&product, 1}, *operand, 2).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(multiplier_->Multiply({&product, 1}, *operand, 0).ok());
}

}  // namespace
}  // namespace layercake::kernels::cuda
