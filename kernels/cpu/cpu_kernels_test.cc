// Every kernel of every table against the format goldens or a float64 twin.
#include "kernels/cpu/cpu_kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/kernels_test_support.h"

namespace layercake::kernels {
namespace {

using ::testing::Each;
using ::testing::Eq;
using ::testing::Pointwise;

std::vector<float> FloatsOf(const std::string& base64) {
  std::string bytes;
  EXPECT_TRUE(absl::Base64Unescape(base64, &bytes));
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

TEST(DequantizeRow, EqualsTheGoldensOfEveryTypeToTheBit) {
  std::ifstream file(LAYERCAKE_SOURCE_DIR "/kernels/testdata/dequant_goldens.json");
  const nlohmann::json goldens = nlohmann::json::parse(file);
  size_t types = 0;
  for (const auto& type : goldens["types"]) {
    const auto id = static_cast<WeightType>(type["ggml_type"].get<int>());
    ASSERT_EQ(WeightTypeName(id), type["name"].get<std::string>());
    ASSERT_EQ(BlockShapeOf(id).elements, type["block_values"].get<int>());
    ASSERT_EQ(BlockShapeOf(id).bytes, type["block_bytes"].get<int>());
    for (const auto& block : type["blocks"]) {
      SCOPED_TRACE(absl::StrCat(WeightTypeName(id), " ", block["case"].get<std::string>()));
      std::string raw;
      ASSERT_TRUE(absl::Base64Unescape(block["raw"].get<std::string>(), &raw));
      const std::vector<float> expected = FloatsOf(block["values"].get<std::string>());
      std::vector<float> got = Poisoned(static_cast<int64_t>(expected.size()));
      DequantizeRow(id, reinterpret_cast<const uint8_t*>(raw.data()),
                    static_cast<int64_t>(expected.size()), got.data());
      EXPECT_THAT(got, Pointwise(Eq(), expected));
    }
    ++types;
  }
  EXPECT_EQ(types, std::size(kAllTypes));
}

TEST(WeightTypes, RefuseUnknownIds) {
  EXPECT_EQ(BlockShapeOf(static_cast<WeightType>(40)).elements, 0);
  EXPECT_EQ(WeightTypeName(static_cast<WeightType>(40)), "unknown");
}

TEST(Half, ConvertsEveryF16ThereAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = HalfToFloat(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(value))));
    } else {
      EXPECT_EQ(FloatToHalf(value), half);
    }
  }
  EXPECT_EQ(FloatToHalf(65519.99f), 0x7BFF);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7C00);
  EXPECT_EQ(FloatToHalf(0x1.002p0f), 0x3C00);  // a tie goes to even
  EXPECT_EQ(FloatToHalf(0x1.006p0f), 0x3C02);
  EXPECT_EQ(FloatToHalf(0x1p-25f), 0x0000);
  EXPECT_EQ(FloatToHalf(0x1.8p-25f), 0x0001);
}

// The tables that this machine can run.
class Kernels : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "avx2" && Avx2Kernels() == nullptr) GTEST_SKIP() << "this CPU has no AVX2";
  }
  const CpuKernels& kernels() const {
    return GetParam() == "avx2" ? *Avx2Kernels() : ScalarKernels();
  }

  std::vector<float> Multiply(WeightType type, const std::vector<uint8_t>& weights, int64_t n,
                              int64_t k, const std::vector<float>& x, int64_t rows) {
    const PreparedActivations prepared(kernels(), x, rows, k);
    const Activations view = prepared.View();
    AlignedFloats scratch;
    std::vector<float> out = Poisoned(rows * n);
    auto* memory =
        reinterpret_cast<std::byte*>(scratch.Require(MatmulScratchBytes(k) / sizeof(float)));
    kernels().matmul(
        {type, weights.data(), RowBytes(type, k), 0, n, k, &view, rows, out.data(), n, memory});
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Tables, Kernels, testing::Values("scalar", "avx2"),
                         [](const auto& instance) { return instance.param; });

// Widths that end in part vectors: 576 and 896 are 18 and 28 groups, 3420 is no multiple of 8.
std::vector<int64_t> WidthsOf(WeightType type) {
  if (IsFloatType(type)) return {1, 7, 64, 3420};
  if (BlockShapeOf(type).elements == 256) return {256, 768, 2560};
  return {32, 256, 576, 896};
}

