// Attention on the device against float64.
#include "kernels/cuda/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/gpu_test_support.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/row_plan.h"

namespace layercake::kernels::cuda {
namespace {

constexpr uint64_t kSeed = 20240701;

struct Shape {
  int heads = 8;
  int kv_heads = 2;
  int head_dim = 64;
  int block_tokens = 16;
  KvElement element = KvElement::kFloat16;
};

KvView ViewOf(const Shape& shape) {
  return {.element = shape.element,
          .block_tokens = shape.block_tokens,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim};
}

// Heads as a cache holds them: its bytes, and what they are worth.
struct StoredHeads {
  std::vector<uint8_t> bytes;
  std::vector<float> values;
};

StoredHeads StoreQ8(const Shape& shape, int blocks, const std::vector<float>& x) {
  const KvView view = ViewOf(shape);
  const int padded = Q8Groups(shape.head_dim) * kQ8Group;
  StoredHeads stored;
  stored.bytes.resize(static_cast<size_t>(Q8ValueOffset(view, blocks, /*kv_head=*/0, /*token=*/0)));
  size_t next = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      for (int token = 0; token < shape.block_tokens; ++token) {
        const int64_t at = Q8ValueOffset(view, block, head, token);
        std::vector<uint8_t> form(Q8Bytes(shape.head_dim));
        ScalarKernels().store_q8(x.data() + next, shape.head_dim, form.data());
        for (int c = 0; c < padded; ++c) {
          const uint8_t* group = form.data() + static_cast<size_t>(c / kQ8Group) * kQ8BlockBytes;
          stored.bytes[static_cast<size_t>(at + c)] = group[2 + c % kQ8Group];
          const int64_t scale = at + Q8ScaleDistance(view, token) + c / kQ8Group * 2;
          stored.bytes[static_cast<size_t>(scale)] = group[0];
          stored.bytes[static_cast<size_t>(scale) + 1] = group[1];
        }
        std::vector<float> tile(static_cast<size_t>((shape.head_dim + 7) / 8 * 8));
        ScalarKernels().load_q8_tile(form.data(), 1, shape.head_dim, static_cast<int>(tile.size()),
                                     tile.data());
        stored.values.insert(stored.values.end(), tile.begin(), tile.begin() + shape.head_dim);
        next += static_cast<size_t>(shape.head_dim);
      }
    }
  }
  return stored;
}

// x: (blocks, kv_heads, block_tokens, head_dim).
StoredHeads Store(const Shape& shape, int blocks, const std::vector<float>& x) {
  if (shape.element == KvElement::kQ8_0) return StoreQ8(shape, blocks, x);
  StoredHeads stored = {{}, x};
  if (shape.element == KvElement::kFloat32) {
    stored.bytes.resize(x.size() * sizeof(float));
    std::memcpy(stored.bytes.data(), x.data(), stored.bytes.size());
    return stored;
  }
  const bool half = shape.element == KvElement::kFloat16;
  for (float& value : stored.values) {
    const uint16_t bits = half ? FloatToHalf(value) : kernels::FloatToBf16(value);
    stored.bytes.push_back(static_cast<uint8_t>(bits & 0xff));
    stored.bytes.push_back(static_cast<uint8_t>(bits >> 8));
    value = half ? HalfToFloat(bits) : Bf16ToFloat(bits);
  }
  return stored;
}

// Sequences of the given lengths whose last `rows` positions are in the step, over shuffled blocks.
struct Sequences {
  std::vector<int> lengths;
  std::vector<int> rows;
};

