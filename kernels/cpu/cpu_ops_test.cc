// The operations against float64 twins, and the promise that a row's bits depend on itself alone.
#include "kernels/cpu/cpu_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/ops_test_support.h"

namespace layercake::kernels {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSeed = 20240612;

TEST(CpuOps, RefuseMatricesOfTheWrongSize) {
  Fixture fixture(1);
  const std::vector<uint8_t> bytes(20 * 18);
  const auto code = [&](WeightType type, int64_t n, int64_t k) {
    return fixture.ops->LoadMatrix(type, n, k, BytesOf(bytes)).status().code();
  };
  EXPECT_EQ(code(WeightType::kQ4_1, 18, 32), absl::StatusCode::kOk);
  EXPECT_EQ(code(WeightType::kQ4_1, 17, 32), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(WeightType::kQ4_1, 18, 33), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(WeightType::kQ4_1, 0, 32), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(WeightType::kQ4_1, -1, 32), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(WeightType::kQ4_1, int64_t{1} << 62, int64_t{1} << 40),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(WeightType::kQ4_K, 2, 128), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(static_cast<WeightType>(40), 18, 32), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(fixture.ops->LoadVector({}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CpuOps, SayHowBigACacheWasThatDidNotFit) {
  Fixture fixture(1);
  const KvCacheSpec huge{64, 1 << 30, 32, 128, 128, KvType::kF32};
  const absl::Status status = fixture.ops->CreateKvCache(huge).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("1073741824 blocks of 32"));
  const KvCacheSpec wrapping{1 << 30, 1 << 30, 1 << 30, 128, 128, KvType::kF32};
  EXPECT_EQ(fixture.ops->CreateKvCache(wrapping).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(fixture.ops->CreateKvCache({1, 1, 16, 1, 63, KvType::kF16}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(KvCacheBytes({30, 10, 16, 3, 64, KvType::kF16}), 30u * 10 * 16 * 3 * 64 * 2 * 2);
}

TEST(CpuOps, NeedACpuDevice) {
  class OtherDevice final : public Device {
   public:
    std::string name() const override { return "other"; }
    absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(size_t) override {
      return absl::UnimplementedError("");
    }
    void Submit(Work, Done) override {}
    absl::Status CopyIn(const std::byte*, Buffer, size_t) override { return absl::OkStatus(); }
    absl::Status CopyOut(Buffer, std::byte*, size_t) override { return absl::OkStatus(); }
    absl::Status Copy(Buffer, Buffer, size_t) override { return absl::OkStatus(); }
  } other;
  EXPECT_EQ(CreateCpuOps(other).status().code(), absl::StatusCode::kInvalidArgument);
}

// Heads as the cache gives them back.
std::vector<double> Rounded(KvType type, int head_dim, const std::vector<double>& heads) {
  if (type == KvType::kF32) return heads;
  std::vector<double> rounded;
  for (auto head = heads.begin(); head != heads.end(); head += head_dim) {
    const std::vector<float> kept =
        ThereAndBack(ScalarKernels(), type, std::vector<float>(head, head + head_dim));
    rounded.insert(rounded.end(), kept.begin(), kept.begin() + head_dim);
  }
  return rounded;
}

class CpuOpsTable : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Tables, CpuOpsTable, testing::Bool(), [](const auto& instance) {
  return instance.param ? "scalar" : "dispatched";
});

// Of the largest value of a row: activations in int16 per group, and keys and values that are
// rounded the other way than the twin's where those stand near the middle of a step.
double ToleranceOf(KvType type) {
  switch (type) {
    case KvType::kF32:
      return 2e-3;
    case KvType::kF16:
      return 5e-3;
    case KvType::kBF16:
    case KvType::kQ8_0:
      break;
  }
  return 3e-2;
}

TEST_P(CpuOpsTable, AttendLikeFloat64) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  const LayerShape shapes[] = {
      {},
      {.kv_type = KvType::kF16, .pairing = Rope::Pairing::kHalves},
      {.kv_type = KvType::kBF16},
      {.kv_type = KvType::kQ8_0},
      {.heads = 5, .kv_heads = 5, .head_dim = 80, .kv_type = KvType::kQ8_0, .rope_dims = 40},
      {.heads = 5, .kv_heads = 5, .head_dim = 80, .rope_dims = 40},
      {.heads = 7,
       .kv_heads = 1,
       .head_dim = 18,
       .pairing = Rope::Pairing::kHalves,
       .rope_dims = 18,
       .extras = true},
      {.heads = 4, .kv_heads = 2, .head_dim = 128, .rope_dims = 128, .extras = true},
  };
  for (const LayerShape& shape : shapes) {
    SCOPED_TRACE(absl::StrCat("heads ", shape.heads, "/", shape.kv_heads, " of ", shape.head_dim));
    base::SeededRandom random(kSeed);
    Fixture fixture(2, GetParam());
    constexpr int kBlockTokens = 5;
    const std::vector<int> lengths = {37, 3};
    Layer layer(*fixture.ops, random, shape, WeightType::kQ8_0, 12, kBlockTokens);
    Layout layout(random, lengths, kBlockTokens, 12);
    for (size_t s = 0; s < lengths.size(); ++s) {
      for (int p = 0; p < lengths[s]; ++p) layout.AddRow(static_cast<int>(s), p, p + 1000);
    }
    const int64_t rows = layout.Rows().rows;
    const int64_t width = shape.heads * shape.head_dim;
    std::vector<float> x = RandomFloats(random, rows * shape.hidden, 4);
    std::vector<float> q = Poisoned(rows * width);
    std::vector<float> out = Poisoned(rows * width);
    fixture.Run([&]() -> absl::Status {
      EXPECT_TRUE(fixture.ops->BeginStep(layout.Rows()).ok());
      absl::Status status = fixture.ops->AttentionInput(layer.weights, layer.rope, BufferOf(x),
                                                        *layer.cache, 1, BufferOf(q));
      if (!status.ok()) return status;
      return fixture.ops->Attention(BufferOf(q), *layer.cache, 1, shape.heads, BufferOf(out));
    });
    const double tolerance = ToleranceOf(shape.kv_type);
    std::vector<std::vector<double>> queries, keys, values;
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<double> row = RowOf(x, r, shape.hidden);
      const int position = layout.rope_positions[static_cast<size_t>(r)];
      queries.push_back(layer.Twin(layer.wq, layer.bq, &layer.q_norm, row, position));
      const auto keep = [&](const std::vector<double>& heads) {
        return Rounded(shape.kv_type, shape.head_dim, heads);
      };
      keys.push_back(keep(layer.Twin(layer.wk, layer.bk, &layer.k_norm, row, position)));
      values.push_back(keep(layer.Twin(layer.wv, layer.bv, nullptr, row, position)));
      ExpectNear(q.data() + r * width, queries.back(), 2e-4);
    }
    const auto head_dim = static_cast<size_t>(shape.head_dim);
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
      const size_t first = layout.index[r] == 0 ? 0 : 37;
      std::vector<double> expected;
      for (int head = 0; head < shape.heads; ++head) {
        const size_t at = static_cast<size_t>(head) * head_dim;
        const size_t kv_at = static_cast<size_t>(head / (shape.heads / shape.kv_heads)) * head_dim;
        double total = 0;
        std::vector<double> value(head_dim, 0);
        for (size_t t = first; t <= r; ++t) {
          double score = 0;
          for (size_t c = 0; c < head_dim; ++c) score += queries[r][at + c] * keys[t][kv_at + c];
          const double weight = std::exp(score / std::sqrt(static_cast<double>(head_dim)));
          total += weight;
          for (size_t c = 0; c < head_dim; ++c) value[c] += weight * values[t][kv_at + c];
        }
        for (const double v : value) expected.push_back(v / total);
      }
      ExpectNear(out.data() + static_cast<int64_t>(r) * width, expected, tolerance);
    }
  }
}

TEST_P(CpuOpsTable, ComputeTheFeedForwardHalfLikeFloat64) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  for (const WeightType type : {WeightType::kQ4_1, WeightType::kF16, WeightType::kQ8_0}) {
    base::SeededRandom random(kSeed);
    Fixture fixture(2, GetParam());
    constexpr int64_t kHidden = 96;
    constexpr int64_t kFfn = 160;
    constexpr int64_t kRows = 5;
    const Weights gate(*fixture.ops, random, type, kFfn, kHidden);
    const Weights up(*fixture.ops, random, WeightType::kQ5_0, kFfn, kHidden);
    const Weights down(*fixture.ops, random, type, kHidden, kFfn);
    const std::vector<float> norm = RandomFloats(random, kHidden);
    const std::vector<float> gate_bias = RandomFloats(random, kFfn);
    const std::vector<float> down_bias = RandomFloats(random, kHidden);
    const auto norm_vector = *fixture.ops->LoadVector(norm);
    const auto gate_bias_vector = *fixture.ops->LoadVector(gate_bias);
    const auto down_bias_vector = *fixture.ops->LoadVector(down_bias);
    const FfnWeights weights{norm_vector.get(),      1e-5f,  gate.matrix.get(), up.matrix.get(),
                             gate_bias_vector.get(), nullptr};
    Layout layout(random, {kRows}, 8, 1);
    for (int r = 0; r < kRows; ++r) layout.AddRow(0, r, r);
    std::vector<float> x = RandomFloats(random, kRows * kHidden);
    const std::vector<float> before = x;
    std::vector<float> h = Poisoned(kRows * kFfn);
    fixture.Run([&]() -> absl::Status {
      EXPECT_TRUE(fixture.ops->BeginStep(layout.Rows()).ok());
      EXPECT_TRUE(fixture.ops->FfnInput(weights, BufferOf(x), BufferOf(h)).ok());
      return fixture.ops->LinearAdd(*down.matrix, down_bias_vector.get(), BufferOf(h), BufferOf(x));
    });
    for (int64_t r = 0; r < kRows; ++r) {
      const std::vector<double> row = RowOf(before, r, kHidden);
      const std::vector<double> normed = NormTwin(row.data(), norm, 1e-5);
      std::vector<double> hidden = gate.Times(normed, gate_bias.data());
      const std::vector<double> upward = up.Times(normed);
      for (size_t i = 0; i < hidden.size(); ++i) {
        hidden[i] = hidden[i] / (1 + std::exp(-hidden[i])) * upward[i];
      }
      ExpectNear(h.data() + r * kFfn, hidden, 2e-4);
      std::vector<double> sum = down.Times(hidden, down_bias.data());
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += row[i];
      ExpectNear(x.data() + r * kHidden, sum, 5e-4);
    }
  }
}

TEST_P(CpuOpsTable, EmbedAndScoreTheSelectedRows) {
  base::SeededRandom random(kSeed);
  Fixture fixture(2, GetParam());
  const Weights table(*fixture.ops, random, WeightType::kQ8_0, 51, 64);
  const std::vector<float> norm = RandomFloats(random, 64);
  const auto norm_vector = *fixture.ops->LoadVector(norm);
  const std::vector<int32_t> tokens = {50, 0, 17, 17};
  const std::vector<int32_t> selected = {1, 3};
  std::vector<float> x = Poisoned(4 * 64);
  std::vector<float> logits = Poisoned(2 * 51);
  fixture.Run([&]() -> absl::Status {
    EXPECT_TRUE(fixture.ops->Embed(*table.matrix, tokens, BufferOf(x)).ok());
    return fixture.ops->Logits(*norm_vector, 1e-5f, *table.matrix, selected, BufferOf(x),
                               BufferOf(logits));
  });
  for (size_t r = 0; r < 4; ++r) {
    for (size_t i = 0; i < 64; ++i) {
      EXPECT_EQ(x[64 * r + i], table.values[static_cast<size_t>(tokens[r]) * 64 + i]);
    }
  }
  for (size_t i = 0; i < 2; ++i) {
    const std::vector<double> row = RowOf(x, selected[i], 64);
    ExpectNear(logits.data() + 51 * i, table.Times(NormTwin(row.data(), norm, 1e-5)), 3e-4);
  }
  const std::vector<int32_t> beyond = {51};
  EXPECT_EQ(fixture.ops->Embed(*table.matrix, beyond, BufferOf(x)).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CpuOps, FindTheRowsThatAreNotFinite) {
  Fixture fixture(1);
  std::vector<float> x(3 * 10, 1.0f);
  x[14] = std::numeric_limits<float>::infinity();
  std::vector<uint8_t> non_finite(3, 9);
  ASSERT_TRUE(fixture.ops->FindNonFinite(BufferOf(x), 10, absl::MakeSpan(non_finite)).ok());
  EXPECT_THAT(non_finite, testing::ElementsAre(0, 1, 0));
}

// A layer's q, keys and values, and attention output of the last rows of long sequences.
struct StepResult {
  std::vector<float> x, out, logits;
};

// One sequence of `length` positions, the rows computed in steps of the sizes given, beside
// `neighbours` rows of another sequence in each step.
StepResult RunSequence(int threads, const std::vector<int>& chunks, int neighbours, KvType kv_type,
                       WeightType type) {
  base::SeededRandom random(kSeed);
  Fixture fixture(threads);
  const LayerShape shape{.hidden = 256,
                         .heads = 6,
                         .kv_heads = 2,
                         .head_dim = 64,
                         .kv_type = kv_type,
                         .rope_dims = 64};
  const int length = std::accumulate(chunks.begin(), chunks.end(), 0);
  const int width = shape.heads * shape.head_dim;
  Layer layer(*fixture.ops, random, shape, type, 2 * length / 16 + 8, 16);
  const Weights wo(*fixture.ops, random, WeightType::kF16, shape.hidden, width);
  const Weights gate(*fixture.ops, random, type, 512, shape.hidden);
  const Weights up(*fixture.ops, random, type, 512, shape.hidden);
  const Weights down(*fixture.ops, random, type, shape.hidden, 512);
  const Weights head(*fixture.ops, random, WeightType::kQ6_K, 333, shape.hidden);
  const std::vector<float> source = RandomFloats(random, length * shape.hidden);
  const std::vector<float> other = RandomFloats(random, 8 * shape.hidden);
  FfnWeights ffn;
  ffn.norm = layer.weights.norm;
  ffn.norm_eps = 1e-6f;
  ffn.gate = gate.matrix.get();
  ffn.up = up.matrix.get();

  StepResult result;
  int first = 0;
  for (const int chunk : chunks) {
    base::SeededRandom table_random(kSeed);
    Layout layout(table_random, {length, 8}, 16, 2 * length / 16 + 8);
    std::vector<float> x;
    for (int n = 0; n < neighbours; ++n) {
      layout.AddRow(1, n, n);
      x.insert(x.end(), other.begin() + n * shape.hidden, other.begin() + (n + 1) * shape.hidden);
    }
    for (int p = first; p < first + chunk; ++p) layout.AddRow(0, p, p);
    x.insert(x.end(), source.begin() + first * shape.hidden,
             source.begin() + (first + chunk) * shape.hidden);
    const int rows = neighbours + chunk;
    std::vector<float> q = Poisoned(rows * width);
    std::vector<float> out = Poisoned(rows * width);
    std::vector<float> h = Poisoned(rows * 512);
    std::vector<float> logits = Poisoned(rows * 333);
    std::vector<int32_t> all(static_cast<size_t>(rows));
    std::iota(all.begin(), all.end(), 0);
    fixture.Run([&]() -> absl::Status {
      Ops& ops = *fixture.ops;
      EXPECT_TRUE(ops.BeginStep(layout.Rows()).ok());
      EXPECT_TRUE(
          ops.AttentionInput(layer.weights, layer.rope, BufferOf(x), *layer.cache, 0, BufferOf(q))
              .ok());
      EXPECT_TRUE(ops.Attention(BufferOf(q), *layer.cache, 0, shape.heads, BufferOf(out)).ok());
      EXPECT_TRUE(ops.LinearAdd(*wo.matrix, nullptr, BufferOf(out), BufferOf(x)).ok());
      EXPECT_TRUE(ops.FfnInput(ffn, BufferOf(x), BufferOf(h)).ok());
      EXPECT_TRUE(ops.LinearAdd(*down.matrix, nullptr, BufferOf(h), BufferOf(x)).ok());
      return ops.Logits(*layer.weights.norm, 1e-6f, *head.matrix, all, BufferOf(x),
                        BufferOf(logits));
    });
    const auto append = [&](std::vector<float>& to, const std::vector<float>& from, int columns) {
      to.insert(to.end(), from.begin() + neighbours * columns, from.end());
    };
    append(result.x, x, shape.hidden);
    append(result.out, out, width);
    append(result.logits, logits, 333);
    first += chunk;
  }
  return result;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(CpuOps, GiveTheSameBitsForAnyThreadsChunksAndNeighbours) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  for (const KvType kv_type : {KvType::kF16, KvType::kF32, KvType::kBF16, KvType::kQ8_0}) {
    SCOPED_TRACE(KvTypeName(kv_type));
    // Past the first span of attention, in odd chunks, the last rows one by one.
    const std::vector<int> odd = {100, 1, 333, 90, 1, 1, 1};
    const StepResult whole = RunSequence(1, {527}, 0, kv_type, WeightType::kQ4_K);
    ASSERT_FALSE(std::isnan(whole.logits.back()));
    for (const int threads : {1, 2, 3}) {
      SCOPED_TRACE(absl::StrCat("threads ", threads));
      const StepResult result = RunSequence(threads, odd, threads, kv_type, WeightType::kQ4_K);
      EXPECT_TRUE(SameBits(whole.out, result.out));
      EXPECT_TRUE(SameBits(whole.x, result.x));
      EXPECT_TRUE(SameBits(whole.logits, result.logits));
    }
  }
  const StepResult a = RunSequence(1, {7, 9}, 0, KvType::kF16, WeightType::kQ4_1);
  const StepResult b = RunSequence(2, {16}, 3, KvType::kF16, WeightType::kQ4_1);
  EXPECT_TRUE(SameBits(a.logits, b.logits));
}

// The outputs of attention over one position whose value number 3 is `huge_value`.
std::vector<float> AttendOver(KvType type, float huge_value) {
  base::SeededRandom random(kSeed);
  Fixture fixture(1);
  const LayerShape shape{.head_dim = 64, .kv_type = type, .extras = true};
  Layer layer(*fixture.ops, random, shape, WeightType::kQ8_0, 1, 8);
  std::vector<float> huge(static_cast<size_t>(shape.kv_heads * shape.head_dim), 1.0f);
  huge[3] = huge_value;
  const auto bias = *fixture.ops->LoadVector(huge);
  layer.weights.bv = bias.get();
  Layout layout(random, {1}, 8, 1);
  layout.AddRow(0, 0, 0);
  std::vector<float> x = RandomFloats(random, shape.hidden);
  std::vector<float> q = Poisoned(shape.heads * shape.head_dim);
  std::vector<float> out(q.size(), 0.0f);
  fixture.Run([&]() -> absl::Status {
    EXPECT_TRUE(fixture.ops->BeginStep(layout.Rows()).ok());
    EXPECT_TRUE(
        fixture.ops
            ->AttentionInput(layer.weights, layer.rope, BufferOf(x), *layer.cache, 0, BufferOf(q))
            .ok());
    return fixture.ops->Attention(BufferOf(q), *layer.cache, 0, shape.heads, BufferOf(out));
  });
  return out;
}

TEST(CpuOps, ShowWhatACacheCannotHoldAsNonFinite) {
  const std::vector<float> half = AttendOver(KvType::kF16, 1e5f);
  EXPECT_TRUE(std::isnan(half[3]));
  EXPECT_FALSE(std::isnan(half[4]));
  const std::vector<float> bf16 = AttendOver(KvType::kBF16, 3.4e38f);
  EXPECT_TRUE(std::isnan(bf16[3]));
  EXPECT_FALSE(std::isnan(bf16[4]));
  const std::vector<float> q8 = AttendOver(KvType::kQ8_0, 1e7f);
  EXPECT_TRUE(std::isnan(q8[3]));
  EXPECT_TRUE(std::isnan(q8[31])) << "the whole block";
  EXPECT_FALSE(std::isnan(q8[32]));
}

TEST(CpuOps, RefuseBuffersAndShapesThatDoNotFit) {
  base::SeededRandom random(kSeed);
  Fixture fixture(1);
  const Weights w(*fixture.ops, random, WeightType::kQ8_0, 32, 64);
  Layout layout(random, {1}, 8, 1);
  layout.AddRow(0, 0, 0);
  ASSERT_TRUE(fixture.ops->BeginStep(layout.Rows()).ok());
  std::vector<float> in(64), x(31), logits(32);
  EXPECT_EQ(fixture.ops->LinearAdd(*w.matrix, nullptr, BufferOf(in), BufferOf(x)).code(),
            absl::StatusCode::kInvalidArgument);
  std::vector<SampleResult> results(1);
  SampleRequest request;
  const auto sample = [&] {
    return fixture.ops
        ->Sample(BufferOf(logits), 32, absl::MakeSpan(&request, 1), absl::MakeSpan(results))
        .code();
  };
  EXPECT_EQ(sample(), absl::StatusCode::kOk);
  request.logits_row = 1;
  EXPECT_EQ(sample(), absl::StatusCode::kInvalidArgument);
  request.logits_row = -1;
  EXPECT_EQ(sample(), absl::StatusCode::kInvalidArgument);
  request.logits_row = 0;
  const SeenToken seen{32, 1};
  request.seen = absl::MakeSpan(&seen, 1);
  EXPECT_EQ(sample(), absl::StatusCode::kInvalidArgument);
  request.seen = {};
  const std::vector<uint32_t> mask(2, 1);
  request.allowed = mask;
  EXPECT_EQ(sample(), absl::StatusCode::kInvalidArgument);
  StepRows bad = layout.Rows();
  bad.rows = 2;
  EXPECT_EQ(fixture.ops->BeginStep(bad).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace layercake::kernels
