#include "model/jinja/value.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "model/jinja/unicode.h"

namespace layercake::model::jinja {
namespace {

TEST(FloatText, PrintsTheShortestDigitsAsPythonDoes) {
  const std::pair<double, const char*> cases[] = {
      {0.0, "0.0"},
      {-0.0, "-0.0"},
      {1.0, "1.0"},
      {0.1, "0.1"},
      {1e15, "1000000000000000.0"},
      {1e16, "1e+16"},
      {1.5e300, "1.5e+300"},
      {0.0001, "0.0001"},
      {0.00001, "1e-05"},
      {123.456, "123.456"},
      {-2.5e-7, "-2.5e-07"},
      {INFINITY, "inf"},
      {-INFINITY, "-inf"},
      {NAN, "nan"},
  };
  for (const auto& [value, text] : cases) EXPECT_EQ(FloatText(value), text);
}

TEST(IntText, PrintsAll128Bits) {
  EXPECT_EQ(IntText(0), "0");
  EXPECT_EQ(IntText(static_cast<Int>(UINT64_MAX)), "18446744073709551615");
  EXPECT_EQ(IntText(-static_cast<Int>(UINT64_MAX)), "-18446744073709551615");
  const Int lowest = static_cast<Int>(static_cast<unsigned __int128>(1) << 127);
  EXPECT_EQ(IntText(lowest), "-170141183460469231731687303715884105728");
}

TEST(EncodeKey, GivesEqualKeysOneText) {
  EXPECT_EQ(*EncodeKey(Value::Integer(1)), *EncodeKey(Value::Float(1.0)));
  EXPECT_EQ(*EncodeKey(Value::Integer(1)), *EncodeKey(Value::Bool(true)));
  EXPECT_NE(*EncodeKey(Value::Integer(1)), *EncodeKey(Value::String(MarkedString("1", true))));
  Budget budget(100, 100);
  Arena arena(budget);
  EXPECT_FALSE(EncodeKey(arena.NewSequence({})).ok());
}

TEST(Dict, FindsEveryKeyWhateverItsSize) {
  for (const size_t size : {0U, 1U, 8U, 9U, 100U}) {
    Dict dict;
    for (size_t i = 0; i < size; ++i) {
      const std::string key = EncodeStringKey(std::to_string(i));
      dict.Set(key, Value::None(), Value::Integer(0));
      dict.Set(key, Value::None(), Value::Integer(static_cast<Int>(i)));
    }
    ASSERT_EQ(dict.entries.size(), size);
    for (size_t i = 0; i < size; ++i) {
      const Value* found = dict.Find(EncodeStringKey(std::to_string(i)));
      ASSERT_NE(found, nullptr) << i << " of " << size;
      EXPECT_TRUE(found->integer() == static_cast<Int>(i));
    }
    EXPECT_EQ(dict.Find(EncodeStringKey("x")), nullptr);
  }
}

TEST(Unicode, StartBeforeFindsTheCodePointThatDecodeAtFinds) {
  const unsigned seed = 20251129;
  std::mt19937 random(seed);
  const std::string pieces[] = {"a",    "\xC3\xA9", "\xE4\xBD\xA0", "\xF0\x9F\x98\x80",
                                "\x80", "\xC3",     "\xF0\x9F",     "\xFF",
                                "\n"};
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 8; ++i) text += pieces[random() % std::size(pieces)];
    // Walking forwards and backwards meets the same borders.
    std::vector<size_t> forward;
    for (size_t at = 0; at < text.size(); at += DecodeAt(text, at).size) forward.push_back(at);
    std::vector<size_t> backward;
    for (size_t at = text.size(); at > 0;)
      backward.insert(backward.begin(), at = StartBefore(text, at));
    EXPECT_EQ(forward, backward) << "seed " << seed << ", round " << round;
  }
}

TEST(MarkedString, KeepsTheOriginOfEveryByte) {
  const unsigned seed = 7;
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    MarkedString text;
    std::vector<bool> origins;
    for (int i = 0; i < 20; ++i) {
      const bool trusted = random() % 2 == 0;
      const std::string piece(random() % 3, 'x');
      text.Append(piece, trusted);
      origins.insert(origins.end(), piece.size(), trusted);
    }
    const size_t begin = random() % (text.size() + 1);
    const size_t end = begin + random() % (text.size() - begin + 1);
    const MarkedString slice = text.Slice(begin, end);
    ASSERT_EQ(slice.size(), end - begin);
    for (size_t i = begin; i < end; ++i) {
      EXPECT_EQ(slice.TrustedAt(i - begin), origins[i]) << "seed " << seed << ", round " << round;
    }
    for (size_t i = 1; i < slice.runs().size(); ++i) {
      EXPECT_NE(slice.runs()[i].trusted, slice.runs()[i - 1].trusted);
    }
  }
}

}  // namespace
}  // namespace layercake::model::jinja