class AttentionTest : public GpuTest {
 protected:
  // Makes cache, queries and step; the queries of row r depend on (seed, sequence, position) only.
  void Make(const Shape& shape, const Sequences& sequences) {
    shape_ = shape;
    base::SeededRandom random(kSeed);
    int blocks = 1;
    for (const int length : sequences.lengths) {
      blocks += (length + shape.block_tokens - 1) / shape.block_tokens;
    }
    ids_.resize(static_cast<size_t>(blocks));
    std::iota(ids_.begin(), ids_.end(), 0);
    for (size_t i = ids_.size(); i > 1; --i) std::swap(ids_[i - 1], ids_[random.Below(i)]);
    const int64_t values = int64_t{blocks} * shape.kv_heads * shape.block_tokens * shape.head_dim;
    keys_ = Store(shape, blocks, RandomFloats(random, values, 2));
    values_ = Store(shape, blocks, RandomFloats(random, values, 2));
    tables_.clear();
    positions_.clear();
    index_.clear();
    queries_.clear();
    size_t next = 0;
    for (size_t s = 0; s < sequences.lengths.size(); ++s) {
      const int length = sequences.lengths[s];
      auto& table = tables_.emplace_back();
      for (int b = 0; b < length; b += shape.block_tokens) table.push_back(ids_[next++]);
      for (int r = 0; r < sequences.rows[s]; ++r) {
        positions_.push_back(length - sequences.rows[s] + r);
        index_.push_back(static_cast<int32_t>(s));
        base::SeededRandom row_random(kSeed + 1000 * s + static_cast<uint64_t>(positions_.back()));
        const auto row = RandomFloats(row_random, int64_t{shape.heads} * shape.head_dim, 3);
        queries_.insert(queries_.end(), row.begin(), row.end());
      }
    }
  }

