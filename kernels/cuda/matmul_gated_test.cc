#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/hopper_code.h"
#include "kernels/cuda/matmul_bf16.h"
#include "kernels/cuda/matmul_test_support.h"
#include "kernels/cuda/matmul_units.h"

namespace layercake::kernels::cuda {
namespace {

using testing::HasSubstr;

// Gate and up (n, k), down (out, n), with what they stand for.
struct Ffn {
  std::unique_ptr<CudaMatrix> gate, up, down;
  std::vector<float> gate_weights, up_weights, down_weights;
};

// Whose kernels: this card's, or on Hopper those of other cards.
enum class KernelsOf : uint8_t { kThisCard, kOthers };

class GatedMatmulTest : public MatmulTest, public testing::WithParamInterface<KernelsOf> {
 protected:
  void SetUp() override {
    MatmulTest::SetUp();
    if (IsSkipped()) return;
    if (GetParam() == KernelsOf::kOthers) {
      if (!RunsHopperCode(context_)) GTEST_SKIP() << "this card has no other kernels";
      context_.compute_major = 8;
    }
    MultiplierLimits limits;
    limits.max_rows = kMostRows;
    auto multiplier = Multiplier::Create(context_, limits);
    ASSERT_TRUE(multiplier.ok()) << multiplier.status();
    many_ = *std::move(multiplier);
    norm_ = Upload(std::vector<float>(kMostK, 1.5f));
  }
  void TearDown() override {
    many_.reset();
    norm_ = DeviceArray();
    MatmulTest::TearDown();
  }

  Ffn MakeFfn(base::Random& random, WeightType type, int64_t n, int64_t k, int64_t out) {
    Ffn ffn;
    const auto make = [&](int64_t rows, int64_t columns, std::vector<float>* weights) {
      const std::vector<uint8_t> bytes = RandomWeights(random, type, rows, columns);
      *weights = Dequantized(type, bytes, rows, columns);
      return Matrix(type, rows, columns, bytes);
    };
    ffn.gate = make(n, k, &ffn.gate_weights);
    ffn.up = make(n, k, &ffn.up_weights);
    ffn.down = make(out, n, &ffn.down_weights);
    return ffn;
  }

  // The operands of one gated product, tiles or bf16; the one that it makes is full of NaN before.
  struct Operands {
    std::unique_ptr<Operand> normed, next;
  };
  Operands MakeOperands(const std::vector<float>& x, int rows, int64_t k, int64_t n,
                        OperandForms form = kTileForm) {
    Operands made;
    auto normed = Operand::Create(context_, rows, k, form);
    auto next = Operand::Create(context_, rows, n, form);
    EXPECT_TRUE(normed.ok() && next.ok());
    if (!normed.ok() || !next.ok()) return made;
    made.normed = *std::move(normed);
    made.next = *std::move(next);
    const OperandView& view = made.next->view();
    if (form == kTileForm) {
      const auto halves =
          static_cast<size_t>(TilePieceIndex(view.tile_groups, ColumnBlocks(n), 0, 0));
      EXPECT_EQ(cudaMemset(view.tiles, 0x7e, halves * sizeof(uint16_t)), cudaSuccess);
    } else {
      const auto values = static_cast<size_t>(rows * n);
      EXPECT_EQ(cudaMemset(view.bf16_high, 0xff, values * sizeof(uint16_t)), cudaSuccess);
      if (form == kBfloat16Form) {
        EXPECT_EQ(cudaMemset(view.bf16_low, 0xff, values * sizeof(uint16_t)), cudaSuccess);
      }
    }
    const DeviceArray values = Upload(x);
    EXPECT_TRUE(NormOperand(context_, values.as<float>(), norm_.as<float>(), 1e-6f, rows, k, form,
                            *made.normed)
                    .ok());
    EXPECT_EQ(cudaStreamSynchronize(context_.stream), cudaSuccess);
    return made;
  }

