// Products of BF16 weights with 1 to 16 rows of pairs, on a GPU that has a kernel for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/gpu_test_support.h"
#include "kernels/cuda/matmul_bf16.h"

namespace layercake::kernels::cuda {
namespace {

// 16 bits of an activation, and float32 sums.
constexpr double kTolerance = 1e-5;
constexpr int64_t kGap = 3;      // between rows of results
constexpr int64_t kBehind = 64;  // poisoned floats behind every output

struct Sizes {
  std::vector<int64_t> n;  // of one to three matrices
  int64_t k;
};

class Bf16PairsTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(PrepareBf16Matmul(context_, &scratch_.encode), cudaSuccess);
    if (scratch_.encode == nullptr) GTEST_SKIP() << "no such products on this device";
    flag_count_ = static_cast<int64_t>(Bf16FlagBytes(context_.sm_count) / sizeof(uint32_t));
    const size_t partials = Bf16PairPartialBytes(context_.sm_count) / sizeof(float);
    partials_ = Upload(Poisoned(static_cast<int64_t>(partials)));
    flags_ = Upload(std::vector<uint32_t>(static_cast<size_t>(flag_count_)));
    scratch_.partials = partials_.address();
    scratch_.flags = flags_.as<uint32_t>();
  }
  void TearDown() override {
    partials_ = DeviceArray();
    flags_ = DeviceArray();
    GpuTest::TearDown();
  }

  struct Weights {
    DeviceArray array;
    std::vector<float> values;
    int64_t n = 0;
  };
  std::vector<Weights> MakeWeights(base::Random& random, const Sizes& sizes) {
    std::vector<Weights> weights;
    for (const int64_t n : sizes.n) {
      const std::vector<uint8_t> bytes = RandomWeights(random, WeightType::kBF16, n, sizes.k);
      weights.push_back({Upload(bytes), Dequantized(WeightType::kBF16, bytes, n, sizes.k), n});
    }
    return weights;
  }

  // The pairs of x, as the producers of operands write them.
  void SetRows(const std::vector<float>& x) {
    std::vector<uint16_t> high, low;
    for (const float value : x) {
      high.push_back(FloatToBf16(value));
      low.push_back(FloatToBf16(value - std::bit_cast<float>(uint32_t{high.back()} << 16)));
    }
    high_ = Upload(high);
    low_ = Upload(low);
  }

  struct Addends {
    const float* bias = nullptr;  // of all products, on the device
    float before = 0;             // where not 0, in all of the results, and added to
  };
  // The results of one launch: of each matrix (rows, n + kGap), and kBehind more.
  std::vector<std::vector<float>> Multiply(const std::vector<Weights>& weights, int rows, int64_t k,
                                           const Addends& addends) {
    std::vector<DeviceArray> outs;
    Bf16Products products;
    products.k = k;
    for (const Weights& w : weights) {
      std::vector<float> room = Poisoned(rows * (w.n + kGap) + kBehind);
      if (addends.before != 0) std::fill(room.begin(), room.end(), addends.before);
      outs.push_back(Upload(room));
      products.product[products.count++] = {.weights = w.array.as<uint16_t>(),
                                            .n = w.n,
                                            .bias = addends.bias,
                                            .out = outs.back().as<float>(),
                                            .out_stride = w.n + kGap,
                                            .accumulate = addends.before != 0};
    }
    EXPECT_EQ(MultiplyBf16Pairs(context_, products, high_.as<uint16_t>(), low_.as<uint16_t>(), rows,
                                scratch_),
              cudaSuccess);
    std::vector<std::vector<float>> results;
    for (size_t i = 0; i < weights.size(); ++i) {
      results.push_back(Download<float>(outs[i], rows * (weights[i].n + kGap) + kBehind));
    }
    for (const uint32_t flag : Download<uint32_t>(flags_, flag_count_)) EXPECT_EQ(flag, 0u);
    return results;
  }

  static std::vector<float> RowOf(const std::vector<float>& result, int row, int64_t n) {
    const auto first = result.begin() + row * (n + kGap);
    return {first, first + n};
  }

  Bf16Scratch scratch_;
  DeviceArray partials_, flags_, high_, low_;
  int64_t flag_count_ = 0;
};

// Rows of the last tile and columns of the last step that do not exist; items cut among many
// blocks, in two, and not at all; one to three matrices.
const Sizes kSizes[] = {{{9}, 8},           {{131}, 1000}, {{1030, 129, 300}, 520},
                        {{40, 256}, 29568}, {{18000}, 72}, {{17100, 17000}, 136}};