// Tolerance: activations lose at most half a step of their group's int16 scale, sums are float32.
TEST_P(Kernels, MultiplyEveryTypeLikeFloat64) {
  constexpr uint64_t kSeed = 20240611;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  base::SeededRandom random(kSeed);
  for (const WeightType type : kAllTypes) {
    for (const int64_t k : WidthsOf(type)) {
      SCOPED_TRACE(absl::StrCat(WeightTypeName(type), " k ", k));
      constexpr int64_t kN = 11;
      constexpr int64_t kRows = 5;
      const std::vector<uint8_t> weights = RandomWeights(random, type, kN, k);
      const std::vector<float> w = Dequantized(type, weights, kN, k);
      const std::vector<float> x = RandomFloats(random, kRows * k, 3);
      const std::vector<float> y = Multiply(type, weights, kN, k, x, kRows);
      for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t n = 0; n < kN; ++n) {
          double sum = 0;
          double magnitude = 0;
          for (int64_t i = 0; i < k; ++i) {
            const double weight = w[static_cast<size_t>(n * k + i)];
            sum += weight * x[static_cast<size_t>(r * k + i)];
            magnitude += std::abs(weight) * 3;
          }
          EXPECT_NEAR(y[static_cast<size_t>(r * kN + n)], sum, magnitude * 1.8e-5 + 1e-12);
        }
      }
    }
  }
}

TEST_P(Kernels, GiveARowTheSameBitsAloneAndAmongOthers) {
  constexpr uint64_t kSeed = 77;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  base::SeededRandom random(kSeed);
  for (const WeightType type : kAllTypes) {
    for (const int64_t k : WidthsOf(type)) {
      SCOPED_TRACE(absl::StrCat(WeightTypeName(type), " k ", k));
      // Up to 8 rows are taken 4, 3, 2 or 1 at a time, or all from unpacked weights; more always
      // so.
      constexpr int64_t kN = 7;
      constexpr int64_t kMostRows = 10;
      const std::vector<uint8_t> weights = RandomWeights(random, type, kN, k);
      const std::vector<float> x = RandomFloats(random, kMostRows * k);
      std::vector<float> alone;
      for (int64_t r = 0; r < kMostRows; ++r) {
        const std::vector<float> y =
            Multiply(type, weights, kN, k, {x.begin() + r * k, x.begin() + (r + 1) * k}, 1);
        alone.insert(alone.end(), y.begin(), y.end());
      }
      for (int64_t rows = 2; rows <= kMostRows; ++rows) {
        const std::vector<float> together =
            Multiply(type, weights, kN, k, {x.begin(), x.begin() + rows * k}, rows);
        EXPECT_EQ(std::memcmp(alone.data(), together.data(), together.size() * sizeof(float)), 0)
            << rows << " rows";
      }
    }
  }
}

TEST(Avx2Kernels, MultiplyLikeTheScalarTwin) {
  if (Avx2Kernels() == nullptr) GTEST_SKIP() << "this CPU has no AVX2";
  base::SeededRandom random(5);
  for (const WeightType type : kAllTypes) {
    SCOPED_TRACE(WeightTypeName(type));
    const int64_t k = BlockShapeOf(type).elements == 256 ? 1280 : 672;
    constexpr int64_t kN = 6;
    const std::vector<uint8_t> weights = RandomWeights(random, type, kN, k);
    const PreparedActivations prepared(ScalarKernels(), RandomFloats(random, k), 1, k);
    const Activations view = prepared.View();
    std::vector<float> results[2] = {Poisoned(kN), Poisoned(kN)};
    const CpuKernels* tables[2] = {&ScalarKernels(), Avx2Kernels()};
    for (int i = 0; i < 2; ++i) {
      AlignedFloats scratch;
      auto* memory =
          reinterpret_cast<std::byte*>(scratch.Require(MatmulScratchBytes(k) / sizeof(float)));
      tables[i]->matmul({type, weights.data(), RowBytes(type, k), 0, kN, k, &view, 1,
                         results[i].data(), kN, memory});
    }
    const std::vector<float> w = Dequantized(type, weights, kN, k);
    double magnitude = 0;
    for (int64_t i = 0; i < k; ++i) magnitude += std::abs(w[static_cast<size_t>(i)]);
    for (size_t n = 0; n < kN; ++n) EXPECT_NEAR(results[0][n], results[1][n], 1e-6 * magnitude);
  }
}

