#include "kernels/cuda/matmul_large.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/gpu_test_support.h"
#include "kernels/cuda/matmul_units.h"
#include "kernels/cuda/tiled_matmul.h"

namespace layercake::kernels::cuda {
namespace {

using testing::HasSubstr;

double Tolerance(WeightType type) {
  // bf16 activations 1.7e-3; f16 activations 2e-4 and, for quantised types, f16 weights as well.
  return type == WeightType::kBF16 || type == WeightType::kMXFP4 ? 3e-3 : 6e-4;
}

class LargeMatmulTest : public GpuTest {
 protected:
  std::unique_ptr<LargeMatmul> Create(int64_t max_panel_weights, bool own_kernel,
                                      bool panels_only = false) {
    LargeMatmulOptions options;
    options.panels_only = panels_only;
    options.max_panel_weights = max_panel_weights;
    options.own_kernel = own_kernel;
    auto large = LargeMatmul::Create(context_, options);
    EXPECT_TRUE(large.ok()) << large.status();
    return large.ok() ? *std::move(large) : nullptr;
  }

  // On Hopper with the kernels of other cards.
  std::unique_ptr<LargeMatmul> CreateAsOnOthers(int64_t max_panel_weights) {
    const int own = std::exchange(context_.compute_major, 8);
    auto large = Create(max_panel_weights, false);
    context_.compute_major = own;
    return large;
  }