TEST_F(Bf16PairsTest, AgreesWithTheProductInDoubleForEverySize) {
  for (const Sizes& sizes : kSizes) {
    base::SeededRandom random(static_cast<uint64_t>(sizes.n[0] + sizes.k));
    const std::vector<Weights> weights = MakeWeights(random, sizes);
    const std::vector<float> x = HeavyTailedRows(random, kBf16PairRows, sizes.k);
    SetRows(x);
    for (const int rows : {1, 2, 7, 8, 9, 16}) {
      SCOPED_TRACE(
          absl::StrCat("n ", sizes.n[0], " of ", sizes.n.size(), " k ", sizes.k, " rows ", rows));
      const auto results = Multiply(weights, rows, sizes.k, {});
      for (size_t i = 0; i < weights.size(); ++i) {
        const int64_t n = weights[i].n;
        // The last rows are enough for large matrices.
        for (int r = n * sizes.k > 500000 ? std::max(rows - 2, 0) : 0; r < rows; ++r) {
          const std::vector<float> row(x.begin() + r * sizes.k, x.begin() + (r + 1) * sizes.k);
          ASSERT_LT(RelativeError(RowOf(results[i], r, n),
                                  ReferenceProduct(row, weights[i].values, 1, n, sizes.k)),
                    kTolerance)
              << "matrix " << i << " row " << r;
        }
        for (int64_t at = 0; at < static_cast<int64_t>(results[i].size()); ++at) {
          const bool written = at < rows * (n + kGap) && at % (n + kGap) < n;
          ASSERT_EQ(std::isnan(results[i][static_cast<size_t>(at)]), !written) << "at " << at;
        }
      }
    }
  }
}

TEST_F(Bf16PairsTest, ARowHasTheSameBitsWhateverRowsAreBesideIt) {
  for (const Sizes& sizes : kSizes) {
    base::SeededRandom random(static_cast<uint64_t>(sizes.n[0] + sizes.k));
    const std::vector<Weights> weights = MakeWeights(random, sizes);
    const std::vector<float> x = HeavyTailedRows(random, kBf16PairRows, sizes.k);
    SetRows(x);
    const auto all = Multiply(weights, kBf16PairRows, sizes.k, {});
    const auto expect_equal = [&](int rows, int first) {
      SCOPED_TRACE(
          absl::StrCat("n ", sizes.n[0], " k ", sizes.k, ", ", rows, " rows from ", first));
      const auto some = Multiply(weights, rows, sizes.k, {});
      for (size_t i = 0; i < weights.size(); ++i) {
        for (int r = 0; r < rows; ++r) {
          ASSERT_EQ(RowOf(some[i], r, weights[i].n), RowOf(all[i], first + r, weights[i].n));
        }
      }
    };
    for (int rows = 1; rows < kBf16PairRows; ++rows) expect_equal(rows, 0);
    // In other columns of the tensor cores.
    for (const int first : {5, 11}) {
      SetRows({x.begin() + first * sizes.k, x.end()});
      expect_equal(kBf16PairRows - first, first);
      expect_equal(1, first);
    }
  }
}

TEST_F(Bf16PairsTest, AddsTheBiasAndTheOutput) {
  const Sizes sizes = {{700}, 512};
  base::SeededRandom random(3);
  const std::vector<Weights> weights = MakeWeights(random, sizes);
  const std::vector<float> x = HeavyTailedRows(random, kBf16PairRows, sizes.k);
  SetRows(x);
  const std::vector<float> bias = RandomFloats(random, sizes.n[0], 30);
  const DeviceArray bias_array = Upload(bias);
  for (const int rows : {3, 16}) {
    for (const float before : {0.0f, 25.0f}) {
      const auto results =
          Multiply(weights, rows, sizes.k, {.bias = bias_array.as<float>(), .before = before});
      for (int r = 0; r < rows; ++r) {
        const std::vector<float> row(x.begin() + r * sizes.k, x.begin() + (r + 1) * sizes.k);
        auto reference = ReferenceProduct(row, weights[0].values, 1, sizes.n[0], sizes.k);
        for (size_t i = 0; i < reference.size(); ++i) reference[i] += double{bias[i]} + before;
        EXPECT_LT(RelativeError(RowOf(results[0], r, sizes.n[0]), reference), kTolerance)
            << rows << " rows before " << before;
      }
    }
  }
}