  // What the norm makes of x, in double.
  static std::vector<float> Normed(const std::vector<float>& x, int rows, int64_t k) {
    std::vector<float> normed(x.size());
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      for (int64_t c = 0; c < k; ++c) {
        const double v = x[static_cast<size_t>(r * k + c)];
        squares += v * v;
      }
      const double factor = 1.5 / std::sqrt(squares / static_cast<double>(k) + 1e-6);
      for (int64_t c = 0; c < k; ++c) {
        const auto at = static_cast<size_t>(r * k + c);
        normed[at] = static_cast<float>(x[at] * factor);
      }
    }
    return normed;
  }

  static std::vector<double> Reference(const Ffn& ffn, const std::vector<float>& normed, int rows,
                                       const std::vector<float>& gate_bias,
                                       const std::vector<float>& up_bias) {
    const int64_t n = ffn.gate->n();
    const auto gate = ReferenceProduct(normed, ffn.gate_weights, rows, n, ffn.gate->k());
    const auto up = ReferenceProduct(normed, ffn.up_weights, rows, n, ffn.gate->k());
    std::vector<float> hidden(gate.size());
    for (size_t i = 0; i < hidden.size(); ++i) {
      const size_t column = i % static_cast<size_t>(n);
      const double z = gate[i] + (gate_bias.empty() ? 0.0 : double{gate_bias[column]});
      const double u = up[i] + (up_bias.empty() ? 0.0 : double{up_bias[column]});
      hidden[i] = static_cast<float>(z / (1 + std::exp(-z)) * u);
    }
    return ReferenceProduct(hidden, ffn.down_weights, rows, ffn.down->n(), n);
  }

  std::vector<float> Down(const Ffn& ffn, const Operand& next, int rows) {
    const DeviceArray out = Upload(Poisoned(rows * ffn.down->n()));
    const Product product = {ffn.down.get(), nullptr, out.as<float>(), ffn.down->n(), false};
    const absl::Status status = many_->Multiply({&product, 1}, next, rows);
    EXPECT_TRUE(status.ok()) << status;
    return Download<float>(out, rows * ffn.down->n());
  }

