// The numbers of f16, bf16 and q8_0 caches against the CPU's, and where they lie.
#include "kernels/cuda/kv_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <set>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/kernels_test_support.h"
#include "kernels/cuda/fixed_point.h"
#include "kernels/ops.h"

namespace layercake::kernels::cuda {
namespace {

constexpr uint64_t kSeed = 20261129;

float FloatOf(uint32_t bits) { return std::bit_cast<float>(bits); }

// The bits of special floats and of random ones.
std::vector<uint32_t> Floats() {
  base::SeededRandom random(kSeed);
  std::vector<uint32_t> all = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00001,
                               0xffffffff, 0x7f7fffff, 0x7f7f7fff, 0x7f7f8000, 0xff7f8000,
                               0x00000001, 0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001};
  for (int i = 0; i < 100'000; ++i) all.push_back(static_cast<uint32_t>(random.Next()));
  // Of the sizes that f16 has, its denormals and what is just beyond it.
  for (int i = 0; i < 100'000; ++i) {
    all.push_back(std::bit_cast<uint32_t>(
        std::ldexp(Uniform(random, -1, 1), static_cast<int>(random.Below(45)) - 27)));
  }
  for (const float edge : {65504.0f, 65519.99f, 65520.0f, 65536.0f, -65520.0f}) {
    all.push_back(std::bit_cast<uint32_t>(edge));
  }
  return all;
}

TEST(KvNumbers, AreStoredAsF16LikeOnTheCpu) {
  SCOPED_TRACE(kSeed);
  int beyond = 0;
  for (const uint32_t bits : Floats()) {
    const float value = FloatOf(bits);
    uint16_t expected = 0;
    ScalarKernels().store_half(&value, 1, &expected);
    beyond += std::isfinite(value) && (expected & 0x7fff) == 0x7e00;
    const int ignored = std::isnan(value) ? 0x8000 : 0;  // the sign of a NaN
    ASSERT_EQ(HalfStored(value) | ignored, expected | ignored) << std::hex << bits;
  }
  EXPECT_GT(beyond, 1000);
}

TEST(KvNumbers, AreStoredAsBf16LikeOnTheCpu) {
  SCOPED_TRACE(kSeed);
  for (const uint32_t bits : Floats()) {
    const float value = FloatOf(bits);
    uint16_t expected = 0;
    ScalarKernels().store_bf16(&value, 1, &expected);
    ASSERT_EQ(Bf16Stored(bits), expected) << std::hex << bits;
  }
}

// One group through the functions that the kernel uses, in the CPU's form.
std::vector<uint8_t> StoredGroup(const std::vector<float>& x) {
  uint32_t largest = 0;
  for (const float value : x) {
    largest = std::max(largest, std::bit_cast<uint32_t>(value) & 0x7fffffffu);
  }
  const Q8Scale scale = Q8ScaleOf(largest, FloatOf(largest));
  std::vector<uint8_t> bytes = {static_cast<uint8_t>(scale.half & 0xff),
                                static_cast<uint8_t>(scale.half >> 8)};
  for (const float value : x) bytes.push_back(static_cast<uint8_t>(Q8Value(value, scale.inverse)));
  return bytes;
}

TEST(KvNumbers, AreStoredAsQ8LikeOnTheCpu) {
  SCOPED_TRACE(kSeed);
  base::SeededRandom random(kSeed);
  for (int i = 0; i < 20'000; ++i) {
    // Sizes from below the smallest scale to beyond the largest, and a few special values.
    const float size = std::ldexp(1.0f, static_cast<int>(random.Below(70)) - 40);
    std::vector<float> x = RandomFloats(random, kQ8Group, size);
    const uint64_t special = random.Below(20);
    float& victim = x[random.Below(x.size())];
    if (special == 0) victim = FloatOf(0x7fc00000);
    if (special == 1) victim = FloatOf(0xff800000);
    if (special == 2) victim = 127.0f * 65520.0f;
    if (special == 3) std::fill(x.begin(), x.end(), 0.0f);
    std::vector<uint8_t> expected(kQ8Group + 2);
    ScalarKernels().store_q8(x.data(), kQ8Group, expected.data());
    ASSERT_EQ(StoredGroup(x), expected) << "group " << i;
  }
}

TEST(KvNumbers, TurnsEveryInt8IntoBf16) {
  for (int low = -128; low < 128; ++low) {
    const auto pair = static_cast<uint32_t>(low & 0xff) | static_cast<uint32_t>(~low & 0xff) << 16;
    const uint32_t from = MinuendOfInts(pair);
    const uint32_t less = SubtrahendOfInts(pair);
    const auto value = [&](int shift) {
      return Bf16ToFloat(static_cast<uint16_t>(from >> shift)) -
             Bf16ToFloat(static_cast<uint16_t>(less >> shift));
    };
    EXPECT_EQ(value(0), static_cast<float>(low));
    EXPECT_EQ(value(16), static_cast<float>(static_cast<int8_t>(~low & 0xff)));
  }
}

TEST(KvLayout, GivesEveryNumberOfAQ8CacheBytesOfItsOwn) {
  for (const int head_dim : {64, 80, 128, 18, 256}) {
    for (const int block_tokens : {16, 32}) {
      constexpr int kBlocks = 3;
      const KvView cache = {.element = KvElement::kQ8_0,
                            .block_tokens = block_tokens,
                            .kv_heads = 2,
                            .head_dim = head_dim};
      const int groups = Q8Groups(head_dim);
      std::set<int64_t> taken;
      for (int block = 0; block < kBlocks; ++block) {
        for (int head = 0; head < cache.kv_heads; ++head) {
          for (int token = 0; token < block_tokens; ++token) {
            const int64_t values = Q8ValueOffset(cache, block, head, token);
            const int64_t scales = values + Q8ScaleDistance(cache, token);
            // Aligned for the loads that read them.
            EXPECT_EQ(values % 16, 0);
            EXPECT_TRUE(token % kQ8Run != 0 || scales % 16 == 0);
            for (int i = 0; i < groups * kQ8Group; ++i) taken.insert(values + i);
            for (int i = 0; i < groups * 2; ++i) taken.insert(scales + i);
          }
        }
      }
      const size_t half =
          KvCacheBytes({1, kBlocks, block_tokens, cache.kv_heads, head_dim, KvType::kQ8_0}) / 2;
      EXPECT_EQ(taken.size(), half);
      EXPECT_EQ(*taken.begin(), 0);
      EXPECT_EQ(*taken.rbegin(), static_cast<int64_t>(half) - 1);
    }
  }
}

}  // namespace
}  // namespace layercake::kernels::cuda
