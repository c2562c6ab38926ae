// What the types of the KV cache keep of a value, and that both tables keep the same bits of it.
#include "kernels/cpu/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/ops_test_support.h"

namespace layercake::kernels {
namespace {

constexpr uint64_t kSeed = 20261129;
constexpr KvType kAllKvTypes[] = {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kQ8_0};
constexpr int kHeadDims[] = {2, 18, 32, 64, 80, 90, 128, 256};

// Values of all sizes, and one in 16 that asks for care: zeros, denormals, ties, the edges of f16
// and bf16, infinities, NaN.
std::vector<float> OddFloats(base::Random& random, int count) {
  const float odd[] = {0.0f,
                       -0.0f,
                       1e-41f,
                       6e-8f,
                       65519.0f,
                       65520.0f,
                       -1e6f,
                       9e6f,
                       3.3895e38f,
                       3.3962e38f,
                       std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN(),
                       std::bit_cast<float>(0x3F808000u),
                       std::bit_cast<float>(0x3F818000u)};
  const float magnitude = std::pow(10.0f, Uniform(random, -12, 6));
  std::vector<float> x = RandomFloats(random, count, magnitude);
  const bool care = random.Below(2) == 0;
  for (float& value : x) {
    if (care && random.Below(16) == 0) value = odd[random.Below(std::size(odd))];
  }
  return x;
}

TEST(KvTypes, KeepTheSameBitsOnEveryTable) {
  if (Avx2Kernels() == nullptr) GTEST_SKIP() << "this CPU has no AVX2";
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  base::SeededRandom random(kSeed);
  for (const KvType type : {KvType::kF16, KvType::kBF16, KvType::kQ8_0}) {
    for (int run = 0; run < 4000; ++run) {
      const int head_dim = kHeadDims[random.Below(std::size(kHeadDims))];
      SCOPED_TRACE(absl::StrCat(KvTypeName(type), " head_dim ", head_dim, " run ", run));
      const int positions = 1 + static_cast<int>(random.Below(3));
      std::vector<uint8_t> rows;
      for (int t = 0; t < positions; ++t) {
        const std::vector<float> x = OddFloats(random, head_dim);
        const std::vector<uint8_t> bytes = StoredHead(ScalarKernels(), type, x);
        ASSERT_EQ(bytes, StoredHead(*Avx2Kernels(), type, x));
        rows.insert(rows.end(), bytes.begin(), bytes.end());
      }
      const std::vector<float> one = LoadedHeads(ScalarKernels(), type, rows, positions, head_dim);
      const std::vector<float> other = LoadedHeads(*Avx2Kernels(), type, rows, positions, head_dim);
      ASSERT_EQ(std::memcmp(one.data(), other.data(), one.size() * sizeof(float)), 0);
    }
  }
}

class KvTypesOfTable : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "avx2" && Avx2Kernels() == nullptr) GTEST_SKIP() << "this CPU has no AVX2";
  }
  const CpuKernels& kernels() const {
    return GetParam() == "avx2" ? *Avx2Kernels() : ScalarKernels();
  }
};
INSTANTIATE_TEST_SUITE_P(Tables, KvTypesOfTable, testing::Values("scalar", "avx2"),
                         [](const auto& instance) { return instance.param; });

// bf16: half a unit of 8 bits of mantissa. q8_0: half a step of the block, and what the scale lost
// in f16 (2^-11 of the value, more where it is denormal).
TEST_P(KvTypesOfTable, KeepValuesWithinTheirStep) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  base::SeededRandom random(kSeed);
  for (const int head_dim : kHeadDims) {
    for (const float magnitude : {1e-3f, 0.5f, 30.0f, 4e4f}) {
      SCOPED_TRACE(absl::StrCat("head_dim ", head_dim, " magnitude ", magnitude));
      const std::vector<float> x = RandomFloats(random, head_dim, magnitude);
      const std::vector<float> bf16 = ThereAndBack(kernels(), KvType::kBF16, x);
      const std::vector<float> q8 = ThereAndBack(kernels(), KvType::kQ8_0, x);
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_NEAR(bf16[i], x[i], std::abs(x[i]) * 0x1p-8);
        float largest = 0;
        for (size_t j = i / 32 * 32; j < std::min(x.size(), i / 32 * 32 + 32); ++j) {
          largest = std::max(largest, std::abs(x[j]));
        }
        const double scale_loss = std::abs(x[i]) * 0x1p-11 + 127 * 0x1p-25;
        EXPECT_NEAR(q8[i], x[i], largest / 127 * 0.501 + scale_loss) << i;
      }
      for (size_t i = x.size(); i < bf16.size(); ++i) {
        EXPECT_EQ(bf16[i], 0);
        EXPECT_EQ(q8[i], 0);
      }
    }
  }
}

