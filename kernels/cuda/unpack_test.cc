#include "kernels/cuda/unpack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/gpu_test_support.h"
#include "kernels/cuda/repack.h"

namespace layercake::kernels::cuda {
namespace {

class UnpackTest : public GpuTest {
 protected:
  // The matrix as the device keeps it.
  DeviceArray UploadInItsLayout(WeightType type, int64_t n, int64_t k,
                                const std::vector<uint8_t>& file) {
    if (IsFloatType(type)) return Upload(file);
    std::vector<std::byte> units(static_cast<size_t>(UnitsBytes(type, n, k)));
    RepackToUnits(type, n, k,
                  absl::MakeConstSpan(reinterpret_cast<const std::byte*>(file.data()), file.size()),
                  absl::MakeSpan(units));
    return Upload(units);
  }
};

// Columns that end inside a column block, for types whose blocks allow it.
std::vector<std::pair<int64_t, int64_t>> SizesFor(WeightType type) {
  std::vector<std::pair<int64_t, int64_t>> sizes = {{1, 256}, {37, 512}, {300, 1024}, {1030, 768}};
  if (BlockShapeOf(type).elements <= 32) {
    sizes.insert(sizes.end(), {{5, 32}, {131, 896}, {17, 3424}});
  }
  return sizes;
}

TEST_F(UnpackTest, PanelsHoldTheRoundedValuesOfTheFile) {
  for (const WeightType type : kAllTypes) {
    if (IsFloatType(type)) continue;
    for (const auto& [n, k] : SizesFor(type)) {
      SCOPED_TRACE(absl::StrCat(WeightTypeName(type), " n ", n, " k ", k, " seed ", n + k));
      base::SeededRandom random(static_cast<uint64_t>(n + k));
      const std::vector<uint8_t> file = RandomWeights(random, type, n, k);
      const std::vector<float> values = Dequantized(type, file, n, k);
      const DeviceArray units = UploadInItsLayout(type, n, k, file);
      // The whole matrix, then panels that begin and end inside tiles.
      std::vector<std::pair<int64_t, int64_t>> panels = {{0, n}};
      if (n > 144) panels.insert(panels.end(), {{0, 128}, {128, n}, {16, 141}, {144, n}});
      for (const auto& [begin, end] : panels) {
        const int64_t count = (end - begin) * k;
        constexpr uint16_t kPoison = 0x7fff;
        const DeviceArray panel =
            Upload(std::vector<uint16_t>(static_cast<size_t>(count) + 64, kPoison));
        ASSERT_EQ(UnpackRows(context_, type, n, k, units.as<std::byte>(), begin, end,
                             panel.as<uint16_t>()),
                  cudaSuccess);
        const std::vector<uint16_t> got = Download<uint16_t>(panel, count + 64);
        for (int64_t i = 0; i < count + 64; ++i) {
          const float value = i < count ? values[static_cast<size_t>(begin * k + i)] : 0;
          const uint16_t want = i >= count            ? kPoison
                                : UnpacksToBf16(type) ? FloatToBf16(value)
                                                      : FloatToHalf(value);
          ASSERT_EQ(got[static_cast<size_t>(i)], want)
              << "panel " << begin << ", row " << begin + i / k << " column " << i % k;
        }
      }
    }
  }
}

TEST_F(UnpackTest, GatheredRowsHoldTheValuesOfTheFile) {
  for (const WeightType type : kAllTypes) {
    for (const auto& [n, k] : SizesFor(type)) {
      SCOPED_TRACE(absl::StrCat(WeightTypeName(type), " n ", n, " k ", k, " seed ", n * k));
      base::SeededRandom random(static_cast<uint64_t>(n * k));
      const std::vector<uint8_t> file = RandomWeights(random, type, n, k);
      const std::vector<float> values = Dequantized(type, file, n, k);
      const DeviceArray table = UploadInItsLayout(type, n, k, file);
      std::vector<int32_t> tokens = {static_cast<int32_t>(n) - 1, 0};
      for (int i = 0; i < 31; ++i) {
        tokens.push_back(static_cast<int32_t>(random.Below(static_cast<uint64_t>(n))));
      }
      const auto rows = static_cast<int64_t>(tokens.size());
      const DeviceArray token_array = Upload(tokens);
      const DeviceArray x = Upload(Poisoned(rows * k));
      ASSERT_EQ(GatherRows(context_, type, n, k, table.as<std::byte>(), token_array.as<int32_t>(),
                           static_cast<int>(rows), x.as<float>()),
                cudaSuccess);
      const std::vector<float> got = Download<float>(x, rows * k);
      for (int64_t i = 0; i < rows * k; ++i) {
        ASSERT_EQ(got[static_cast<size_t>(i)],
                  values[static_cast<size_t>(tokens[static_cast<size_t>(i / k)] * k + i % k)])
            << "row " << i / k << " column " << i % k;
      }
    }
  }
}

TEST_F(UnpackTest, FloatRowsOfAnyLengthAreGathered) {
  constexpr int64_t kN = 9;
  constexpr int64_t kK = 333;
  for (const WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBF16}) {
    base::SeededRandom random(3);
    const std::vector<uint8_t> file = RandomWeights(random, type, kN, kK);
    const DeviceArray table = Upload(file);
    const DeviceArray tokens = Upload(std::vector<int32_t>{8});
    const DeviceArray x = Upload(Poisoned(kK));
    ASSERT_EQ(GatherRows(context_, type, kN, kK, table.as<std::byte>(), tokens.as<int32_t>(), 1,
                         x.as<float>()),
              cudaSuccess);
    const std::vector<float> values = Dequantized(type, file, kN, kK);
    EXPECT_EQ(Download<float>(x, kK), std::vector<float>(values.begin() + 8 * kK, values.end()));
  }
}

TEST_F(UnpackTest, RefusesPanelsThatAreNotThere) {
  uint16_t* const none = nullptr;
  EXPECT_EQ(UnpackRows(context_, WeightType::kQ4_K, 64, 256, nullptr, 8, 64, none),
            cudaErrorInvalidValue);
  EXPECT_EQ(UnpackRows(context_, WeightType::kQ4_K, 64, 256, nullptr, 0, 65, none),
            cudaErrorInvalidValue);
  EXPECT_EQ(UnpackRows(context_, WeightType::kBF16, 64, 256, nullptr, 0, 64, none),
            cudaErrorInvalidValue);
}

}  // namespace
}  // namespace layercake::kernels::cuda
