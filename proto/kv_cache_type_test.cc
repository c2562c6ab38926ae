#include "proto/kv_cache_type.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake {
namespace {

using ::testing::HasSubstr;

TEST(KvCacheType, EveryTypeOfTheProtocolHasANameThatLeadsBackToIt) {
  int named = 0;
  for (int number = v1::KvCacheType_MIN; number <= v1::KvCacheType_MAX; ++number) {
    const auto type = static_cast<v1::KvCacheType>(number);
    if (!v1::KvCacheType_IsValid(number) || type == v1::KV_CACHE_TYPE_UNSPECIFIED) continue;
    const auto parsed = ParseKvCacheType(KvCacheTypeName(type));
    ASSERT_TRUE(parsed.ok()) << v1::KvCacheType_Name(type);
    EXPECT_EQ(*parsed, type);
    EXPECT_GT(KvHeadBytes(type, 64), 0u);
    ++named;
  }
  EXPECT_EQ(static_cast<size_t>(named), KvCacheTypeNames().size());
}

TEST(KvCacheType, AWrongNameListsTheChoices) {
  const absl::Status status = ParseKvCacheType("q4_0").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("q4_0"));
  for (const std::string& name : KvCacheTypeNames()) {
    EXPECT_THAT(status.message(), HasSubstr(name));
  }
  EXPECT_FALSE(ParseKvCacheType("").ok());
}

TEST(KvCacheType, ANumberThatIsNoTypeHasNoNameAndNoBytes) {
  for (const int number : {0, -1, 99}) {
    EXPECT_EQ(KvCacheTypeName(static_cast<v1::KvCacheType>(number)), "");
    EXPECT_EQ(KvHeadBytes(static_cast<v1::KvCacheType>(number), 64), 0u);
  }
}

TEST(KvCacheType, BlocksOf32ValuesTake34Bytes) {
  EXPECT_EQ(KvHeadBytes(v1::KV_CACHE_TYPE_Q8_0, 128), 136u);
  EXPECT_EQ(KvHeadBytes(v1::KV_CACHE_TYPE_Q8_0, 80), 102u);
  EXPECT_EQ(KvHeadBytes(v1::KV_CACHE_TYPE_BF16, 80), 160u);
  EXPECT_EQ(KvHeadBytes(v1::KV_CACHE_TYPE_F32, 80), 320u);
}

}  // namespace
}  // namespace layercake
