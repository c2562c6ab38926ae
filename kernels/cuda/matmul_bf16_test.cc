// Products of BF16 weights with 17 to 128 rows, on a GPU.
#include "kernels/cuda/matmul_bf16.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/matmul_test_support.h"

namespace layercake::kernels::cuda {
namespace {

class Bf16MatmulTest : public MatmulTest {
 protected:
  void SetUp() override {
    MatmulTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(PrepareBf16Matmul(context_, &scratch_.encode), cudaSuccess);
    if (scratch_.encode == nullptr) GTEST_SKIP() << "no such products on this device";
    partials_ = Array(Bf16PartialBytes(context_.sm_count));
    flags_ = Array(Bf16FlagBytes(context_.sm_count));
    scratch_.partials = partials_.address();
    scratch_.flags = flags_.as<uint32_t>();
  }
  void TearDown() override {
    partials_ = DeviceArray();
    flags_ = DeviceArray();
    MatmulTest::TearDown();
  }

  DeviceArray Array(size_t bytes) {
    auto array = DeviceArray::Allocate(context_, bytes, "a test's array");
    EXPECT_TRUE(array.ok()) << array.status();
    return array.ok() ? *std::move(array) : DeviceArray();
  }

  // (n, k) random bf16 on the device, and what they stand for.
  struct Weights {
    DeviceArray array;
    std::vector<float> values;
    int64_t n = 0;
  };
  Weights MakeWeights(base::Random& random, int64_t n, int64_t k) {
    const std::vector<uint8_t> bytes = RandomWeights(random, WeightType::kBF16, n, k);
    return {Upload(bytes), Dequantized(WeightType::kBF16, bytes, n, k), n};
  }

  // x rounded to bf16, as floats, so that the reference multiplies what the kernel does.
  static std::vector<float> Rounded(std::vector<float> x) {
    for (float& value : x) {
      value = std::bit_cast<float>(uint32_t{FloatToBf16(value)} << 16);
    }
    return x;
  }
  DeviceArray UploadBf16(const std::vector<float>& x) {
    std::vector<uint16_t> bits(x.size());
    for (size_t i = 0; i < x.size(); ++i) bits[i] = FloatToBf16(x[i]);
    return Upload(bits);
  }

  // Room for (rows, stride) results, and more behind.
  static constexpr int64_t kBehind = 300;
  static constexpr int64_t kGap = 3;  // between rows
  struct Result {
    std::vector<float> all;
    std::vector<float> of_product;  // (rows, n)
  };
  // One launch of products of all of `weights`. `before` (floats of one (rows, n + kGap) room):
  // added to.
  std::vector<Result> Multiply(const std::vector<Weights>& weights, const DeviceArray& x, int rows,
                               int64_t k, const DeviceArray* bias, float before) {
    std::vector<DeviceArray> outs;
    Bf16Products products;
    products.k = k;
    for (const Weights& w : weights) {
      std::vector<float> room = Poisoned(rows * (w.n + kGap) + kBehind);
      if (before != 0) std::fill(room.begin(), room.end(), before);
      outs.push_back(Upload(room));
      products.product[products.count++] = {.weights = w.array.as<uint16_t>(),
                                            .n = w.n,
                                            .bias = bias == nullptr ? nullptr : bias->as<float>(),
                                            .out = outs.back().as<float>(),
                                            .out_stride = w.n + kGap,
                                            .accumulate = before != 0};
    }
    EXPECT_EQ(MultiplyBf16(context_, products, x.as<uint16_t>(), rows, scratch_), cudaSuccess);
    std::vector<Result> results;
    for (size_t i = 0; i < weights.size(); ++i) {
      const int64_t n = weights[i].n;
      Result& result = results.emplace_back();
      result.all = Download<float>(outs[i], rows * (n + kGap) + kBehind);
      for (int64_t r = 0; r < rows; ++r) {
        const auto first = result.all.begin() + r * (n + kGap);
        result.of_product.insert(result.of_product.end(), first, first + n);
      }
    }
    return results;
  }

  void ExpectFlagsZero() {
    const auto count = static_cast<int64_t>(Bf16FlagBytes(context_.sm_count) / sizeof(uint32_t));
    for (const uint32_t flag : Download<uint32_t>(flags_, count)) ASSERT_EQ(flag, 0u);
  }