TEST_P(Kernels, QuantizeWithinHalfAStep) {
  base::SeededRandom random(9);
  constexpr int64_t kWidth = 32 * 11;
  std::vector<float> x = RandomFloats(random, kWidth);
  for (size_t i = 32; i < 64; ++i) x[i] = 0;
  for (size_t i = 64; i < 96; ++i) x[i] *= 1e6f;
  for (size_t i = 96; i < 128; ++i) x[i] = 1e-33f;
  const PreparedActivations q(kernels(), x, 1, kWidth);
  for (size_t i = 0; i < x.size(); ++i) {
    const float scale = q.scales[i / 32];
    EXPECT_NEAR(x[i], scale * static_cast<float>(q.ints[i]), scale * 0.502f + 1e-30f);
  }
  for (size_t g = 0; g < 11; ++g) {
    int32_t half[2] = {0, 0};
    for (size_t i = 0; i < 32; ++i) half[i / 16] += q.ints[32 * g + i];
    EXPECT_EQ(q.sums[g], q.scales[g] * static_cast<float>(half[0] + half[1]));
    EXPECT_EQ(q.half_sums[2 * g], q.scales[g] * static_cast<float>(half[0]));
    EXPECT_EQ(q.half_sums[2 * g + 1], q.scales[g] * static_cast<float>(half[1]));
  }
  for (size_t g = 11; g < 16; ++g) EXPECT_EQ(q.scales[g] + q.sums[g] + q.half_sums[2 * g + 1], 0);
}

TEST_P(Kernels, LetNanAndInfinityThroughAProduct) {
  base::SeededRandom random(10);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const WeightType type : kAllTypes) {
      SCOPED_TRACE(WeightTypeName(type));
      std::vector<float> x = RandomFloats(random, 512);
      x[77] = bad;
      const std::vector<uint8_t> weights = RandomWeights(random, type, 1, 512);
      EXPECT_FALSE(std::isfinite(Multiply(type, weights, 1, 512, x, 1)[0]));
    }
  }
}

TEST_P(Kernels, NormaliseLikeFloat64) {
  base::SeededRandom random(11);
  for (const int64_t n : {2, 10, 64, 576, 1537}) {
    const std::vector<float> x = RandomFloats(random, n, 100);
    const std::vector<float> weight = RandomFloats(random, n);
    std::vector<float> out = Poisoned(n);
    kernels().rms_norm(x.data(), weight.data(), 1e-5f, n, out.data());
    double sum = 0;
    for (const float v : x) sum += static_cast<double>(v) * v;
    const double factor = 1 / std::sqrt(sum / static_cast<double>(n) + 1e-5);
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(out[i], x[i] * factor * weight[i], 1e-6);
    }
    std::vector<float> in_place = x;
    kernels().rms_norm(in_place.data(), weight.data(), 1e-5f, n, in_place.data());
    EXPECT_EQ(in_place, out);
  }
}

TEST_P(Kernels, MultiplySiluLikeFloat64) {
  std::vector<float> gate = {0,   -0.0f, 1,   -1,   20,    -20,   80,     -80,   88,
                             -88, 90,    -90, 1e4f, -1e4f, 3e38f, -3e38f, 1e-20f};
  base::SeededRandom random(12);
  for (int i = 0; i < 1000; ++i) gate.push_back(Uniform(random, -30, 30));
  const std::vector<float> z = gate;
  const std::vector<float> up(gate.size(), 0.5f);
  kernels().silu_mul(gate.data(), up.data(), static_cast<int64_t>(gate.size()));
  for (size_t i = 0; i < z.size(); ++i) {
    const double expected = 0.5 * z[i] / (1 + std::exp(-static_cast<double>(z[i])));
    EXPECT_NEAR(gate[i], expected, std::abs(expected) * 1e-6 + 1e-35) << z[i];
  }
  float nan = std::numeric_limits<float>::quiet_NaN();
  kernels().silu_mul(&nan, up.data(), 1);
  EXPECT_TRUE(std::isnan(nan));
}