// A block that is what the format can hold comes back to the bit.
TEST_P(KvTypesOfTable, LayOutQ8AsTheWeightType) {
  base::SeededRandom random(kSeed);
  std::vector<uint8_t> bytes(2 * kQ8BlockBytes);
  for (const size_t block : {size_t{0}, kQ8BlockBytes}) {
    const uint16_t scale = FloatToHalf(block == 0 ? 0.25f : 0.03125f);
    std::memcpy(bytes.data() + block, &scale, sizeof scale);
    for (size_t i = 0; i < 32; ++i) {
      bytes[block + 2 + i] = static_cast<uint8_t>(static_cast<int>(random.Below(255)) - 127);
    }
    bytes[block + 2] = 127;
  }
  std::vector<float> x = Poisoned(64);
  DequantizeRow(WeightType::kQ8_0, bytes.data(), 64, x.data());
  EXPECT_EQ(LoadedHeads(kernels(), KvType::kQ8_0, bytes, 1, 64), x);
  EXPECT_EQ(StoredHead(kernels(), KvType::kQ8_0, x), bytes);
}

TEST_P(KvTypesOfTable, ShowWhatTheyCannotHoldAsNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto check = [&](KvType type, float bad, size_t from, size_t end) {
    SCOPED_TRACE(absl::StrCat(KvTypeName(type), " ", bad));
    std::vector<float> x(80, 1.0f);
    x[70] = bad;
    const std::vector<float> y = ThereAndBack(kernels(), type, x);
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(std::isnan(y[i]), i >= from && i < end) << i;
    }
  };
  for (const float bad : {nan, infinity, -infinity}) {
    check(KvType::kF16, bad, 70, 71);
    check(KvType::kBF16, bad, 70, 71);
    check(KvType::kQ8_0, bad, 64, 80);  // the block is lost
  }
  check(KvType::kBF16, 3.3962e38f, 70, 71);  // would round to infinity
  check(KvType::kQ8_0, 9e6f, 64, 80);        // its scale would
  check(KvType::kBF16, 3.38e38f, 0, 0);
  check(KvType::kQ8_0, 8e6f, 0, 0);
}

TEST_P(KvTypesOfTable, MakeNothingOfBlocksThatAreAlmostNothing) {
  for (const float tiny : {0.0f, 1e-41f, 1e-38f, 3e-6f}) {
    const std::vector<float> x(32, tiny);
    EXPECT_EQ(ThereAndBack(kernels(), KvType::kQ8_0, x), std::vector<float>(32, 0.0f)) << tiny;
  }
}

TEST(KvTypes, CountTheBytesOfACache) {
  const auto bytes = [](KvType type, int head_dim) {
    return KvCacheBytes({30, 10, 16, 3, head_dim, type});
  };
  const size_t rows = 30 * 10 * 16 * 3 * 2;
  EXPECT_EQ(bytes(KvType::kBF16, 64), rows * 128);
  EXPECT_EQ(bytes(KvType::kQ8_0, 64), rows * 68);
  EXPECT_EQ(bytes(KvType::kQ8_0, 80), rows * 102);  // a padded third block
  EXPECT_EQ(KvCacheBytes({30, 10, 16, 3, -1, KvType::kQ8_0}), std::numeric_limits<size_t>::max());
}