  std::unique_ptr<CudaMatrix> UploadWeights(WeightType type, int64_t n, int64_t k,
                                            const std::vector<uint8_t>& bytes) {
    auto matrix = UploadMatrix(
        context_, type, n, k,
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
    EXPECT_TRUE(matrix.ok()) << matrix.status();
    return matrix.ok() ? *std::move(matrix) : nullptr;
  }

  std::unique_ptr<Operand> MakeOperand(const std::vector<float>& x, int rows, int64_t k) {
    constexpr OperandForms kForms = kFloat16Form | kBfloat16HighForm | kTileForm;
    auto operand = Operand::Create(context_, rows, k, kForms);
    EXPECT_TRUE(operand.ok()) << operand.status();
    if (!operand.ok()) return nullptr;
    const DeviceArray values = Upload(x);
    EXPECT_TRUE(PlainOperand(context_, values.as<float>(), rows, k, kForms, **operand).ok());
    EXPECT_EQ(cudaStreamSynchronize(context_.stream), cudaSuccess);
    return *std::move(operand);
  }

  std::vector<float> Multiply(LargeMatmul& large, const CudaMatrix& w, const Operand& operand,
                              int rows, int64_t stride, const std::vector<float>& before,
                              const float* bias, bool accumulate) {
    const DeviceArray out = Upload(before);
    const Product product = {&w, bias, out.as<float>(), stride, accumulate};
    const absl::Status status = large.Multiply({&product, 1}, operand, rows);
    EXPECT_TRUE(status.ok()) << status;
    return Download<float>(out, static_cast<int64_t>(before.size()));
  }
};

std::vector<float> Columns(const std::vector<float>& out, int64_t rows, int64_t n, int64_t stride) {
  std::vector<float> part;
  for (int64_t r = 0; r < rows; ++r) {
    part.insert(part.end(), out.begin() + r * stride, out.begin() + r * stride + n);
  }
  return part;
}

TEST_F(LargeMatmulTest, AgreesWithTheProductInDoubleForEveryType) {
  constexpr int kMostRows = 257;
  const std::pair<int64_t, int64_t> sizes[] = {{131, 1024}, {1030, 512}, {300, 2560}};
  // By the library and by units, twice; by our own kernel and by panels alone.
  const std::unique_ptr<LargeMatmul> ways[] = {
      Create(300 * 2560, false), CreateAsOnOthers(300 * 2560), Create(300 * 2560, true, true)};
  for (const auto& way : ways) ASSERT_NE(way, nullptr);
  for (const auto& [n, k] : sizes) {
    base::SeededRandom random(static_cast<uint64_t>(n + k));
    const std::vector<float> x = HeavyTailedRows(random, kMostRows, k);
    const auto operand = MakeOperand(x, kMostRows, k);
    ASSERT_NE(operand, nullptr);
    for (const WeightType type : kAllTypes) {
      if (type == WeightType::kF32) continue;
      const std::vector<uint8_t> bytes = RandomWeights(random, type, n, k);
      const auto w = UploadWeights(type, n, k, bytes);
      ASSERT_NE(w, nullptr);
      const std::vector<double> reference =
          ReferenceProduct(x, Dequantized(type, bytes, n, k), kMostRows, n, k);
      for (const std::unique_ptr<LargeMatmul>& large : ways) {
        if (large == ways[1] && !HasUnitMatmul(type)) continue;  // the same again
        for (const int rows : {17, 33, 64, 70, 100, kMostRows}) {
          SCOPED_TRACE(absl::StrCat(WeightTypeName(type), " n ", n, " k ", k, " rows ", rows,
                                    " library ", large->uses_library()));
          const int64_t stride = n + 3;
          const std::vector<float> out = Multiply(*large, *w, *operand, rows, stride,
                                                  Poisoned(rows * stride + 64), nullptr, false);
          const std::vector<double> part(reference.begin(), reference.begin() + rows * n);
          EXPECT_LT(RelativeError(Columns(out, rows, n, stride), part), Tolerance(type));
          for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
            const bool written = i < rows * stride && i % stride < n;
            ASSERT_EQ(std::isnan(out[static_cast<size_t>(i)]), !written) << "at " << i;
          }
        }
      }
    }
  }
}

// Items that are cut among many blocks, whole rounds of items, and the flags between launches: many
// rows of weights or of columns, several matrices at once, twice the same.
TEST_F(LargeMatmulTest, DealsOutUnitsOfEveryShape) {
  struct Case {
    WeightType type;
    int64_t n, k;
    int rows;
  };
  const Case cases[] = {{WeightType::kQ4_K, 40, 29696, 20},    {WeightType::kQ6_K, 520, 11008, 64},
                        {WeightType::kQ8_0, 300, 896, 128},    {WeightType::kQ8_0, 33, 3424, 90},
                        {WeightType::kQ5_K, 2560, 2560, 1100}, {WeightType::kQ4_K, 9000, 512, 700}};
  for (const Case& c : cases) {
    SCOPED_TRACE(absl::StrCat(WeightTypeName(c.type), " n ", c.n, " k ", c.k, " rows ", c.rows));
    base::SeededRandom random(static_cast<uint64_t>(c.n + c.k));
    const std::vector<float> x = HeavyTailedRows(random, c.rows, c.k);
    const auto operand = MakeOperand(x, c.rows, c.k);
    const std::unique_ptr<LargeMatmul> ways[] = {Create(c.n * c.k, false),
                                                 CreateAsOnOthers(c.n * c.k)};
    ASSERT_TRUE(operand != nullptr && ways[0] != nullptr && ways[1] != nullptr);
    constexpr int kMatrices = 2;
    std::unique_ptr<CudaMatrix> w[kMatrices];
    std::vector<float> weights[kMatrices];
    for (int i = 0; i < kMatrices; ++i) {
      const std::vector<uint8_t> bytes = RandomWeights(random, c.type, c.n, c.k);
      w[i] = UploadWeights(c.type, c.n, c.k, bytes);
      ASSERT_NE(w[i], nullptr);
      weights[i] = Dequantized(c.type, bytes, c.n, c.k);
    }
    for (const std::unique_ptr<LargeMatmul>& large : ways) {
      std::vector<float> first;
      for (int repeat = 0; repeat < 2; ++repeat) {
        const DeviceArray out = Upload(Poisoned(kMatrices * c.rows * c.n));
        Product products[kMatrices];
        for (int i = 0; i < kMatrices; ++i) {
          products[i] = {w[i].get(), nullptr, out.as<float>() + i * c.n, kMatrices * c.n, false};
        }
        ASSERT_TRUE(large->Multiply(products, *operand, c.rows).ok());
        const auto got = Download<float>(out, kMatrices * c.rows * c.n);
        if (first.empty()) first = got;
        EXPECT_EQ(std::memcmp(got.data(), first.data(), got.size() * sizeof(float)), 0);
      }
      // A sample of the rows is enough to see a part that is missing.
      for (int r = 0; r < c.rows; r += std::max(1, c.rows / 24)) {
        for (int i = 0; i < kMatrices; ++i) {
          const std::vector<float> row(x.begin() + r * c.k, x.begin() + (r + 1) * c.k);
          const std::vector<float> part(first.begin() + (r * kMatrices + i) * c.n,
                                        first.begin() + (r * kMatrices + i + 1) * c.n);
          EXPECT_LT(RelativeError(part, ReferenceProduct(row, weights[i], 1, c.n, c.k)), 1e-3)
              << "row " << r << " matrix " << i;
        }
      }
    }
  }
}

TEST_F(LargeMatmulTest, AddsTheBiasAndTheOutputInEveryPanel) {
  constexpr int64_t kN = 700;
  constexpr int64_t kK = 512;
  constexpr int kRows = 40;
  base::SeededRandom random(23);
  const std::vector<float> x = HeavyTailedRows(random, kRows, kK);
  const auto operand = MakeOperand(x, kRows, kK);
  const std::vector<float> before = RandomFloats(random, kRows * kN, 30);
  const std::vector<float> bias = RandomFloats(random, kN, 30);
  const DeviceArray bias_array = Upload(bias);
  for (const bool own_kernel : {false, true}) {
    // Room for 256 rows: three panels.
    const auto large = Create(300 * kK, own_kernel);
    ASSERT_NE(large, nullptr);
    for (const WeightType type : {WeightType::kQ4_K, WeightType::kQ2_K, WeightType::kMXFP4,
                                  WeightType::kBF16, WeightType::kF16}) {
      const std::vector<uint8_t> bytes = RandomWeights(random, type, kN, kK);
      const auto w = UploadWeights(type, kN, kK, bytes);
      ASSERT_NE(w, nullptr);
      for (const bool accumulate : {false, true}) {
        std::vector<double> reference =
            ReferenceProduct(x, Dequantized(type, bytes, kN, kK), kRows, kN, kK);
        for (size_t i = 0; i < reference.size(); ++i) {
          reference[i] += static_cast<double>(bias[i % kN]);
          if (accumulate) reference[i] += static_cast<double>(before[i]);
        }
        const std::vector<float> out =
            Multiply(*large, *w, *operand, kRows, kN, accumulate ? before : Poisoned(kRows * kN),
                     bias_array.as<float>(), accumulate);
        EXPECT_LT(RelativeError(out, reference), Tolerance(type))
            << WeightTypeName(type) << " accumulate " << accumulate;
      }
    }
  }
}

TEST_F(LargeMatmulTest, EqualCallsHaveEqualBits) {
  constexpr int64_t kN = 5120;
  constexpr int64_t kK = 1024;
  constexpr int kRows = 100;
  base::SeededRandom random(29);
  const auto operand = MakeOperand(HeavyTailedRows(random, kRows, kK), kRows, kK);
  const std::unique_ptr<LargeMatmul> ways[] = {Create(kN * kK, false), CreateAsOnOthers(kN * kK),
                                               Create(kN * kK, true, true)};
  for (const std::unique_ptr<LargeMatmul>& large : ways) {
    ASSERT_NE(large, nullptr);
    const auto w =
        UploadWeights(WeightType::kQ6_K, kN, kK, RandomWeights(random, WeightType::kQ6_K, kN, kK));
    const auto once =
        Multiply(*large, *w, *operand, kRows, kN, Poisoned(kRows * kN), nullptr, false);
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(Multiply(*large, *w, *operand, kRows, kN, Poisoned(kRows * kN), nullptr, false),
                once);
    }
  }
}

TEST_F(LargeMatmulTest, SeveralMatricesInOneCallAgreeWithTheProductInDouble) {
  constexpr int64_t kK = 1280;
  constexpr int kRows = 150;
  const int64_t sizes[] = {1700, 129, 300};
  base::SeededRandom random(37);
  const std::vector<float> x = HeavyTailedRows(random, kRows, kK);
  const auto operand = MakeOperand(x, kRows, kK);
  const auto large = Create(1700 * kK, true);
  for (const WeightType type : {WeightType::kQ4_K, WeightType::kQ8_0}) {
    std::vector<std::unique_ptr<CudaMatrix>> weights;
    std::vector<std::vector<double>> references;
    std::vector<DeviceArray> outs;
    std::vector<Product> products;
    for (const int64_t n : sizes) {
      const std::vector<uint8_t> bytes = RandomWeights(random, type, n, kK);
      weights.push_back(UploadWeights(type, n, kK, bytes));
      references.push_back(ReferenceProduct(x, Dequantized(type, bytes, n, kK), kRows, n, kK));
      outs.push_back(Upload(Poisoned(kRows * n)));
      products.push_back({weights.back().get(), nullptr, outs.back().as<float>(), n, false});
    }
    ASSERT_TRUE(large->Multiply(products, *operand, kRows).ok());
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_LT(RelativeError(Download<float>(outs[i], kRows * sizes[i]), references[i]),
                Tolerance(type))
          << WeightTypeName(type) << " matrix " << i;
    }
  }
}