TEST_P(Kernels, StoreHalvesAndMakeOverflowVisible) {
  std::vector<float> x = {
      0,     1,        -2.5f,  65504, 65520, -1e9f, std::numeric_limits<float>::infinity(),
      1e-8f, 3.14159f, -65504, 6e-5f};
  std::vector<uint16_t> out(x.size(), 0xABCD);
  kernels().store_half(x.data(), static_cast<int64_t>(x.size()), out.data());
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::abs(x[i]) > 65510) {
      EXPECT_TRUE(std::isnan(HalfToFloat(out[i]))) << x[i];
    } else {
      EXPECT_EQ(out[i], FloatToHalf(x[i])) << x[i];
    }
  }
}

TEST_P(Kernels, ScoreAndAccumulateTilesLikeFloat64) {
  base::SeededRandom random(13);
  for (const int head_dim : {2, 64, 80, 90, 128, 256}) {
    for (const int positions : {1, 3, 8, 13, 32}) {
      SCOPED_TRACE(absl::StrCat("head_dim ", head_dim, " positions ", positions));
      const int padded = (head_dim + 7) / 8 * 8;
      std::vector<uint16_t> halves(static_cast<size_t>(positions * head_dim));
      for (uint16_t& half : halves) half = FloatToHalf(Uniform(random, -1, 1));
      std::vector<float> tile = Poisoned(int64_t{kTilePositions} * padded);
      kernels().load_half_tile(halves.data(), positions, head_dim, padded, tile.data());
      std::vector<float> q(static_cast<size_t>(padded), 0.0f);
      for (int c = 0; c < head_dim; ++c) q[static_cast<size_t>(c)] = Uniform(random, -1, 1);

      std::vector<float> scores = Poisoned(kTilePositions);
      const float max =
          kernels().tile_scores(q.data(), tile.data(), positions, padded, 0.25f, scores.data());
      std::vector<double> expected;
      for (int t = 0; t < positions; ++t) {
        double dot = 0;
        for (int c = 0; c < head_dim; ++c) {
          dot += static_cast<double>(q[static_cast<size_t>(c)]) *
                 HalfToFloat(halves[static_cast<size_t>(t * head_dim + c)]);
        }
        expected.push_back(0.25 * dot);
        EXPECT_NEAR(scores[static_cast<size_t>(t)], expected.back(), 2e-6);
      }
      EXPECT_EQ(max, *std::max_element(scores.begin(), scores.begin() + positions));

      const float sum = kernels().tile_exp(scores.data(), positions, max);
      double expected_sum = 0;
      for (double& e : expected) expected_sum += e = std::exp(e - max);
      EXPECT_NEAR(sum, expected_sum, 1e-5);

      std::vector<float> acc = RandomFloats(random, padded);
      const std::vector<float> before = acc;
      kernels().tile_accumulate(scores.data(), tile.data(), positions, padded, 0.5f, acc.data());
      for (int c = 0; c < head_dim; ++c) {
        double value = 0.5 * before[static_cast<size_t>(c)];
        for (int t = 0; t < positions; ++t) {
          value += expected[static_cast<size_t>(t)] *
                   HalfToFloat(halves[static_cast<size_t>(t * head_dim + c)]);
        }
        EXPECT_NEAR(acc[static_cast<size_t>(c)], value, 1e-5);
      }
    }
  }
}

TEST_P(Kernels, FindNonFiniteValuesAnywhere) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    for (size_t at = 0; at < 21; ++at) {
      std::vector<float> x(21, 3.4e38f);
      EXPECT_FALSE(kernels().has_non_finite(x.data(), 21));
      x[at] = bad;
      EXPECT_TRUE(kernels().has_non_finite(x.data(), 21)) << at;
      bool nan_or_inf = false;
      const float max = kernels().max_value(x.data(), 21, &nan_or_inf);
      EXPECT_EQ(nan_or_inf, !(bad < 0)) << at;
      if (bad < 0) {
        EXPECT_EQ(max, 3.4e38f);
      }
    }
  }
}

TEST_P(Kernels, SumExponentialsLikeFloat64) {
  base::SeededRandom random(14);
  std::vector<float> x = RandomFloats(random, 5003, 20);
  x[17] = -std::numeric_limits<float>::infinity();
  const float max = *std::max_element(x.begin(), x.end());
  for (const float temperature : {0.1f, 1.0f, 3.0f}) {
    double expected = 0;
    for (const float v : x) expected += std::exp((static_cast<double>(v) - max) / temperature);
    EXPECT_NEAR(kernels().sum_exp(x.data(), 5003, max, temperature), expected, expected * 1e-6);
  }
}

}  // namespace
}  // namespace layercake::kernels