  static constexpr int kMostRows = 300;
  static constexpr int64_t kMostK = 1032;
  std::unique_ptr<Multiplier> many_;
  DeviceArray norm_;  // weights
};

std::string KernelsName(const testing::TestParamInfo<KernelsOf>& kernels) {
  return kernels.param == KernelsOf::kThisCard ? "ThisCard" : "Others";
}
INSTANTIATE_TEST_SUITE_P(Kernels, GatedMatmulTest,
                         testing::Values(KernelsOf::kThisCard, KernelsOf::kOthers), KernelsName);

TEST_P(GatedMatmulTest, AgreesWithTheProductInDoubleForEveryTypeAndSize) {
  struct Case {
    int64_t n, k, out;
  };
  // One tile of rows and a part of one; an even and an odd number of tiles; cut items.
  for (const Case& c : {Case{256, 256, 40}, Case{1280, 512, 130}, Case{3328, 768, 64}}) {
    for (const WeightType type : kAllTypes) {
      if (!HasUnitMatmul(type)) continue;
      // All types of one size, the commonest of each.
      if (c.n != 1280 && type != WeightType::kQ4_K && type != WeightType::kQ8_0) continue;
      base::SeededRandom random(static_cast<uint64_t>(c.n + c.k));
      // Only types with blocks of 32 have such columns.
      const int64_t n = BlockShapeOf(type).elements == 32 ? c.n - 160 : c.n;
      const Ffn ffn = MakeFfn(random, type, n, c.k, c.out);
      for (const int rows : {17, 33, 90, kMostRows}) {
        SCOPED_TRACE(absl::StrCat(WeightTypeName(type), " n ", n, " k ", c.k, " rows ", rows));
        const std::vector<float> x = HeavyTailedRows(random, rows, c.k);
        const Operands operands = MakeOperands(x, rows, c.k, n);
        ASSERT_TRUE(many_->TakesGated(*ffn.gate, *ffn.up, *ffn.down, rows));
        const absl::Status status = many_->MultiplyGated(
            {.gate = ffn.gate.get(), .up = ffn.up.get()}, *operands.normed, rows, *operands.next);
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_LT(RelativeError(Down(ffn, *operands.next, rows),
                                Reference(ffn, Normed(x, rows, c.k), rows, {}, {})),
                  2e-3);
      }
    }
  }
}

TEST_P(GatedMatmulTest, MakesTheOperandOfBf16AtRowsThatHaveAKernelForIt) {
  if (!RunsHopperCode(context_)) GTEST_SKIP() << "no such kernel on this device";
  base::SeededRandom random(3);
  const Ffn ffn = MakeFfn(random, WeightType::kBF16, 1368, 1032, 130);
  for (const int rows : {1, 5, kDecodeRows, 17, 33, 90, kBf16MostRows}) {
    SCOPED_TRACE(absl::StrCat("rows ", rows));
    const bool pairs = rows <= kDecodeRows;
    const std::vector<float> x = HeavyTailedRows(random, rows, 1032);
    const Operands operands =
        MakeOperands(x, rows, 1032, 1368, pairs ? kBfloat16Form : kBfloat16HighForm);
    ASSERT_TRUE(many_->TakesGated(*ffn.gate, *ffn.up, *ffn.down, rows));
    const absl::Status status = many_->MultiplyGated({.gate = ffn.gate.get(), .up = ffn.up.get()},
                                                     *operands.normed, rows, *operands.next);
    ASSERT_TRUE(status.ok()) << status;
    // Both operands round to bf16, or to pairs.
    EXPECT_LT(RelativeError(Down(ffn, *operands.next, rows),
                            Reference(ffn, Normed(x, rows, 1032), rows, {}, {})),
              pairs ? 5e-5 : 6e-3);
  }
  EXPECT_FALSE(many_->TakesGated(*ffn.gate, *ffn.up, *ffn.down, kBf16MostRows + 1));
  // Rows of 16-bit weights that are not aligned.
  const Ffn odd = MakeFfn(random, WeightType::kBF16, 36, 44, 8);
  EXPECT_FALSE(many_->TakesGated(*odd.gate, *odd.up, *odd.down, 1));
}

TEST_P(GatedMatmulTest, AddsBiasesHoweverLarge) {
  constexpr int64_t kN = 512;
  constexpr int64_t kK = 512;
  constexpr int kRows = 40;
  base::SeededRandom random(5);
  const Ffn ffn = MakeFfn(random, WeightType::kQ4_K, kN, kK, 100);
  const std::vector<float> x = HeavyTailedRows(random, kRows, kK);
  for (const float size : {0.5f, 3000.0f}) {
    const std::vector<float> gate_bias = RandomFloats(random, kN, size);
    const std::vector<float> up_bias = RandomFloats(random, kN, size);
    const DeviceArray gate_array = Upload(gate_bias);
    const DeviceArray up_array = Upload(up_bias);
    const Operands operands = MakeOperands(x, kRows, kK, kN);
    ASSERT_TRUE(many_
                    ->MultiplyGated({.gate = ffn.gate.get(),
                                     .up = ffn.up.get(),
                                     .gate_bias = gate_array.as<float>(),
                                     .up_bias = up_array.as<float>(),
                                     .largest_gate_bias = size,
                                     .largest_up_bias = size},
                                    *operands.normed, kRows, *operands.next)
                    .ok());
    EXPECT_LT(RelativeError(Down(ffn, *operands.next, kRows),
                            Reference(ffn, Normed(x, kRows, kK), kRows, gate_bias, up_bias)),
              2e-3)
        << "biases up to " << size;
  }
}

TEST_P(GatedMatmulTest, ANaNShowsInItsRowAndInNoOther) {
  constexpr int64_t kN = 768;
  constexpr int64_t kK = 512;
  constexpr int kRows = 70;
  constexpr int kBad = 37;
  base::SeededRandom random(7);
  const Ffn ffn = MakeFfn(random, WeightType::kQ6_K, kN, kK, 60);
  std::vector<float> x = HeavyTailedRows(random, kRows, kK);
  x[kBad * kK + 100] = std::numeric_limits<float>::quiet_NaN();
  const Operands operands = MakeOperands(x, kRows, kK, kN);
  ASSERT_TRUE(many_
                  ->MultiplyGated({.gate = ffn.gate.get(), .up = ffn.up.get()}, *operands.normed,
                                  kRows, *operands.next)
                  .ok());
  const std::vector<float> out = Down(ffn, *operands.next, kRows);
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(std::isnan(out[i]), i / 60 == kBad) << "row " << i / 60;
  }
}