  std::vector<float> Run(bool tiles_allowed = true) {
    std::vector<absl::Span<const int32_t>> table_views(tables_.begin(), tables_.end());
    const StepRows rows = {static_cast<int>(positions_.size()), positions_, positions_, index_,
                           table_views};
    const DeviceArray keys = Upload(keys_.bytes);
    const DeviceArray values = Upload(values_.bytes);
    KvView kv = ViewOf(shape_);
    kv.keys = keys.address();
    kv.values = values.address();
    const bool tiles = tiles_allowed && TiledAttentionTakes(context_, kv, shape_.heads);
    const RowPlan plan = PlanRows(rows, static_cast<int>(ids_.size()), shape_.block_tokens,
                                  tiles ? RowsPerTile(shape_.heads, shape_.kv_heads) : 0);
    std::vector<int32_t> table(tables_.size() * static_cast<size_t>(plan.table_stride));
    for (size_t s = 0; s < tables_.size(); ++s) {
      std::copy(tables_[s].begin(), tables_[s].end(),
                table.begin() + static_cast<int64_t>(s) * plan.table_stride);
    }
    std::vector<int32_t> tile_words;
    for (const RowTile& tile : plan.tiles) {
      tile_words.push_back(tile.first_row);
      tile_words.push_back(tile.row_count);
    }
    tile_words.push_back(0);
    std::vector<int32_t> decode_rows = plan.decode_rows;
    decode_rows.push_back(0);
    const DeviceArray positions = Upload(positions_);
    const DeviceArray old = Upload(plan.old_positions);
    const DeviceArray index = Upload(index_);
    const DeviceArray tables = Upload(table);
    const DeviceArray decode = Upload(decode_rows);
    const DeviceArray tile_array = Upload(tile_words);
    const DeviceArray q = Upload(queries_);
    const DeviceArray out = Upload(Poisoned(static_cast<int64_t>(queries_.size())));
    const size_t part_floats = AttentionPartFloats(shape_.heads, shape_.head_dim, plan.splits);
    // Room for three rows: more of them take several launches.
    const auto parts = DeviceArray::Allocate(context_, 3 * part_floats * sizeof(float), "parts");
    const auto counters =
        DeviceArray::Allocate(context_, 64 * static_cast<size_t>(shape_.heads) * 4, "counters");
    EXPECT_TRUE(parts.ok() && counters.ok());
    const StepView view = {.rows = rows.rows,
                           .kv_position = positions.as<int32_t>(),
                           .rope_position = positions.as<int32_t>(),
                           .table_index = index.as<int32_t>(),
                           .tables = tables.as<int32_t>(),
                           .old_positions = old.as<int32_t>(),
                           .table_stride = plan.table_stride,
                           .decode_rows = decode.as<int32_t>(),
                           .decode_count = static_cast<int>(plan.decode_rows.size()),
                           .splits = plan.splits,
                           .tiles = tile_array.as<RowTile>(),
                           .tile_count = static_cast<int>(plan.tiles.size())};
    const AttentionArguments arguments = {
        .q = q.as<float>(),
        .out = out.as<float>(),
        .heads = shape_.heads,
        .scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim)),
        .parts = parts->as<float>(),
        .parts_bytes = parts->bytes(),
        .counters = counters->as<int32_t>()};
    EXPECT_EQ(PrepareAttention(context_), cudaSuccess);
    if (view.decode_count > 0) {
      EXPECT_EQ(LaunchDecodeAttention(context_, view, kv, arguments), cudaSuccess);
    }
    if (view.tile_count > 0) {
      EXPECT_EQ(LaunchTiledAttention(context_, view, kv, arguments), cudaSuccess);
    }
    return Download<float>(out, static_cast<int64_t>(queries_.size()));
  }

  // From position ends[s] on to the end of its block, sequence s has NaN (q8_0: its scales).
  void PoisonBehind(const std::vector<int>& ends) {
    const KvView view = ViewOf(shape_);
    for (size_t s = 0; s < ends.size(); ++s) {
      for (int p = ends[s]; p == ends[s] || p % shape_.block_tokens != 0; ++p) {
        const int32_t id = tables_[s][static_cast<size_t>(p / shape_.block_tokens)];
        const int token = p % shape_.block_tokens;
        for (int head = 0; head < shape_.kv_heads; ++head) {
          const bool q8 = shape_.element == KvElement::kQ8_0;
          const int64_t at =
              q8 ? Q8ValueOffset(view, id, head, token) + Q8ScaleDistance(view, token)
                 : ((int64_t{id} * shape_.kv_heads + head) * shape_.block_tokens + token) *
                       shape_.head_dim * 2;
          const int bytes = 2 * (q8 ? Q8Groups(shape_.head_dim) : shape_.head_dim);
          for (StoredHeads* heads : {&keys_, &values_}) {
            std::fill_n(heads->bytes.begin() + at, bytes, uint8_t{0xff});  // NaN in f16 and bf16
          }
        }
      }
    }
  }

  std::vector<double> Reference() const {
    std::vector<double> out;
    const int group = shape_.heads / shape_.kv_heads;
    const auto d = static_cast<size_t>(shape_.head_dim);
    for (size_t r = 0; r < positions_.size(); ++r) {
      for (int h = 0; h < shape_.heads; ++h) {
        const float* q =
            queries_.data() + (r * static_cast<size_t>(shape_.heads) + static_cast<size_t>(h)) * d;
        std::vector<double> value(d, 0);
        double total = 0;
        for (int p = 0; p <= positions_[r]; ++p) {
          const int32_t id =
              tables_[static_cast<size_t>(index_[r])][static_cast<size_t>(p / shape_.block_tokens)];
          const size_t at = ((static_cast<size_t>(id) * static_cast<size_t>(shape_.kv_heads) +
                              static_cast<size_t>(h / group)) *
                                 static_cast<size_t>(shape_.block_tokens) +
                             static_cast<size_t>(p % shape_.block_tokens)) *
                            d;
          double score = 0;
          for (size_t c = 0; c < d; ++c) {
            score += static_cast<double>(q[c]) * static_cast<double>(keys_.values[at + c]);
          }
          const double weight = std::exp(score / std::sqrt(static_cast<double>(d)));
          total += weight;
          for (size_t c = 0; c < d; ++c)
            value[c] += weight * static_cast<double>(values_.values[at + c]);
        }
        for (const double v : value) out.push_back(v / total);
      }
    }
    return out;
  }

 private:
  Shape shape_;
  std::vector<int32_t> ids_;
  StoredHeads keys_, values_;
  std::vector<float> queries_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<int32_t> positions_, index_;
};