TEST_F(LargeMatmulTest, ADeterministicMultiplierGivesARowTheSameBitsInAStepOfAnySize) {
  constexpr int64_t kN = 300;
  constexpr int64_t kK = 768;
  constexpr int kRows = 150;
  base::SeededRandom random(41);
  const DeviceArray x = Upload(HeavyTailedRows(random, kRows, kK));
  MultiplierLimits limits;
  limits.max_rows = kRows;
  limits.max_panel_weights = kN * kK;
  limits.deterministic = true;
  auto multiplier = Multiplier::Create(context_, limits);
  ASSERT_TRUE(multiplier.ok()) << multiplier.status();
  for (const WeightType type : {WeightType::kQ4_K, WeightType::kQ2_K, WeightType::kBF16}) {
    const auto w = UploadWeights(type, kN, kK, RandomWeights(random, type, kN, kK));
    const CudaMatrix* const matrices[] = {w.get()};
    const OperandForms forms = (*multiplier)->FormsFor(matrices, kRows);
    auto operand = Operand::Create(context_, kRows, kK, forms);
    ASSERT_TRUE(operand.ok()) << operand.status();
    ASSERT_TRUE(PlainOperand(context_, x.as<float>(), kRows, kK, forms, **operand).ok());
    std::vector<float> all;
    for (const int rows : {kRows, 1, 16, 17, 100}) {
      const DeviceArray out = Upload(Poisoned(rows * kN));
      const Product product = {w.get(), nullptr, out.as<float>(), kN, false};
      ASSERT_TRUE((*multiplier)->Multiply({&product, 1}, **operand, rows).ok());
      const std::vector<float> got = Download<float>(out, rows * kN);
      if (all.empty()) all = got;
      EXPECT_EQ(std::memcmp(got.data(), all.data(), got.size() * sizeof(float)), 0)
          << WeightTypeName(type) << ", " << rows << " rows";
      EXPECT_FALSE(std::isnan(got.back()));
    }
  }
}

TEST_F(LargeMatmulTest, RefusesWhatItWasNotMadeFor) {
  base::SeededRandom random(31);
  const auto large = Create(64 * 256, true);
  ASSERT_NE(large, nullptr);
  const auto operand = MakeOperand(RandomFloats(random, 20 * 256), 20, 256);
  const auto f32 =
      UploadWeights(WeightType::kF32, 64, 256, RandomWeights(random, WeightType::kF32, 64, 256));
  const auto wide = UploadWeights(WeightType::kQ2_K, 512, 256,
                                  RandomWeights(random, WeightType::kQ2_K, 512, 256));
  const DeviceArray out = Upload(Poisoned(20 * 512));
  Product product = {f32.get(), nullptr, out.as<float>(), 64, false};
  EXPECT_THAT(large->Multiply({&product, 1}, *operand, 20).message(), HasSubstr("takes no F32"));
  product = {wide.get(), nullptr, out.as<float>(), 512, false};
  EXPECT_THAT(large->Multiply({&product, 1}, *operand, 20).message(), HasSubstr("do not fit"));
  EXPECT_THAT(large->Multiply({&product, 1}, *operand, 21).message(), HasSubstr("21 rows"));
}

}  // namespace
}  // namespace layercake::kernels::cuda
