#include "kernels/cuda/matmul_float.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/gpu_test_support.h"

namespace layercake::kernels::cuda {
namespace {

constexpr int64_t kGuard = 64;  // poisoned floats behind every output

// 16 bits of an activation beside BF16, 22 beside F16; then float32 sums of up to 29,568 products.
constexpr double kTolerance = 1e-5;

FloatProducts ProductsOf(WeightType type, int count, int64_t k) {
  FloatProducts products;
  products.type = type;
  products.count = count;
  products.k = k;
  return products;
}

class FloatMatmulTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(PrepareFloatMatmul(context_), cudaSuccess);
  }

  // The operand's float forms of x (rows, k), as its producers write them.
  void SetRows(const std::vector<float>& x, int64_t rows, int64_t k) {
    std::vector<uint16_t> high, low;
    for (const float value : x) {
      high.push_back(FloatToBf16(value));
      low.push_back(FloatToBf16(value - Bf16ToFloat(high.back())));
    }
    std::vector<float> scale;
    for (int64_t r = 0; r < rows; ++r) {
      float largest = 0;
      for (int64_t c = 0; c < k; ++c) {
        largest = std::max(largest, std::abs(x[static_cast<size_t>(r * k + c)]));
      }
      scale.push_back(largest == 0 ? 1 : std::ldexp(1.0f, std::ilogb(largest) - 9));
    }
    arrays_[0] = Upload(x);
    arrays_[1] = Upload(high);
    arrays_[2] = Upload(low);
    arrays_[3] = Upload(scale);
    view_.values = arrays_[0].as<float>();
    view_.bf16_high = arrays_[1].as<uint16_t>();
    view_.bf16_low = arrays_[2].as<uint16_t>();
    view_.half_scale = arrays_[3].as<float>();
  }

  // out (rows, n) of one matrix, rows out_stride apart; nothing else of `before` may change.
  std::vector<float> Multiply(WeightType type, const DeviceArray& w, int64_t n, int64_t k, int rows,
                              int64_t out_stride, std::vector<float> before, bool accumulate,
                              const float* bias) {
    const DeviceArray out = Upload(before);
    FloatProducts products = ProductsOf(type, 1, k);
    products.product[0] = {w.address(), n, bias, out.as<float>(), out_stride, accumulate};
    EXPECT_EQ(MultiplyFloats(context_, products, view_, rows), cudaSuccess);
    return Download<float>(out, static_cast<int64_t>(before.size()));
  }

  DeviceArray arrays_[4];
  OperandView view_;
};

std::vector<float> Part(const std::vector<float>& out, int64_t rows, int64_t n, int64_t stride) {
  std::vector<float> part;
  for (int64_t r = 0; r < rows; ++r) {
    part.insert(part.end(), out.begin() + r * stride, out.begin() + r * stride + n);
  }
  return part;
}

TEST_F(FloatMatmulTest, AgreesWithTheProductInDoubleOverOddSizes) {
  const std::pair<int64_t, int64_t> sizes[] = {{1, 8},      {37, 64},   {9, 333},    {300, 896},
                                               {129, 1000}, {40, 3420}, {17, 29568}, {2111, 576}};
  for (const WeightType type : {WeightType::kBF16, WeightType::kF16, WeightType::kF32}) {
    for (const auto& [n, k] : sizes) {
      const uint64_t seed = static_cast<uint64_t>(n * 100000 + k);
      SCOPED_TRACE(absl::StrCat(WeightTypeName(type), " n ", n, " k ", k, " seed ", seed));
      base::SeededRandom random(seed);
      const std::vector<uint8_t> bytes = RandomWeights(random, type, n, k);
      const std::vector<float> weights = Dequantized(type, bytes, n, k);
      const DeviceArray w = Upload(bytes);
      for (const int rows : {1, 2, 3, 7, 8, 9, 16}) {
        const std::vector<float> x = HeavyTailedRows(random, rows, k);
        SetRows(x, rows, k);
        const int64_t stride = n + 5;
        const std::vector<float> out =
            Multiply(type, w, n, k, rows, stride, Poisoned(rows * stride + kGuard), false, nullptr);
        EXPECT_LT(
            RelativeError(Part(out, rows, n, stride), ReferenceProduct(x, weights, rows, n, k)),
            kTolerance)
            << rows << " rows";
        for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
          const bool written = i < rows * stride && i % stride < n;
          ASSERT_EQ(std::isnan(out[static_cast<size_t>(i)]), !written) << "at " << i;
        }
      }
    }
  }
}

TEST_F(FloatMatmulTest, ARowHasTheSameBitsWhateverRowsAreBesideIt) {
  constexpr int64_t kN = 1031;
  for (const int64_t k : {896, 333, 5120}) {
    for (const WeightType type : {WeightType::kBF16, WeightType::kF16, WeightType::kF32}) {
      base::SeededRandom random(7);
      const DeviceArray w = Upload(RandomWeights(random, type, kN, k));
      const std::vector<float> x = HeavyTailedRows(random, kFloatMaxRows, k);
      SetRows(x, kFloatMaxRows, k);
      const std::vector<float> all =
          Multiply(type, w, kN, k, kFloatMaxRows, kN, Poisoned(kFloatMaxRows * kN), false, nullptr);
      for (int rows = 1; rows < kFloatMaxRows; ++rows) {
        const std::vector<float> some =
            Multiply(type, w, kN, k, rows, kN, Poisoned(rows * kN), false, nullptr);
        ASSERT_EQ(std::memcmp(some.data(), all.data(), some.size() * sizeof(float)), 0)
            << WeightTypeName(type) << ", k " << k << ", " << rows << " rows";
      }
    }
  }
}

