#include "kernels/cuda/repack.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "kernels/cpu/kernels_test_support.h"
#include "kernels/cuda/unit_format.h"

namespace layercake::kernels::cuda {
namespace {

constexpr WeightType kQuantised[] = {WeightType::kQ4_0, WeightType::kQ4_1,   WeightType::kQ5_0,
                                     WeightType::kQ5_1, WeightType::kQ8_0,   WeightType::kQ2_K,
                                     WeightType::kQ3_K, WeightType::kQ4_K,   WeightType::kQ5_K,
                                     WeightType::kQ6_K, WeightType::kIQ4_NL, WeightType::kIQ4_XS,
                                     WeightType::kMXFP4};

std::vector<std::byte> RandomBytes(base::Random& random, size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Below(256));
  return bytes;
}

// Sizes with whole and broken tiles, units and column blocks.
std::vector<std::pair<int64_t, int64_t>> SizesFor(WeightType type) {
  std::vector<std::pair<int64_t, int64_t>> sizes = {{16, 256}, {1, 256}, {128, 512}, {145, 768}};
  if (BlockShapeOf(type).elements == 32) {
    for (const int64_t k : {32, 224, 288, 896}) sizes.emplace_back(37, k);
  }
  return sizes;
}

TEST(Repack, BringsEveryByteBack) {
  base::SeededRandom random(11);
  for (const WeightType type : kQuantised) {
    for (const auto& [n, k] : SizesFor(type)) {
      const auto file = RandomBytes(random, static_cast<size_t>(n) * RowBytes(type, k));
      std::vector<std::byte> units(static_cast<size_t>(UnitsBytes(type, n, k)), std::byte{0xee});
      RepackToUnits(type, n, k, file, absl::MakeSpan(units));
      std::vector<std::byte> back(file.size(), std::byte{0xdd});
      RepackToFile(type, n, k, units, absl::MakeSpan(back));
      EXPECT_EQ(file, back) << WeightTypeName(type) << " " << n << " x " << k;
    }
  }
}

TEST(Repack, TakesTheFilesBytesWhenNothingIsPadded) {
  for (const WeightType type : kQuantised) {
    EXPECT_EQ(UnitsBytes(type, 32, 512), static_cast<int64_t>(32 * RowBytes(type, 512)))
        << WeightTypeName(type);
    EXPECT_EQ(UnitBytes(type) % 16, 0) << WeightTypeName(type);
  }
  EXPECT_EQ(UnitsBytes(WeightType::kQ4_K, int64_t{1} << 61, 256), 0);
  EXPECT_EQ(UnitsBytes(WeightType::kF16, 16, 256), 0);
}

// Changing one bit of the file changes one bit of the units, and other bits for other bits.
TEST(Repack, IsAPermutationOfBits) {
  for (const WeightType type : kQuantised) {
    const int64_t n = 16;
    const int64_t k = 256;
    std::vector<std::byte> file(static_cast<size_t>(n) * RowBytes(type, k));
    std::vector<std::byte> zero(static_cast<size_t>(UnitsBytes(type, n, k)));
    RepackToUnits(type, n, k, file, absl::MakeSpan(zero));
    std::vector<bool> taken(zero.size() * 8, false);
    // Every row has the same map: one row's bits are enough.
    for (size_t bit = 0; bit < RowBytes(type, k) * 8; ++bit) {
      file[bit / 8] = static_cast<std::byte>(1u << (bit % 8));
      std::vector<std::byte> units(zero.size());
      RepackToUnits(type, n, k, file, absl::MakeSpan(units));
      file[bit / 8] = std::byte{0};
      int changed = 0;
      for (size_t i = 0; i < units.size(); ++i) {
        const auto difference = static_cast<unsigned>(units[i] ^ zero[i]);
        if (difference == 0) continue;
        changed += std::popcount(difference);
        const size_t at = 8 * i + static_cast<size_t>(std::countr_zero(difference));
        EXPECT_FALSE(taken[at]) << WeightTypeName(type) << " bit " << bit;
        taken[at] = true;
      }
      EXPECT_EQ(changed, 1) << WeightTypeName(type) << " bit " << bit;
    }
  }
}

TEST(Repack, PutsTheCodesWhereTheLayoutSays) {
  // Q4_K: row 9, column 77 = group 2, column 13 of it: register (2, lane 4 + 3, i = 1), byte 1.
  base::SeededRandom random(12);
  const auto file = RandomBytes(random, 16 * 144);
  std::vector<std::byte> units(16 * 144);
  RepackToUnits(WeightType::kQ4_K, 16, 256, file, absl::MakeSpan(units));
  const auto code = static_cast<unsigned>(file[9 * 144 + 16 + 32 + 13]) & 15u;
  const size_t word = (2 * 32 + 7) * 4 + 1;
  EXPECT_EQ(static_cast<unsigned>(units[4 * word + 1]) & 15u, code);
  EXPECT_EQ(std::memcmp(units.data() + 2048 + 9 * 16, file.data() + 9 * 144, 16), 0);
}

TEST(UnitIndex, WalksTilesThenColumnBlocksThenUnits) {
  // 19 units of rows: tiles of 8, 8 and 3. 2 column blocks.
  int64_t expected = 0;
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 8}, {8, 8}, {16, 3}}) {
    for (int64_t block = 0; block < 2; ++block) {
      for (int64_t unit = first; unit < first + count; ++unit) {
        EXPECT_EQ(UnitIndex(300, 512, unit, block), expected++);
      }
    }
  }
}

}  // namespace
}  // namespace layercake::kernels::cuda
