// The producers of operands, on a GPU.
#include "kernels/cuda/operand.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cuda/fixed_point.h"
#include "kernels/cuda/matmul_test_support.h"

namespace layercake::kernels::cuda {
namespace {

constexpr OperandForms kAllForms =
    kFixedForm | kFloat32Form | kFloat16Form | kBfloat16Form | kTileForm | kBfloat16HighForm;

using OperandTest = MatmulTest;

TEST_F(OperandTest, WritesFixedBlocksBitForBit) {
  base::SeededRandom random(21);
  for (const int64_t k : {int64_t{32}, int64_t{896}, int64_t{5120}, int64_t{29568}}) {
    const int rows = 18;
    const auto x = HeavyTailedRows(random, rows, k);
    const auto blocks = ReadFixed(*Made(x, rows, k, kFixedForm), rows, k);
    const auto back = FixedRows(blocks, rows, k);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t block = 0; block < ColumnBlocks(k); ++block) {
        const int64_t first = block * kUnitColumns;
        const int64_t count = std::min<int64_t>(kUnitColumns, k - first);
        const float* values = x.data() + r * k + first;
        float largest = 0;
        for (int64_t c = 0; c < count; ++c) largest = std::max(largest, std::abs(values[c]));
        const FixedScale scale = FixedScaleOf(std::bit_cast<uint32_t>(largest), largest);
        const FixedBlock& made = blocks[static_cast<size_t>(FixedBlockIndex(k, r, block))];
        ASSERT_EQ(made.scale, scale.scale);
        int sums[16] = {};
        for (int64_t c = 0; c < count; ++c) {
          const int expected = FixedValue(values[c], scale.inverse);
          ASSERT_EQ(back[static_cast<size_t>(r * k + first + c)],
                    scale.scale * static_cast<float>(expected));
          sums[c / 16] += expected;
        }
        for (int j = 0; j < 8; ++j) {
          const uint16_t* at = made.sums32 + (j / 2) * 4 + j % 2;
          ASSERT_EQ(64 * (HalfToFloat(at[0]) + HalfToFloat(at[2])),
                    static_cast<float>(sums[2 * j] + sums[2 * j + 1]));
        }
        for (int g = 0; g < 16; ++g) {
          const uint16_t* at = made.sums16 + (g % 8 / 2) * 8 + 2 * (g / 8) + g % 2;
          ASSERT_EQ(64 * (HalfToFloat(at[0]) + HalfToFloat(at[4])), static_cast<float>(sums[g]));
        }
      }
    }
  }
}

// What each form stands for, row by row.
struct Forms {
  std::vector<float> fixed, values, half, bf16;
};

class AllForms : public OperandTest {
 protected:
  Forms Read(const Operand& operand, int64_t rows, int64_t k) {
    const auto count = static_cast<size_t>(rows * k);
    Forms forms;
    forms.fixed = FixedRows(ReadFixed(operand, rows, k), rows, k);
    forms.values = Copy<float>(operand.view().values, count);
    forms.half = HalvesOf(operand, rows, k);
    forms.bf16 = PairsOf(operand, rows, k);
    return forms;
  }

  std::vector<float> HalvesOf(const Operand& operand, int64_t rows, int64_t k) {
    const auto half = Copy<uint16_t>(operand.view().half, static_cast<size_t>(rows * k));
    const auto scale = Copy<float>(operand.view().half_scale, static_cast<size_t>(rows));
    std::vector<float> values;
    for (size_t i = 0; i < half.size(); ++i) {
      values.push_back(HalfToFloat(half[i]) * scale[i / static_cast<size_t>(k)]);
    }
    return values;
  }

  std::vector<float> HighOf(const Operand& operand, int64_t rows, int64_t k) {
    std::vector<float> values;
    for (const uint16_t high :
         Copy<uint16_t>(operand.view().bf16_high, static_cast<size_t>(rows * k))) {
      values.push_back(Bf16ToFloat(high));
    }
    return values;
  }

  std::vector<float> PairsOf(const Operand& operand, int64_t rows, int64_t k) {
    std::vector<float> values = HighOf(operand, rows, k);
    const auto low = Copy<uint16_t>(operand.view().bf16_low, values.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] += Bf16ToFloat(low[i]);
    return values;
  }

  void ExpectNear(const Forms& forms, const std::vector<double>& reference) {
    EXPECT_LT(RelativeError(forms.values, reference), 1e-6);
    EXPECT_LT(RelativeError(forms.fixed, reference), 3e-4);
    EXPECT_LT(RelativeError(forms.half, reference), 3e-4);
    EXPECT_LT(RelativeError(forms.bf16, reference), 1e-5);
  }