TEST_F(FloatMatmulTest, ACardWithLessSharedMemoryGivesTheSameBits) {
  constexpr int64_t kN = 9001;  // several walks a block
  const int own_bytes = context_.max_shared_bytes;
  for (const int64_t k : {72, 896}) {
    for (const WeightType type : {WeightType::kBF16, WeightType::kF16}) {
      base::SeededRandom random(19);
      const DeviceArray w = Upload(RandomWeights(random, type, kN, k));
      SetRows(HeavyTailedRows(random, kFloatMaxRows, k), kFloatMaxRows, k);
      for (const int rows : {1, 2, 3, 4, 5, 8, 9, 16}) {
        context_.max_shared_bytes = own_bytes;
        const std::vector<float> own =
            Multiply(type, w, kN, k, rows, kN, Poisoned(rows * kN), false, nullptr);
        context_.max_shared_bytes = 99 << 10;
        ASSERT_EQ(PrepareFloatMatmul(context_), cudaSuccess);
        const std::vector<float> less =
            Multiply(type, w, kN, k, rows, kN, Poisoned(rows * kN), false, nullptr);
        ASSERT_EQ(std::memcmp(own.data(), less.data(), own.size() * sizeof(float)), 0)
            << WeightTypeName(type) << ", k " << k << ", " << rows << " rows";
      }
    }
  }
}

TEST_F(FloatMatmulTest, AddsTheBiasAndTheOutput) {
  constexpr int64_t kN = 75;
  constexpr int64_t kK = 640;
  constexpr int kRows = 5;
  for (const WeightType type : {WeightType::kBF16, WeightType::kF16, WeightType::kF32}) {
    base::SeededRandom random(11);
    const std::vector<uint8_t> bytes = RandomWeights(random, type, kN, kK);
    const DeviceArray w = Upload(bytes);
    const std::vector<float> x = HeavyTailedRows(random, kRows, kK);
    SetRows(x, kRows, kK);
    const std::vector<float> before = RandomFloats(random, kRows * kN);
    const std::vector<float> bias = RandomFloats(random, kN);
    const DeviceArray bias_array = Upload(bias);
    const std::vector<float> out =
        Multiply(type, w, kN, kK, kRows, kN, before, true, bias_array.as<float>());
    std::vector<double> reference =
        ReferenceProduct(x, Dequantized(type, bytes, kN, kK), kRows, kN, kK);
    for (size_t i = 0; i < reference.size(); ++i) {
      reference[i] += static_cast<double>(before[i]) + static_cast<double>(bias[i % kN]);
    }
    EXPECT_LT(RelativeError(out, reference), kTolerance) << WeightTypeName(type);
  }
}

TEST_F(FloatMatmulTest, SeveralMatricesInOneLaunchGiveWhatEachGivesAlone) {
  constexpr int64_t kK = 896;
  constexpr int kRows = 3;
  const int64_t sizes[] = {897, 129, 3};
  for (const WeightType type : {WeightType::kBF16, WeightType::kF16, WeightType::kF32}) {
    base::SeededRandom random(13);
    SetRows(HeavyTailedRows(random, kRows, kK), kRows, kK);
    FloatProducts products = ProductsOf(type, 3, kK);
    std::vector<DeviceArray> weights, outs;
    for (int i = 0; i < 3; ++i) {
      weights.push_back(Upload(RandomWeights(random, type, sizes[i], kK)));
      outs.push_back(Upload(Poisoned(kRows * sizes[i])));
      products.product[i] = {weights.back().address(), sizes[i], nullptr,
                             outs.back().as<float>(),  sizes[i], false};
    }
    ASSERT_EQ(MultiplyFloats(context_, products, view_, kRows), cudaSuccess);
    for (size_t i = 0; i < 3; ++i) {
      const std::vector<float> alone = Multiply(type, weights[i], sizes[i], kK, kRows, sizes[i],
                                                Poisoned(kRows * sizes[i]), false, nullptr);
      EXPECT_EQ(Download<float>(outs[i], kRows * sizes[i]), alone)
          << WeightTypeName(type) << " matrix " << i;
    }
  }
}

TEST_F(FloatMatmulTest, ANaNInARowStaysInThatRow) {
  constexpr int64_t kN = 40;
  constexpr int64_t kK = 576;
  for (const WeightType type : {WeightType::kBF16, WeightType::kF32}) {
    base::SeededRandom random(17);
    const DeviceArray w = Upload(RandomWeights(random, type, kN, kK));
    std::vector<float> x = RandomFloats(random, 3 * kK);
    x[kK + 100] = std::numeric_limits<float>::infinity();
    SetRows(x, 3, kK);
    const std::vector<float> out =
        Multiply(type, w, kN, kK, 3, kN, Poisoned(3 * kN), false, nullptr);
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(std::isfinite(out[i]), i / kN != 1) << WeightTypeName(type) << " at " << i;
    }
  }
}

TEST_F(FloatMatmulTest, RefusesWhatItCannotDo) {
  FloatProducts products = ProductsOf(WeightType::kBF16, 1, 64);
  EXPECT_EQ(MultiplyFloats(context_, products, view_, kFloatMaxRows + 1), cudaErrorInvalidValue);
  EXPECT_EQ(MultiplyFloats(context_, products, view_, 0), cudaErrorInvalidValue);
  products.type = WeightType::kQ4_K;
  EXPECT_EQ(MultiplyFloats(context_, products, view_, 1), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace layercake::kernels::cuda
