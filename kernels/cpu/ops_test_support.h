// For tests of the operations: heads as a cache holds them, one attention layer, its rows and its
// float64 twin.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/kernels_test_support.h"

namespace layercake::kernels {

inline absl::Span<const std::byte> BytesOf(const std::vector<uint8_t>& bytes) {
  return {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
}

// One head's values as a cache of a type other than F32 holds them.
inline std::vector<uint8_t> StoredHead(const CpuKernels& kernels, KvType type,
                                       const std::vector<float>& x) {
  const auto n = static_cast<int>(x.size());
  // What is written behind the last byte must stay.
  std::vector<uint8_t> bytes(KvHeadBytes(type, n) + 4, 0xA5);
  if (type == KvType::kF16) {
    kernels.store_half(x.data(), n, reinterpret_cast<uint16_t*>(bytes.data()));
  } else if (type == KvType::kBF16) {
    kernels.store_bf16(x.data(), n, reinterpret_cast<uint16_t*>(bytes.data()));
  } else {
    kernels.store_q8(x.data(), n, bytes.data());
  }
  for (size_t i = bytes.size() - 4; i < bytes.size(); ++i) EXPECT_EQ(bytes[i], 0xA5);
  bytes.resize(bytes.size() - 4);
  return bytes;
}

// Such heads of `positions` as a tile: (positions, head_dim to a multiple of 8).
inline std::vector<float> LoadedHeads(const CpuKernels& kernels, KvType type,
                                      const std::vector<uint8_t>& bytes, int positions,
                                      int head_dim) {
  const int padded = (head_dim + 7) / 8 * 8;
  std::vector<float> tile = Poisoned(int64_t{positions} * padded);
  const auto* words = reinterpret_cast<const uint16_t*>(bytes.data());
  if (type == KvType::kF16) {
    kernels.load_half_tile(words, positions, head_dim, padded, tile.data());
  } else if (type == KvType::kBF16) {
    kernels.load_bf16_tile(words, positions, head_dim, padded, tile.data());
  } else {
    kernels.load_q8_tile(bytes.data(), positions, head_dim, padded, tile.data());
  }
  return tile;
}

inline std::vector<float> ThereAndBack(const CpuKernels& kernels, KvType type,
                                       const std::vector<float>& x) {
  return LoadedHeads(kernels, type, StoredHead(kernels, type, x), 1, static_cast<int>(x.size()));
}

// A device of some threads with operations of one table on it.
struct Fixture {
  CollectingExecutor executor;
  std::unique_ptr<CpuDevice> device;
  std::unique_ptr<Ops> ops;

  explicit Fixture(int threads, bool scalar = false)
      : device(std::make_unique<CpuDevice>(CpuDeviceOptions{.threads = threads}, executor)) {
    if (scalar) {
      ops = std::make_unique<CpuOps>(device->pool(), ScalarKernels());
    } else {
      ops = *CreateCpuOps(*device);
    }
  }

  void Run(Device::Work work) {
    const absl::Status status = RunOn(*device, executor, std::move(work));
    EXPECT_TRUE(status.ok()) << status;
  }
};

struct Weights {
  std::vector<uint8_t> bytes;
  std::vector<float> values;  // dequantised
  std::unique_ptr<Matrix> matrix;

  Weights(Ops& ops, base::Random& random, WeightType type, int64_t n, int64_t k)
      : bytes(RandomWeights(random, type, n, k)),
        values(Dequantized(type, bytes, n, k)),
        matrix(*ops.LoadMatrix(type, n, k, BytesOf(bytes))) {}

  // W x (+ bias) in double.
  std::vector<double> Times(const std::vector<double>& x, const float* bias = nullptr) const {
    std::vector<double> y;
    for (int64_t n = 0; n < matrix->n(); ++n) {
      double sum = bias != nullptr ? bias[n] : 0;
      for (size_t i = 0; i < x.size(); ++i) {
        sum += values[static_cast<size_t>(n * matrix->k()) + i] * x[i];
      }
      y.push_back(sum);
    }
    return y;
  }
};

inline std::vector<double> NormTwin(const double* x, const std::vector<float>& weight, double eps) {
  double sum = 0;
  for (size_t i = 0; i < weight.size(); ++i) sum += x[i] * x[i];
  const double factor = 1 / std::sqrt(sum / static_cast<double>(weight.size()) + eps);
  std::vector<double> y;
  for (size_t i = 0; i < weight.size(); ++i) y.push_back(x[i] * factor * weight[i]);
  return y;
}

inline std::vector<double> RowOf(const std::vector<float>& x, int64_t row, int64_t width) {
  return {x.begin() + row * width, x.begin() + (row + 1) * width};
}

// The tolerance is relative to the row's largest value: that is what activations lose bits to.
inline void ExpectNear(const float* got, const std::vector<double>& expected, double tolerance) {
  double largest = 1;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], tolerance * largest) << "at " << i;
  }
}

