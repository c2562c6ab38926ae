// What the kernel writes into f16, bf16 and q8_0 caches against the CPU's bytes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/gpu_test_support.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/step_kernels.h"

namespace layercake::kernels::cuda {
namespace {

constexpr uint64_t kSeed = 20261129;
constexpr int kRows = 5;
constexpr int kKvHeads = 3;
constexpr int kBlocks = 4;

class KvStoreTest : public GpuTest {
 protected:
  // Row r goes to position kPositions[r] of a sequence over the blocks 2, 0, 3.
  static constexpr int32_t kPositions[kRows] = {0, 15, 16, 31, 40};
  static constexpr int32_t kTable[3] = {2, 0, 3};

  // Sizes from what vanishes to what overflows, and special values.
  static std::vector<float> Heads(base::Random& random, int head_dim) {
    std::vector<float> x;
    for (int head = 0; head < kRows * kKvHeads; ++head) {
      const float size = std::ldexp(1.0f, static_cast<int>(random.Below(60)) - 35);
      const std::vector<float> values = RandomFloats(random, head_dim, size);
      x.insert(x.end(), values.begin(), values.end());
      if (head % 5 == 0) x[random.Below(x.size())] = std::nanf("");
      if (head % 5 == 1) x[random.Below(x.size())] = -INFINITY;
      if (head % 5 == 2) x[random.Below(x.size())] = 3.4e38f;
    }
    return x;
  }

  // The cache of `view` (pointers aside) after the rows, keys then values.
  std::pair<std::vector<uint8_t>, std::vector<uint8_t>> Stored(KvView view,
                                                               const std::vector<float>& k,
                                                               const std::vector<float>& v,
                                                               size_t bytes) {
    const DeviceArray keys = Upload(std::vector<uint8_t>(bytes, 0xa5));
    const DeviceArray values = Upload(std::vector<uint8_t>(bytes, 0xa5));
    view.keys = keys.address();
    view.values = values.address();
    const DeviceArray positions = Upload(std::vector<int32_t>(kPositions, kPositions + kRows));
    const DeviceArray index = Upload(std::vector<int32_t>(kRows, 0));
    const DeviceArray tables = Upload(std::vector<int32_t>(kTable, kTable + 3));
    const DeviceArray q = Upload(std::vector<float>(static_cast<size_t>(kRows * view.head_dim)));
    const DeviceArray k_array = Upload(k);
    const DeviceArray v_array = Upload(v);
    const StepView step = {.rows = kRows,
                           .kv_position = positions.as<int32_t>(),
                           .rope_position = positions.as<int32_t>(),
                           .table_index = index.as<int32_t>(),
                           .tables = tables.as<int32_t>(),
                           .table_stride = 3};
    EXPECT_EQ(
        LaunchRopeCache(
            context_, step, view,
            {.q = q.as<float>(), .k = k_array.as<float>(), .v = v_array.as<float>(), .heads = 1}),
        cudaSuccess);
    const auto count = static_cast<int64_t>(bytes);
    return {Download<uint8_t>(keys, count), Download<uint8_t>(values, count)};
  }

  // Without the signs of f16's NaN, which the device does not keep.
  static std::vector<uint16_t> Unsigned(std::vector<uint16_t> words, bool half) {
    for (uint16_t& word : words) {
      if (half && (word & 0x7fff) == 0x7e00) word = 0x7e00;
    }
    return words;
  }
  static std::vector<uint16_t> Words(const std::vector<uint8_t>& bytes, bool half) {
    std::vector<uint16_t> words(bytes.size() / 2);
    std::memcpy(words.data(), bytes.data(), bytes.size());
    return Unsigned(std::move(words), half);
  }
};

TEST_F(KvStoreTest, WritesF16AndBf16AsTheCpuDoes) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  base::SeededRandom random(kSeed);
  for (const KvElement element : {KvElement::kFloat16, KvElement::kBfloat16}) {
    const bool half = element == KvElement::kFloat16;
    for (const int head_dim : {64, 80, 18, 256}) {
      const KvView view = {
          .element = element, .block_tokens = 16, .kv_heads = kKvHeads, .head_dim = head_dim};
      const std::vector<float> k = Heads(random, head_dim);
      const std::vector<float> v = Heads(random, head_dim);
      const size_t words = static_cast<size_t>(kBlocks * kKvHeads * 16 * head_dim);
      const auto [keys, values] = Stored(view, k, v, words * 2);
      const auto expect = [&](const std::vector<float>& x) {
        std::vector<uint16_t> expected(words, 0xa5a5);
        for (int row = 0; row < kRows; ++row) {
          for (int head = 0; head < kKvHeads; ++head) {
            const float* from = x.data() + (row * kKvHeads + head) * head_dim;
            const int block = kTable[kPositions[row] / 16];
            uint16_t* to = expected.data() +
                           ((block * kKvHeads + head) * 16 + kPositions[row] % 16) * head_dim;
            if (half) {
              ScalarKernels().store_half(from, head_dim, to);
            } else {
              ScalarKernels().store_bf16(from, head_dim, to);
            }
          }
        }
        return expected;
      };
      EXPECT_EQ(Words(keys, half), Unsigned(expect(k), half)) << head_dim;
      EXPECT_EQ(Words(values, half), Unsigned(expect(v), half)) << head_dim;
    }
  }
}

TEST_F(KvStoreTest, WritesQ8AsTheCpuDoesInTheDevicesOrder) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  base::SeededRandom random(kSeed);
  for (const int head_dim : {64, 80, 18, 256}) {
    const KvView view = {.element = KvElement::kQ8_0,
                         .block_tokens = 16,
                         .kv_heads = kKvHeads,
                         .head_dim = head_dim};
    const std::vector<float> k = Heads(random, head_dim);
    const std::vector<float> v = Heads(random, head_dim);
    const auto bytes = static_cast<size_t>(Q8ValueOffset(view, kBlocks, 0, 0));
    const auto [keys, values] = Stored(view, k, v, bytes);
    const auto expect = [&](const std::vector<float>& x) {
      std::vector<uint8_t> expected(bytes, 0xa5);
      for (int row = 0; row < kRows; ++row) {
        for (int head = 0; head < kKvHeads; ++head) {
          std::vector<uint8_t> form(Q8Bytes(head_dim));
          ScalarKernels().store_q8(x.data() + (row * kKvHeads + head) * head_dim, head_dim,
                                   form.data());
          const int token = kPositions[row] % 16;
          const int64_t at = Q8ValueOffset(view, kTable[kPositions[row] / 16], head, token);
          for (int group = 0; group < Q8Groups(head_dim); ++group) {
            const uint8_t* from = form.data() + static_cast<size_t>(group) * kQ8BlockBytes;
            std::copy_n(from + 2, kQ8Group, expected.begin() + at + group * kQ8Group);
            std::copy_n(from, 2, expected.begin() + at + Q8ScaleDistance(view, token) + group * 2);
          }
        }
      }
      return expected;
    };
    EXPECT_EQ(keys, expect(k)) << head_dim;
    EXPECT_EQ(values, expect(v)) << head_dim;
  }
}

}  // namespace
}  // namespace layercake::kernels::cuda