  template <typename T>
  std::vector<T> Copy(const T* from, size_t count) {
    std::vector<T> values(count);
    EXPECT_EQ(cudaMemcpy(values.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }
};

constexpr int64_t kOddSizes[] = {1, 33, 896, 3421, 5120, 9000, 27648};

// Where column `column` of row `row` stands among the tiles, in halves (operand_layout.h).
int64_t TilePlace(int64_t groups, int64_t row, int64_t column) {
  const int64_t in_block = column % kUnitColumns;
  const int64_t j = in_block / 32;
  const int64_t half = in_block % 32 / 16;
  const int64_t t = in_block % 16 / 4;
  const int64_t b = in_block % 4;
  const int64_t chunk = 4 * (j / 4) + 2 * half + b % 2;
  return TilePieceIndex(groups, column / kUnitColumns, static_cast<int>(j % 4), row / 8) +
         64 * chunk + 8 * (row % 8) + 2 * t + b / 2;
}

TEST_F(AllForms, WritesTilesOfTheSameHalves) {
  base::SeededRandom random(22);
  for (const int64_t k : {int64_t{32}, int64_t{896}, int64_t{5120}}) {
    for (const int rows : {1, 17, 130}) {
      const auto operand =
          Made(HeavyTailedRows(random, rows, k), rows, k, kFloat16Form | kTileForm);
      const OperandView& view = operand->view();
      EXPECT_EQ(view.tile_groups, (rows + 127) / 128 * 16);
      const auto half = Copy<uint16_t>(view.half, static_cast<size_t>(rows * k));
      const auto tiles = Copy<uint16_t>(
          view.tiles, static_cast<size_t>(TilePieceIndex(view.tile_groups, ColumnBlocks(k), 0, 0)));
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < ColumnBlocks(k) * kUnitColumns; ++c) {
          const uint16_t expected = c < k ? half[static_cast<size_t>(r * k + c)] : uint16_t{0};
          ASSERT_EQ(tiles[static_cast<size_t>(TilePlace(view.tile_groups, r, c))], expected)
              << "row " << r << " of " << rows << ", column " << c << " of " << k;
        }
      }
    }
  }
}

TEST_F(AllForms, HoldPlainRows) {
  base::SeededRandom random(22);
  for (const int64_t k : kOddSizes) {
    const auto x = HeavyTailedRows(random, 3, k);
    ExpectNear(Read(*Made(x, 3, k, kAllForms), 3, k), {x.begin(), x.end()});
  }
}

TEST_F(AllForms, HoldNormalisedRows) {
  base::SeededRandom random(23);
  for (const int64_t k : kOddSizes) {
    const auto x = HeavyTailedRows(random, 3, k);
    const auto weight = RandomFloats(random, k);
    std::vector<double> reference;
    for (int64_t r = 0; r < 3; ++r) {
      double sum = 0;
      const float* row = x.data() + r * k;
      for (int64_t c = 0; c < k; ++c) sum += static_cast<double>(row[c]) * row[c];
      const double factor = 1 / std::sqrt(sum / static_cast<double>(k) + 1e-5);
      for (int64_t c = 0; c < k; ++c) {
        reference.push_back(row[c] * factor * static_cast<double>(weight[static_cast<size_t>(c)]));
      }
    }
    const DeviceArray on_device = Upload(x);
    const DeviceArray weights = Upload(weight);
    const auto make = [&](OperandForms forms) {
      auto operand = Operand::Create(context_, 3, k, forms);
      EXPECT_TRUE(operand.ok()) << operand.status();
      EXPECT_TRUE(NormOperand(context_, on_device.as<float>(), weights.as<float>(), 1e-5f, 3, k,
                              forms, **operand)
                      .ok());
      EXPECT_EQ(cudaStreamSynchronize(context_.stream), cudaSuccess);
      return *std::move(operand);
    };
    ExpectNear(Read(*make(kAllForms), 3, k), reference);
    // By the kernels of one form.
    EXPECT_LT(RelativeError(HighOf(*make(kBfloat16HighForm), 3, k), reference), 3e-3);
    EXPECT_LT(RelativeError(PairsOf(*make(kBfloat16Form), 3, k), reference), 1e-5);
    EXPECT_LT(RelativeError(HalvesOf(*make(kFloat16Form), 3, k), reference), 3e-4);
  }
}

TEST_F(AllForms, HoldGatedRows) {
  base::SeededRandom random(24);
  for (const int64_t k : kOddSizes) {
    const int64_t stride = 2 * k + 3;
    const auto both = RandomFloats(random, 3 * stride, 4.0f);
    std::vector<double> reference;
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t c = 0; c < k; ++c) {
        const double gate = both[static_cast<size_t>(r * stride + c)];
        reference.push_back(gate / (1 + std::exp(-gate)) *
                            static_cast<double>(both[static_cast<size_t>(r * stride + k + c)]));
      }
    }
    auto operand = Operand::Create(context_, 3, k, kAllForms);
    ASSERT_TRUE(operand.ok()) << operand.status();
    const DeviceArray on_device = Upload(both);
    ASSERT_TRUE(SwigluOperand(context_, on_device.as<float>(), on_device.as<float>() + k, stride, 3,
                              k, kAllForms, **operand)
                    .ok());
    ASSERT_EQ(cudaStreamSynchronize(context_.stream), cudaSuccess);
    ExpectNear(Read(**operand, 3, k), reference);
  }
}

