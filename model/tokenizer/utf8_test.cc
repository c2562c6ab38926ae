#include "model/tokenizer/utf8.h"

#include <gtest/gtest.h>

namespace layercake::model {
namespace {

TEST(Utf8, RefusesOverlongFormsSurrogatesAndHighCodePoints) {
  const struct {
    std::string bytes;
    size_t invalid_at;
  } kCases[] = {
      {"", std::string::npos},
      {"plain", std::string::npos},
      {"\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80", std::string::npos},
      {"\xF4\x8F\xBF\xBF", std::string::npos},  // U+10FFFF
      {"\xED\x9F\xBF\xEE\x80\x80", std::string::npos},
      {"a\xC0\x80", 1},         // overlong NUL
      {"ab\xED\xA0\x80", 2},    // surrogate
      {"\xF4\x90\x80\x80", 0},  // above U+10FFFF
      {"abc\xFF", 3},
      {"\x80", 0},
      {"ok\xE4\xB8", 2},  // cut off
      {"\xE0\x80\x80", 0},
      {"\xF0\x80\x80\x80", 0},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(FirstInvalidUtf8(c.bytes), c.invalid_at) << ::testing::PrintToString(c.bytes);
  }
}

TEST(Utf8, CountsOnlyBytesThatMoreBytesCouldComplete) {
  const struct {
    std::string bytes;
    size_t tail;
  } kCases[] = {
      {"", 0},
      {"a", 0},
      {"\xC3", 1},
      {"a\xE4\xB8", 2},
      {"a\xF0\x9F\x98", 3},
      {"\xF0\x9F\x98\x80", 0},
      {"\x80\x80\x80", 0},  // continuation bytes of nothing
      {"\xC0", 0},          // can never become a character
      {"\xED\xA0", 0},      // would be a surrogate
      {"\xF4\x90", 0},
      {"\xFF", 0},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(IncompleteUtf8Tail(c.bytes), c.tail) << ::testing::PrintToString(c.bytes);
  }
}

TEST(Utf8, ReplacesEachLongestInvalidPrefixOnce) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(ReplaceInvalidUtf8("a\xF0\x9F\x98"), "a" + r);
  EXPECT_EQ(ReplaceInvalidUtf8("\xC0\x80"), r + r);
  EXPECT_EQ(ReplaceInvalidUtf8("\xE4\xB8x"), r + "x");
  EXPECT_EQ(ReplaceInvalidUtf8("\xED\xA0\x80"), r + r + r);
  EXPECT_EQ(ReplaceInvalidUtf8("\xC3\xA9"), "\xC3\xA9");
}

TEST(Utf8, AppendsWhatItReads) {
  for (uint32_t code_point = 0; code_point <= 0x10FFFF; ++code_point) {
    if (code_point >= 0xD800 && code_point <= 0xDFFF) continue;
    std::string bytes;
    AppendUtf8(code_point, &bytes);
    const Utf8Step step = NextUtf8(bytes);
    ASSERT_EQ(step.kind, Utf8Step::Kind::kCharacter) << code_point;
    ASSERT_EQ(step.code_point, code_point);
    ASSERT_EQ(step.length, bytes.size());
  }
}

}  // namespace
}  // namespace layercake::model
