// Attention on the device against float64.
#include "kernels/cuda/attention.h"

#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/gpu_test_support.h"
#include "kernels/cuda/row_plan.h"

namespace layercake::kernels::cuda {
namespace {

constexpr uint64_t kSeed = 20240701;

struct Shape {
  int heads = 8;
  int kv_heads = 2;
  int head_dim = 64;
  int block_tokens = 16;
  bool half = true;
};

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
    keys_ = RandomFloats(random, values, 2);
    values_ = RandomFloats(random, values, 2);
    if (shape.half) {
      for (float& value : keys_) value = HalfToFloat(FloatToHalf(value));
      for (float& value : values_) value = HalfToFloat(FloatToHalf(value));
    }
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
    const DeviceArray keys = UploadCache(keys_);
    const DeviceArray values = UploadCache(values_);
    const KvView kv = {.keys = keys.address(),
                       .values = values.address(),
                       .half = shape_.half,
                       .block_tokens = shape_.block_tokens,
                       .kv_heads = shape_.kv_heads,
                       .head_dim = shape_.head_dim};
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
            score += static_cast<double>(q[c]) * static_cast<double>(keys_[at + c]);
          }
          const double weight = std::exp(score / std::sqrt(static_cast<double>(d)));
          total += weight;
          for (size_t c = 0; c < d; ++c) value[c] += weight * static_cast<double>(values_[at + c]);
        }
        for (const double v : value) out.push_back(v / total);
      }
    }
    return out;
  }

 private:
  DeviceArray UploadCache(const std::vector<float>& values) {
    if (!shape_.half) return Upload(values);
    std::vector<uint16_t> halves;
    for (const float value : values) halves.push_back(FloatToHalf(value));
    return Upload(halves);
  }

  Shape shape_;
  std::vector<int32_t> ids_;
  std::vector<float> keys_, values_, queries_;
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
    {.heads = 4, .kv_heads = 2, .head_dim = 64, .block_tokens = 16, .half = false},
};

// Probabilities are rounded to halves: 5e-4 of the norm; without tensor cores 1e-5.
TEST_F(AttentionTest, DecodesLikeFloat64) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(absl::StrCat(shape.heads, "/", shape.kv_heads, " of ", shape.head_dim));
    Make(shape, {{1, 300, 17, 256, 257, 1030}, {1, 3, 1, 1, 1, 2}});
    const double tensor = shape.half && shape.head_dim % 8 == 0 ? 5e-4 : 1e-5;
    const double error = RelativeError(Run(), Reference());
    EXPECT_LT(error, tensor);
    RecordProperty(absl::StrCat("error_", shape.head_dim), absl::StrCat(error));
  }
}

// The query is rounded to halves too: 2e-3.
TEST_F(AttentionTest, AttendsPromptsLikeFloat64) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(absl::StrCat(shape.heads, "/", shape.kv_heads, " of ", shape.head_dim));
    Make(shape, {{70, 300, 40, 129}, {70, 33, 1, 129}});
    EXPECT_LT(RelativeError(Run(), Reference()), 2e-3);
  }
}

TEST_F(AttentionTest, GivesARowTheSameBitsWhateverRunsBesideIt) {
  const Shape shape = {.heads = 40, .kv_heads = 8, .head_dim = 128};
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

// On cards with less shared memory wide heads go without tensor cores.
TEST_F(AttentionTest, AttendsWideHeadsOnCardsWithLittleSharedMemory) {
  context_.max_shared_bytes = 99 << 10;
  for (const int head_dim : {128, 256}) {
    Make({.heads = 6, .kv_heads = 2, .head_dim = head_dim}, {{300, 70}, {2, 40}});
    EXPECT_LT(RelativeError(Run(), Reference()), 2e-3) << head_dim;
  }
}

}  // namespace
}  // namespace layercake::kernels::cuda