// Forms have kernels of their own where they are made alone.
TEST_F(AllForms, HoldTheSameValuesWhenMadeAlone) {
  base::SeededRandom random(26);
  for (const int64_t k : kOddSizes) {
    SCOPED_TRACE(k);
    const int rows = 3;
    const auto count = static_cast<size_t>(rows * k);
    const auto gate = HeavyTailedRows(random, rows, k);
    const auto up = RandomFloats(random, rows * k);
    const DeviceArray gates = Upload(gate);
    const DeviceArray ups = Upload(up);
    const auto make = [&](bool gated, OperandForms forms) {
      auto operand = Operand::Create(context_, rows, k, forms);
      EXPECT_TRUE(operand.ok()) << operand.status();
      EXPECT_TRUE((gated ? SwigluOperand(context_, gates.as<float>(), ups.as<float>(), k, rows, k,
                                         forms, **operand)
                         : PlainOperand(context_, gates.as<float>(), rows, k, forms, **operand))
                      .ok());
      EXPECT_EQ(cudaStreamSynchronize(context_.stream), cudaSuccess);
      return *std::move(operand);
    };
    for (const bool gated : {false, true}) {
      const auto all = make(gated, kAllForms);
      const auto high = Copy<uint16_t>(all->view().bf16_high, count);
      const auto high_alone = make(gated, kBfloat16HighForm);
      EXPECT_EQ(Copy<uint16_t>(high_alone->view().bf16_high, count), high);
      EXPECT_EQ(high_alone->view().bf16_low, nullptr);
      const auto pair = make(gated, kBfloat16Form);
      EXPECT_EQ(Copy<uint16_t>(pair->view().bf16_high, count), high);
      EXPECT_EQ(Copy<uint16_t>(pair->view().bf16_low, count),
                Copy<uint16_t>(all->view().bf16_low, count));
      const auto half = make(gated, kFloat16Form);
      EXPECT_EQ(Copy<uint16_t>(half->view().half, count), Copy<uint16_t>(all->view().half, count));
      EXPECT_EQ(Copy<float>(half->view().half_scale, rows),
                Copy<float>(all->view().half_scale, rows));
    }
  }
}

TEST_F(AllForms, DependOnTheirRowAlone) {
  base::SeededRandom random(25);
  const int64_t k = 5120;
  const auto x = HeavyTailedRows(random, 16, k);
  const auto weight = Upload(RandomFloats(random, k));
  const auto make = [&](const std::vector<float>& values, int rows, OperandForms forms) {
    auto operand = Operand::Create(context_, 16, k, forms);
    const DeviceArray on_device = Upload(values);
    EXPECT_TRUE(NormOperand(context_, on_device.as<float>(), weight.as<float>(), 1e-6f, rows, k,
                            forms, **operand)
                    .ok());
    EXPECT_EQ(cudaStreamSynchronize(context_.stream), cudaSuccess);
    return ReadFixed(**operand, rows, k);
  };
  const auto all = make(x, 16, kFixedForm);
  for (const OperandForms forms : {kFixedForm, kAllForms}) {
    const std::vector<float> third(x.begin() + 2 * k, x.begin() + 3 * k);
    const auto alone = make(third, 1, forms);
    for (int64_t block = 0; block < ColumnBlocks(k); ++block) {
      EXPECT_EQ(std::memcmp(&alone[static_cast<size_t>(FixedBlockIndex(k, 0, block))],
                            &all[static_cast<size_t>(FixedBlockIndex(k, 2, block))],
                            offsetof(FixedBlock, unused)),
                0);
    }
  }
}

TEST_F(OperandTest, RefusesWhatThereIsNoRoomFor) {
  auto operand = Operand::Create(context_, 2, 256, kFixedForm);
  ASSERT_TRUE(operand.ok());
  const DeviceArray x = Upload(Poisoned(1024));
  for (const auto& [rows, k, forms] : {std::tuple<int, int64_t, OperandForms>{3, 256, kFixedForm},
                                       {2, 257, kFixedForm},
                                       {2, 256, kFloat32Form},
                                       {-1, 256, kFixedForm}}) {
    EXPECT_EQ(PlainOperand(context_, x.as<float>(), rows, k, forms, **operand).code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(Operand::Create(context_, 0, 256, kFixedForm).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace layercake::kernels::cuda