constexpr Shape kShapes[] = {
    {},
    {.heads = 9, .kv_heads = 3, .head_dim = 64, .block_tokens = 32},
    {.heads = 40, .kv_heads = 8, .head_dim = 128},
    {.heads = 14, .kv_heads = 2, .head_dim = 80, .block_tokens = 7},
    {.heads = 4, .kv_heads = 4, .head_dim = 96},
    {.heads = 6, .kv_heads = 2, .head_dim = 256},
    {.heads = 4, .kv_heads = 1, .head_dim = 176},
    {.heads = 20, .kv_heads = 1, .head_dim = 72},
    {.heads = 4, .kv_heads = 2, .head_dim = 18},
    {.heads = 14, .kv_heads = 2, .head_dim = 128, .block_tokens = 7},
    {.heads = 16, .kv_heads = 1, .head_dim = 128},
    {.heads = 10, .kv_heads = 2, .head_dim = 120},
    {.heads = 4, .kv_heads = 2, .head_dim = 40},
    {.heads = 4, .kv_heads = 2, .head_dim = 64, .element = KvElement::kFloat32},
    {.element = KvElement::kBfloat16},
    {.heads = 9, .kv_heads = 3, .block_tokens = 32, .element = KvElement::kBfloat16},
    {.heads = 40, .kv_heads = 8, .head_dim = 128, .element = KvElement::kBfloat16},
    {.heads = 14,
     .kv_heads = 2,
     .head_dim = 80,
     .block_tokens = 7,
     .element = KvElement::kBfloat16},
    {.heads = 6, .kv_heads = 2, .head_dim = 256, .element = KvElement::kBfloat16},
    {.heads = 20, .kv_heads = 1, .head_dim = 72, .element = KvElement::kBfloat16},
    {.heads = 16, .kv_heads = 1, .head_dim = 128, .element = KvElement::kBfloat16},
    {.heads = 4, .kv_heads = 2, .head_dim = 56, .element = KvElement::kBfloat16},
    {.heads = 4, .kv_heads = 2, .head_dim = 18, .element = KvElement::kBfloat16},
    {.element = KvElement::kQ8_0},
    {.heads = 9, .kv_heads = 3, .block_tokens = 32, .element = KvElement::kQ8_0},
    {.heads = 40, .kv_heads = 8, .head_dim = 128, .element = KvElement::kQ8_0},
    {.heads = 14, .kv_heads = 2, .head_dim = 80, .block_tokens = 48, .element = KvElement::kQ8_0},
    {.heads = 6, .kv_heads = 2, .head_dim = 256, .element = KvElement::kQ8_0},
    {.heads = 20, .kv_heads = 1, .head_dim = 72, .element = KvElement::kQ8_0},
    {.heads = 4, .kv_heads = 2, .head_dim = 18, .element = KvElement::kQ8_0},
};

std::string Describe(const Shape& shape) {
  return absl::StrCat("element ", static_cast<int>(shape.element), ", ", shape.heads, "/",
                      shape.kv_heads, " of ", shape.head_dim, ", blocks of ", shape.block_tokens);
}

// bf16 and q8_0: queries and probabilities have 16 bits, so 5e-5. f16: probabilities are rounded to
// halves, 5e-4, in prompts the query too, 2e-3. Without tensor cores 1e-5.
double Tolerance(const Shape& shape, bool prompt) {
  if (shape.element == KvElement::kBfloat16 || shape.element == KvElement::kQ8_0) return 5e-5;
  const bool tensor = shape.element == KvElement::kFloat16 && shape.head_dim % 8 == 0;
  return prompt ? 2e-3 : (tensor ? 5e-4 : 1e-5);
}

TEST_F(AttentionTest, DecodesLikeFloat64) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(Describe(shape));
    Make(shape, {{1, 300, 17, 256, 257, 1030}, {1, 3, 1, 1, 1, 2}});
    EXPECT_LT(RelativeError(Run(), Reference()), Tolerance(shape, /*prompt=*/false));
  }
}

// More parts than a warp has lanes.
TEST_F(AttentionTest, AddsUpManyParts) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  for (const KvElement element : {KvElement::kFloat16, KvElement::kBfloat16, KvElement::kQ8_0}) {
    for (const int head_dim : {64, 128, 192}) {
      const Shape shape = {
          .heads = 8, .kv_heads = 1, .head_dim = head_dim, .block_tokens = 48, .element = element};
      SCOPED_TRACE(Describe(shape));
      Make(shape, {{256 * 8, 256 * 9 + 1, 256 * 41 + 100}, {1, 1, 1}});
      EXPECT_LT(RelativeError(Run(), Reference()), Tolerance(shape, /*prompt=*/false));
    }
  }
}