TEST_F(Bf16PairsTest, MakesGatedProductsOfTheSameBitsWhateverRowsAreBeside) {
  for (const Sizes& sizes : {Sizes{{8, 8}, 64}, Sizes{{136, 136}, 1000}, Sizes{{1400, 1400}, 2048},
                             Sizes{{17000, 17000}, 136}}) {
    const int64_t n = sizes.n[0];
    base::SeededRandom random(static_cast<uint64_t>(n + sizes.k));
    const std::vector<Weights> weights = MakeWeights(random, sizes);
    std::vector<float> x = RandomFloats(random, kBf16PairRows * sizes.k, 1);
    for (float& value : x) value *= 4 / std::sqrt(static_cast<float>(sizes.k));
    SetRows(x);
    std::vector<float> bias[2];
    DeviceArray bias_arrays[2];
    Bf16Products products;
    products.count = 2;
    products.k = sizes.k;
    for (int i = 0; i < 2; ++i) {
      bias[i] = RandomFloats(random, n, 2);
      bias_arrays[i] = Upload(bias[i]);
      products.product[i] = {.weights = weights[static_cast<size_t>(i)].array.as<uint16_t>(),
                             .n = n,
                             .bias = bias_arrays[i].as<float>()};
    }
    std::vector<uint16_t> all[2];
    for (const int rows : {kBf16PairRows, 1, 2, 7, 8, 9, 15}) {
      SCOPED_TRACE(absl::StrCat("n ", n, " k ", sizes.k, " rows ", rows));
      const std::vector<uint16_t> poison(static_cast<size_t>(rows * n + kBehind), 0x7fc0);
      const DeviceArray outs[2] = {Upload(poison), Upload(poison)};
      products.gated = outs[0].as<uint16_t>();
      products.gated_low = outs[1].as<uint16_t>();
      ASSERT_EQ(MultiplyBf16Pairs(context_, products, high_.as<uint16_t>(), low_.as<uint16_t>(),
                                  rows, scratch_),
                cudaSuccess);
      for (int part = 0; part < 2; ++part) {
        const auto got = Download<uint16_t>(outs[part], rows * n + kBehind);
        if (all[part].empty()) all[part] = got;
        const auto count = static_cast<size_t>(rows * n);
        EXPECT_EQ(std::memcmp(got.data(), all[part].data(), count * sizeof(uint16_t)), 0);
        for (size_t i = count; i < got.size(); ++i) ASSERT_EQ(got[i], 0x7fc0) << "behind";
      }
    }
    // Two rows are enough for large matrices.
    for (int r = 0; r<kBf16PairRows; r += n * sizes.k> 500000 ? 9 : 1) {
      const std::vector<float> row(x.begin() + r * sizes.k, x.begin() + (r + 1) * sizes.k);
      auto reference = ReferenceProduct(row, weights[0].values, 1, n, sizes.k);
      const auto up = ReferenceProduct(row, weights[1].values, 1, n, sizes.k);
      std::vector<float> got;
      for (size_t i = 0; i < reference.size(); ++i) {
        const double z = reference[i] + double{bias[0][i]};
        reference[i] = z / (1 + std::exp(-z)) * (up[i] + double{bias[1][i]});
        const size_t at = static_cast<size_t>(r * n) + i;
        got.push_back(std::bit_cast<float>(uint32_t{all[0][at]} << 16) +
                      std::bit_cast<float>(uint32_t{all[1][at]} << 16));
      }
      EXPECT_LT(RelativeError(got, reference), 2 * kTolerance) << "n " << n << " row " << r;
    }
  }
}

TEST_F(Bf16PairsTest, ANaNShowsInItsRowAndInNoOther) {
  const Sizes sizes = {{300}, 640};
  constexpr int kRows = 11;
  constexpr int kBad = 9;
  base::SeededRandom random(7);
  const std::vector<Weights> weights = MakeWeights(random, sizes);
  std::vector<float> x = RandomFloats(random, kBf16PairRows * sizes.k, 1);
  x[kBad * static_cast<size_t>(sizes.k) + 100] = std::numeric_limits<float>::quiet_NaN();
  // Rows that are not asked for do not count either.
  for (size_t i = kRows * static_cast<size_t>(sizes.k); i < x.size(); ++i) {
    x[i] = std::numeric_limits<float>::quiet_NaN();
  }
  SetRows(x);
  const auto results = Multiply(weights, kRows, sizes.k, {});
  for (int r = 0; r < kRows; ++r) {
    for (const float value : RowOf(results[0], r, sizes.n[0])) {
      ASSERT_EQ(std::isnan(value), r == kBad) << "row " << r;
    }
  }
}

TEST_F(Bf16PairsTest, RefusesWhatItWasNotMadeFor) {
  base::SeededRandom random(9);
  const std::vector<Weights> weights = MakeWeights(random, {{16}, 64});
  SetRows(RandomFloats(random, kBf16PairRows * 64, 1));
  const DeviceArray out = Upload(Poisoned(kBf16PairRows * 16));
  Bf16Products products;
  products.count = 1;
  products.k = 64;
  products.product[0] = {.weights = weights[0].array.as<uint16_t>(),
                         .n = 16,
                         .out = out.as<float>(),
                         .out_stride = 16};
  const auto multiply = [&](const uint16_t* low, int rows) {
    return MultiplyBf16Pairs(context_, products, high_.as<uint16_t>(), low, rows, scratch_);
  };
  EXPECT_EQ(multiply(low_.as<uint16_t>(), 0), cudaErrorInvalidValue);
  EXPECT_EQ(multiply(low_.as<uint16_t>(), kBf16PairRows + 1), cudaErrorInvalidValue);
  EXPECT_EQ(multiply(nullptr, 1), cudaErrorInvalidValue);
  products.gated = high_.as<uint16_t>();
  EXPECT_EQ(multiply(low_.as<uint16_t>(), 1), cudaErrorInvalidValue) << "one product, one part";
  products.gated = nullptr;
  EXPECT_EQ(multiply(low_.as<uint16_t>(), 1), cudaSuccess);
  products.k = 60;
  EXPECT_EQ(multiply(low_.as<uint16_t>(), 1), cudaErrorInvalidValue);
  products.k = 64;
  products.count = 4;
  EXPECT_EQ(multiply(low_.as<uint16_t>(), 1), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace layercake::kernels::cuda