TEST(KvTypes, GiveEveryHeadBytesOfItsOwn) {
  for (const KvType type : kAllKvTypes) {
    const KvCacheSpec spec{2, 3, 4, 2, 80, type};
    const auto cache = CpuKvCache::Create(spec);
    ASSERT_TRUE(cache.ok()) << cache.status();
    std::vector<std::byte*> heads;
    for (int layer = 0; layer < spec.layers; ++layer) {
      for (const bool keys : {true, false}) {
        for (int block = 0; block < spec.blocks; ++block) {
          for (int head = 0; head < spec.kv_heads; ++head) {
            for (int token = 0; token < spec.block_tokens; ++token) {
              heads.push_back(keys ? (*cache)->Keys(layer, block, head, token)
                                   : (*cache)->Values(layer, block, head, token));
            }
          }
        }
      }
    }
    const auto step = static_cast<ptrdiff_t>(KvHeadBytes(type, 80));
    for (size_t i = 1; i < heads.size(); ++i) ASSERT_EQ(heads[i] - heads[i - 1], step);
    EXPECT_EQ(heads.size() * static_cast<size_t>(step), KvCacheBytes(spec));
  }
}

// Every byte of the cache, block by block.
std::vector<std::vector<std::byte>> BytesOfBlocks(const CpuKvCache& cache) {
  const KvCacheSpec& spec = cache.spec();
  const size_t head_bytes = KvHeadBytes(spec.type, spec.head_dim);
  std::vector<std::vector<std::byte>> blocks(static_cast<size_t>(spec.blocks));
  for (int block = 0; block < spec.blocks; ++block) {
    for (int layer = 0; layer < spec.layers; ++layer) {
      for (int head = 0; head < spec.kv_heads; ++head) {
        for (int token = 0; token < spec.block_tokens; ++token) {
          for (const std::byte* from :
               {cache.Keys(layer, block, head, token), cache.Values(layer, block, head, token)}) {
            std::vector<std::byte>& bytes = blocks[static_cast<size_t>(block)];
            bytes.insert(bytes.end(), from, from + head_bytes);
          }
        }
      }
    }
  }
  return blocks;
}

void FillAtRandom(base::Random& random, const CpuKvCache& cache) {
  const size_t bytes = KvCacheBytes(cache.spec());
  std::byte* const begin = cache.Keys(0, 0, 0, 0);
  for (size_t i = 0; i < bytes; ++i) begin[i] = static_cast<std::byte>(random.Below(256));
}

// Random saves and restores against a table of what each block and each host block must hold.
TEST(SavedBlocks, ComeBackToTheBitAndTouchNothingElse) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  base::SeededRandom random(kSeed);
  for (const KvType type : kAllKvTypes) {
    SCOPED_TRACE(KvTypeName(type));
    const auto cache = CpuKvCache::Create({2, 5, 4, 2, 80, type, /*host_blocks=*/3});
    ASSERT_TRUE(cache.ok()) << cache.status();
    FillAtRandom(random, **cache);
    std::vector<std::vector<std::byte>> blocks = BytesOfBlocks(**cache);
    std::vector<std::vector<std::byte>> saved(3);
    for (int i = 0; i < 40; ++i) {
      const auto block = static_cast<size_t>(random.Below(5));
      const auto host_block = static_cast<size_t>(random.Below(3));
      if (random.Below(2) == 0) {
        ASSERT_TRUE(
            (*cache)->SaveBlock(static_cast<int>(block), static_cast<int>(host_block)).ok());
        saved[host_block] = blocks[block];
      } else if (!saved[host_block].empty()) {
        ASSERT_TRUE(
            (*cache)->RestoreBlock(static_cast<int>(host_block), static_cast<int>(block)).ok());
        blocks[block] = saved[host_block];
      }
      ASSERT_EQ(BytesOfBlocks(**cache), blocks) << "after copy " << i;
    }
  }
}

TEST(SavedBlocks, TakeTheBytesOfTheirTypeAndAreRefusedWhereTheHostHasTooFew) {
  const KvCacheSpec spec{2, 5, 4, 2, 80, KvType::kQ8_0, /*host_blocks=*/3};
  EXPECT_EQ(HostKvBytes(spec), KvCacheBytes(spec) / 5 * 3);
  KvCacheSpec huge = spec;
  huge.host_blocks = 1 << 28;
  huge.block_tokens = 4096;
  const absl::Status status = CpuKvCache::Create(huge).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("--kv-host-memory"));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(absl::StrCat(HostKvBytes(huge))));
}

}  // namespace
}  // namespace layercake::kernels