// Scales of files lie where the weights do; f16 would overflow or lose them as they are.
TEST_P(GatedMatmulTest, WeightsMayBeOfAnySize) {
  constexpr int64_t kN = 260;
  constexpr int64_t kK = 512;
  constexpr int kRows = 50;
  base::SeededRandom random(11);
  const std::vector<float> x = RandomFloats(random, kRows * kK);
  for (const float scale : {3e-7f, 2e-3f, 300.0f, 60000.0f}) {
    std::vector<uint8_t> bytes = RandomWeights(random, WeightType::kQ8_0, kN, kK);
    const uint16_t half = FloatToHalf(scale);
    for (size_t at = 0; at < bytes.size(); at += 34) std::memcpy(&bytes[at], &half, sizeof half);
    const auto w = Matrix(WeightType::kQ8_0, kN, kK, bytes);
    const std::vector<float> weights = Dequantized(WeightType::kQ8_0, bytes, kN, kK);
    const auto operand = Made(x, kRows, kK, kTileForm);
    const DeviceArray out = Upload(Poisoned(kRows * kN));
    const Product product = {w.get(), nullptr, out.as<float>(), kN, false};
    ASSERT_TRUE(many_->Multiply({&product, 1}, *operand, kRows).ok());
    EXPECT_LT(RelativeError(Download<float>(out, kRows * kN),
                            ReferenceProduct(x, weights, kRows, kN, kK)),
              1e-3)
        << "scale " << scale;
    double largest = 0;
    for (int64_t r = 0; r < kN; ++r) {
      double squares = 0;
      for (int64_t c = 0; c < kK; ++c) {
        const double v = weights[static_cast<size_t>(r * kK + c)];
        squares += v * v;
      }
      largest = std::max(largest, std::sqrt(squares));
    }
    EXPECT_NEAR(w->range().largest_row_norm / largest, 1, 1e-4);
  }
}

TEST_P(GatedMatmulTest, RefusesWhatDoesNotFit) {
  base::SeededRandom random(13);
  const Ffn ffn = MakeFfn(random, WeightType::kQ4_K, 256, 512, 40);
  const auto other =
      Matrix(WeightType::kQ8_0, 256, 512, RandomWeights(random, WeightType::kQ8_0, 256, 512));
  EXPECT_FALSE(many_->TakesGated(*ffn.gate, *other, *ffn.down, 40));
  EXPECT_FALSE(many_->TakesGated(*ffn.gate, *ffn.up, *ffn.gate, 40));
  EXPECT_FALSE(many_->TakesGated(*ffn.gate, *ffn.up, *ffn.down, kDecodeRows));
  const Operands operands = MakeOperands(RandomFloats(random, 40 * 512), 40, 512, 256);
  const auto message = [&](const GatedProduct& gated, Operand& next) {
    return std::string(many_->MultiplyGated(gated, *operands.normed, 40, next).message());
  };
  EXPECT_THAT(message({.gate = ffn.gate.get(), .up = other.get()}, *operands.next),
              HasSubstr("no gated product of 40 rows with Q4_K 256 x 512 and Q8_0"));
  EXPECT_THAT(message({.gate = ffn.gate.get(), .up = ffn.up.get()}, *operands.normed),
              HasSubstr("no gated product"));
  EXPECT_THAT(message({.gate = ffn.gate.get()}, *operands.next), HasSubstr("no gated product"));
}

}  // namespace
}  // namespace layercake::kernels::cuda