// Steps of one sequence per element of `lengths`, last rows[i] positions each, over shuffled
// blocks.
struct Layout {
  std::vector<std::vector<int32_t>> tables;
  std::vector<absl::Span<const int32_t>> table_views;
  std::vector<int32_t> positions, rope_positions, index;

  Layout(base::Random& random, const std::vector<int>& lengths, int block_tokens, int blocks) {
    std::vector<int32_t> ids(static_cast<size_t>(blocks));
    std::iota(ids.begin(), ids.end(), 0);
    for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random.Below(i)]);
    size_t next = 0;
    for (const int length : lengths) {
      std::vector<int32_t>& table = tables.emplace_back();
      for (int b = 0; b < (length + block_tokens - 1) / block_tokens; ++b) {
        table.push_back(ids.at(next++));
      }
    }
    for (const auto& table : tables) table_views.push_back(table);
  }

  void AddRow(int sequence, int position, int rope_position) {
    index.push_back(sequence);
    positions.push_back(position);
    rope_positions.push_back(rope_position);
  }
  StepRows Rows() const {
    return {static_cast<int>(positions.size()), rope_positions, positions, index, table_views};
  }
};

struct LayerShape {
  int hidden = 64;
  int heads = 6;
  int kv_heads = 2;
  int head_dim = 32;
  KvType kv_type = KvType::kF32;
  Rope::Pairing pairing = Rope::Pairing::kAdjacent;
  int rope_dims = 32;
  bool extras = false;  // biases and per-head norms
};

// One attention layer with its cache.
struct Layer {
  LayerShape shape;
  std::vector<float> norm, bq, bk, bv, q_norm, k_norm;
  Weights wq, wk, wv;
  std::vector<std::unique_ptr<Vector>> vectors;
  AttentionWeights weights;
  Rope rope;
  std::unique_ptr<KvCache> cache;

  Layer(Ops& ops, base::Random& random, const LayerShape& s, WeightType type, int blocks,
        int block_tokens)
      : shape(s),
        norm(RandomFloats(random, s.hidden)),
        bq(RandomFloats(random, s.heads * s.head_dim)),
        bk(RandomFloats(random, s.kv_heads * s.head_dim)),
        bv(RandomFloats(random, s.kv_heads * s.head_dim)),
        q_norm(RandomFloats(random, s.head_dim)),
        k_norm(RandomFloats(random, s.head_dim)),
        wq(ops, random, type, s.heads * s.head_dim, s.hidden),
        wk(ops, random, type, s.kv_heads * s.head_dim, s.hidden),
        wv(ops, random, type, s.kv_heads * s.head_dim, s.hidden) {
    const auto load = [&](const std::vector<float>& values) {
      vectors.push_back(*ops.LoadVector(values));
      return vectors.back().get();
    };
    weights.norm = load(norm);
    weights.norm_eps = 1e-6f;
    weights.wq = wq.matrix.get();
    weights.wk = wk.matrix.get();
    weights.wv = wv.matrix.get();
    if (s.extras) {
      weights.bq = load(bq);
      weights.bk = load(bk);
      weights.bv = load(bv);
      weights.q_norm = load(q_norm);
      weights.k_norm = load(k_norm);
    }
    rope.pairing = s.pairing;
    rope.rope_dims = s.rope_dims;
    rope.magnitude = 1.25f;
    for (int j = 0; j < s.rope_dims / 2; ++j) {
      rope.inv_freq.push_back(static_cast<float>(std::pow(100.0, -2.0 * j / s.rope_dims)));
    }
    cache = *ops.CreateKvCache({2, blocks, block_tokens, s.kv_heads, s.head_dim, s.kv_type});
  }

  // The query, key or value of one row, head by head.
  std::vector<double> Twin(const Weights& w, const std::vector<float>& bias,
                           const std::vector<float>* head_norm, const std::vector<double>& x,
                           int position) const {
    const std::vector<double> h = NormTwin(x.data(), norm, 1e-6);
    std::vector<double> y = w.Times(h, shape.extras ? bias.data() : nullptr);
    if (head_norm == nullptr) return y;
    for (size_t head = 0; head < y.size(); head += static_cast<size_t>(shape.head_dim)) {
      if (shape.extras) {
        const std::vector<double> normed = NormTwin(y.data() + head, *head_norm, 1e-6);
        std::copy(normed.begin(), normed.end(), y.begin() + static_cast<ptrdiff_t>(head));
      }
      for (int j = 0; j < shape.rope_dims / 2; ++j) {
        const bool adjacent = shape.pairing == Rope::Pairing::kAdjacent;
        const int a = adjacent ? 2 * j : j;
        const int b = adjacent ? 2 * j + 1 : j + shape.rope_dims / 2;
        double& first = y[head + static_cast<size_t>(a)];
        double& second = y[head + static_cast<size_t>(b)];
        const double angle = position * static_cast<double>(rope.inv_freq[static_cast<size_t>(j)]);
        const double c = std::cos(angle) * 1.25;
        const double s = std::sin(angle) * 1.25;
        const double old = first;
        first = old * c - second * s;
        second = old * s + second * c;
      }
    }
    return y;
  }
};

}  // namespace layercake::kernels