TEST_F(AttentionTest, AttendsPromptsLikeFloat64) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(Describe(shape));
    Make(shape, {{70, 300, 40, 129}, {70, 33, 1, 129}});
    EXPECT_LT(RelativeError(Run(), Reference()), Tolerance(shape, /*prompt=*/true));
  }
}

TEST_F(AttentionTest, GivesARowTheSameBitsWhateverRunsBesideIt) {
  for (const KvElement element : {KvElement::kFloat16, KvElement::kBfloat16, KvElement::kQ8_0}) {
    const Shape shape = {.heads = 40, .kv_heads = 8, .head_dim = 128, .element = element};
    SCOPED_TRACE(Describe(shape));
    Make(shape, {{700, 300, 17, 256, 257, 1030, 5, 90}, {1, 3, 1, 1, 1, 2, 1, 4}});
    const std::vector<float> all = Run();
    EXPECT_EQ(all, Run());
    // The same sequences, of which only some have rows.
    const size_t width = 40 * 128;
    Make(shape, {{700, 300, 17, 256, 257, 1030, 5, 90}, {1, 0, 0, 0, 0, 0, 0, 0}});
    const std::vector<float> first = Run();
    EXPECT_TRUE(std::equal(first.begin(), first.end(), all.begin()));
    Make(shape, {{700, 300, 17, 256, 257, 1030, 5, 90}, {0, 1, 0, 0, 0, 0, 0, 1}});
    const std::vector<float> two = Run();
    EXPECT_TRUE(std::equal(two.begin(), two.begin() + width, all.begin() + 3 * width));
    EXPECT_TRUE(std::equal(two.begin() + width, two.end(), all.end() - width));
  }
}

// What an earlier sequence left in the last block, a NaN even, is none of this one's.
TEST_F(AttentionTest, IsNotReachedByWhatLiesBehindTheLastPosition) {
  for (const KvElement element : {KvElement::kFloat16, KvElement::kBfloat16, KvElement::kQ8_0}) {
    const Shape shape = {.heads = 8, .kv_heads = 2, .head_dim = 64, .element = element};
    SCOPED_TRACE(Describe(shape));
    Make(shape, {{19, 35}, {1, 20}});
    const std::vector<double> reference = Reference();
    PoisonBehind({19, 35});
    EXPECT_LT(RelativeError(Run(), reference), Tolerance(shape, /*prompt=*/true));
  }
}

// A key or value that its type cannot hold is NaN, and so is what a row makes of it.
TEST_F(AttentionTest, PassesNaNOn) {
  for (const KvElement element : {KvElement::kFloat16, KvElement::kBfloat16, KvElement::kQ8_0}) {
    const Shape shape = {.heads = 4, .kv_heads = 1, .head_dim = 64, .element = element};
    SCOPED_TRACE(Describe(shape));
    for (const int rows : {1, 40}) {
      Make(shape, {{300}, {rows}});
      PoisonBehind({299});  // the last position alone
      const std::vector<float> out = Run();
      EXPECT_TRUE(std::all_of(out.end() - 4 * 64, out.end(), [](float x) { return x != x; }));
    }
  }
}

// On cards with less shared memory wide heads go without tensor cores.
TEST_F(AttentionTest, AttendsWideHeadsOnCardsWithLittleSharedMemory) {
  context_.max_shared_bytes = 99 << 10;
  for (const KvElement element : {KvElement::kFloat16, KvElement::kBfloat16, KvElement::kQ8_0}) {
    for (const int head_dim : {128, 256}) {
      const Shape shape = {.heads = 6, .kv_heads = 2, .head_dim = head_dim, .element = element};
      SCOPED_TRACE(Describe(shape));
      Make(shape, {{300, 70}, {2, 40}});
      EXPECT_LT(RelativeError(Run(), Reference()), Tolerance(shape, /*prompt=*/true));
    }
  }
}

}  // namespace
}  // namespace layercake::kernels::cuda