  Bf16Scratch scratch_;
  DeviceArray partials_, flags_;
};

// Rows of the last tile and columns of the last step that do not exist; items cut among many
// blocks, in two, and not at all; one to three matrices.
TEST_F(Bf16MatmulTest, AgreesWithTheProductInDoubleForEverySize) {
  struct Case {
    std::vector<int64_t> n;
    int64_t k;
  };
  for (const Case& c : {Case{{8}, 8}, Case{{131}, 1000}, Case{{1030, 129, 300}, 520},
                        Case{{40, 256}, 27648}, Case{{18000}, 72}}) {
    base::SeededRandom random(static_cast<uint64_t>(c.n[0] + c.k));
    std::vector<Weights> weights;
    for (const int64_t n : c.n) weights.push_back(MakeWeights(random, n, c.k));
    const std::vector<float> x = Rounded(HeavyTailedRows(random, kBf16MostRows, c.k));
    const DeviceArray x_array = UploadBf16(x);
    for (const int rows : {17, 31, 32, 33, 64, 90, 100, 128}) {
      SCOPED_TRACE(absl::StrCat("n ", c.n[0], " of ", c.n.size(), " k ", c.k, " rows ", rows));
      const auto results = Multiply(weights, x_array, rows, c.k, nullptr, 0);
      const auto again = Multiply(weights, x_array, rows, c.k, nullptr, 0);
      for (size_t i = 0; i < weights.size(); ++i) {
        const int64_t n = weights[i].n;
        // A sample of the rows is enough for large matrices.
        const int step = n * c.k > 500000 ? 7 : 1;
        for (int r = 0; r < rows; r += step) {
          const std::vector<float> row(x.begin() + r * c.k, x.begin() + (r + 1) * c.k);
          const std::vector<float> out(results[i].of_product.begin() + r * n,
                                       results[i].of_product.begin() + (r + 1) * n);
          ASSERT_LT(RelativeError(out, ReferenceProduct(row, weights[i].values, 1, n, c.k)), 1e-4)
              << "matrix " << i << " row " << r;
        }
        for (int64_t at = 0; at < static_cast<int64_t>(results[i].all.size()); ++at) {
          const bool written = at < rows * (n + kGap) && at % (n + kGap) < n;
          ASSERT_EQ(std::isnan(results[i].all[static_cast<size_t>(at)]), !written) << "at " << at;
        }
        EXPECT_EQ(std::memcmp(again[i].of_product.data(), results[i].of_product.data(),
                              again[i].of_product.size() * sizeof(float)),
                  0);
      }
      ExpectFlagsZero();
    }
  }
}

TEST_F(Bf16MatmulTest, AddsTheBiasAndTheOutput) {
  constexpr int64_t kN = 700;
  constexpr int64_t kK = 512;
  base::SeededRandom random(3);
  std::vector<Weights> weights;
  weights.push_back(MakeWeights(random, kN, kK));
  const std::vector<float> x = Rounded(HeavyTailedRows(random, kBf16MostRows, kK));
  const DeviceArray x_array = UploadBf16(x);
  const std::vector<float> bias = RandomFloats(random, kN, 30);
  const DeviceArray bias_array = Upload(bias);
  for (const int rows : {20, 50, 70, 128}) {
    for (const float before : {0.0f, 25.0f}) {
      const std::vector<float> used(x.begin(), x.begin() + rows * kK);
      std::vector<double> reference = ReferenceProduct(used, weights[0].values, rows, kN, kK);
      for (size_t i = 0; i < reference.size(); ++i) reference[i] += double{bias[i % kN]} + before;
      const auto results = Multiply(weights, x_array, rows, kK, &bias_array, before);
      EXPECT_LT(RelativeError(results[0].of_product, reference), 1e-4)
          << rows << " rows before " << before;
    }
  }
}

TEST_F(Bf16MatmulTest, WritesGatedProductsAsBf16) {
  struct Case {
    int64_t n, k;
  };
  for (const Case& c : {Case{8, 64}, Case{136, 1000}, Case{1400, 2048}, Case{17000, 136}}) {
    base::SeededRandom random(static_cast<uint64_t>(c.n + c.k));
    const Weights gate = MakeWeights(random, c.n, c.k);
    const Weights up = MakeWeights(random, c.n, c.k);
    const std::vector<float> gate_bias = RandomFloats(random, c.n, 2);
    const std::vector<float> up_bias = RandomFloats(random, c.n, 2);
    const DeviceArray gate_bias_array = Upload(gate_bias);
    const DeviceArray up_bias_array = Upload(up_bias);
    for (const int rows : {17, 33, 90, 128}) {
      for (const bool biased : {false, true}) {
        SCOPED_TRACE(absl::StrCat("n ", c.n, " k ", c.k, " rows ", rows, " biased ", biased));
        std::vector<float> x = RandomFloats(random, rows * c.k, 1);
        for (float& value : x) value /= std::sqrt(static_cast<float>(c.k)) / 4;
        x = Rounded(x);
        const DeviceArray x_array = UploadBf16(x);
        const DeviceArray out =
            Upload(std::vector<uint16_t>(static_cast<size_t>(rows * c.n + kBehind), 0x7fc0));
        Bf16Products products;
        products.count = 2;
        products.k = c.k;
        products.gated = out.as<uint16_t>();
        products.product[0] = {.weights = gate.array.as<uint16_t>(), .n = c.n};
        products.product[1] = {.weights = up.array.as<uint16_t>(), .n = c.n};
        if (biased) {
          products.product[0].bias = gate_bias_array.as<float>();
          products.product[1].bias = up_bias_array.as<float>();
        }
        ASSERT_EQ(MultiplyBf16(context_, products, x_array.as<uint16_t>(), rows, scratch_),
                  cudaSuccess);
        const auto bits = Download<uint16_t>(out, rows * c.n + kBehind);
        const int step = c.n * c.k > 500000 ? 5 : 1;
        std::vector<float> got;
        std::vector<double> references;
        for (int r = 0; r < rows; r += step) {
          const std::vector<float> row(x.begin() + r * c.k, x.begin() + (r + 1) * c.k);
          auto reference = ReferenceProduct(row, gate.values, 1, c.n, c.k);
          const auto of_up = ReferenceProduct(row, up.values, 1, c.n, c.k);
          for (size_t i = 0; i < reference.size(); ++i) {
            const double z = reference[i] + (biased ? double{gate_bias[i]} : 0.0);
            const double u = of_up[i] + (biased ? double{up_bias[i]} : 0.0);
            reference[i] = z / (1 + std::exp(-z)) * u;
            references.push_back(reference[i]);
            const uint32_t of_value = bits[static_cast<size_t>(r * c.n) + i];
            got.push_back(std::bit_cast<float>(of_value << 16));
          }
        }
        // bf16 keeps 8 bits: 1.7e-3 of the norm.
        EXPECT_LT(RelativeError(got, references), 2.5e-3);
        for (size_t i = static_cast<size_t>(rows * c.n); i < bits.size(); ++i) {
          ASSERT_EQ(bits[i], 0x7fc0) << "behind the last row";
        }
        ExpectFlagsZero();
      }
    }
  }
}

TEST_F(Bf16MatmulTest, ANaNShowsInItsRowAndInNoOther) {
  constexpr int64_t kN = 300;
  constexpr int64_t kK = 640;
  constexpr int kRows = 70;
  constexpr int kBad = 37;
  base::SeededRandom random(7);
  std::vector<Weights> weights;
  weights.push_back(MakeWeights(random, kN, kK));
  std::vector<float> x = RandomFloats(random, kBf16MostRows * kK, 1);
  x[kBad * kK + 100] = std::numeric_limits<float>::quiet_NaN();
  // Rows that are not asked for do not count either.
  for (size_t i = kRows * kK; i < x.size(); ++i) x[i] = std::numeric_limits<float>::quiet_NaN();
  const auto results = Multiply(weights, UploadBf16(x), kRows, kK, nullptr, 0);
  for (size_t i = 0; i < results[0].of_product.size(); ++i) {
    ASSERT_EQ(std::isnan(results[0].of_product[i]), i / kN == kBad) << "row " << i / kN;
  }
}

TEST_F(Bf16MatmulTest, RefusesWhatItWasNotMadeFor) {
  base::SeededRandom random(9);
  const Weights w = MakeWeights(random, 16, 64);
  const DeviceArray x = UploadBf16(RandomFloats(random, 200 * 64));
  const DeviceArray out = Upload(Poisoned(200 * 16));
  Bf16Products products;
  products.count = 1;
  products.k = 64;
  products.product[0] = {
      .weights = w.array.as<uint16_t>(), .n = 16, .out = out.as<float>(), .out_stride = 16};
  const auto multiply = [&](int rows) {
    return MultiplyBf16(context_, products, x.as<uint16_t>(), rows, scratch_);
  };
  EXPECT_EQ(multiply(16), cudaErrorInvalidValue);
  EXPECT_EQ(multiply(129), cudaErrorInvalidValue);
  EXPECT_EQ(multiply(17), cudaSuccess);
  products.k = 60;
  EXPECT_EQ(multiply(17), cudaErrorInvalidValue);
  products.k = 64;
  products.count = 4;
  EXPECT_EQ(multiply(17), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace layercake::kernels::cuda
