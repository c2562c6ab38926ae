#include "model/tokenizer/normal_form.h"

#include <gtest/gtest.h>

#include <string>

#include "base/random.h"
#include "model/tokenizer/utf8.h"

namespace layercake::model {
namespace {

std::string Nfc(std::string_view text) {
  const absl::StatusOr<std::string> normal = NormalizeNfc(text);
  EXPECT_TRUE(normal.ok()) << normal.status();
  return normal.value_or("");
}

TEST(NormalForm, ComposesReordersAndKeepsWhatItMust) {
  const std::pair<std::u8string_view, std::u8string_view> kCases[] = {
      {u8"e\u0301", u8"\u00E9"},
      {u8"A\u030A \u212B", u8"\u00C5 \u00C5"},
      {u8"q\u0307\u0323", u8"q\u0323\u0307"},  // ordered by combining class
      {u8"o\u0302\u0323", u8"\u1ED9"},         // ordered, then composed twice
      {u8"\u1100\u1161\u11A8", u8"\uAC01"},    // Hangul
      {u8"\u0958", u8"\u0915\u093C"},          // excluded from composition
      {u8"\uFB01", u8"\uFB01"},                // compatibility forms stay
      {u8"a\u0300\u0300", u8"\u00E0\u0300"},
      {u8"plain", u8"plain"},
      {u8"", u8""},
  };
  for (const auto& [in, out] : kCases) {
    const std::string text(in.begin(), in.end());
    EXPECT_EQ(Nfc(text), std::string(out.begin(), out.end())) << text;
  }
}

TEST(NormalForm, IsStableUnderRepetition) {
  constexpr uint64_t kSeed = 7;
  base::SeededRandom random(kSeed);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 20; ++i) {
      const uint64_t block = random.Below(4);
      const uint64_t start[] = {0x41, 0x300, 0x1100, 0x900};
      AppendUtf8(static_cast<uint32_t>(start[block] + random.Below(0x70)), &text);
    }
    const std::string once = Nfc(text);
    EXPECT_EQ(Nfc(once), once) << "seed " << kSeed << " round " << round;
  }
}

TEST(NormalForm, TakesALongRunOfCombiningMarksInNearLinearTime) {
  // Alternating classes: an insertion sort would need some 10^11 exchanges and outlast the test's
  // time limit.
  std::string text = "a";
  std::string below, above;
  for (int i = 0; i < 250'000; ++i) {
    text += "\xCC\x81\xCC\xA3";  // U+0301 (class 230), U+0323 (class 220)
    if (i > 0) below += "\xCC\xA3";
    above += "\xCC\x81";
  }
  EXPECT_EQ(Nfc(text), "\xE1\xBA\xA1" + below + above);  // a with dot below, then the rest
}

TEST(NormalForm, RefusesInvalidUtf8) {
  EXPECT_EQ(NormalizeNfc("ab\xFF").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(NormalForm, KnowsTextThatCannotChange) {
  EXPECT_TRUE(IsTriviallyNfc("plain \xC3\xA9 \xCB\xBF"));
  EXPECT_FALSE(IsTriviallyNfc("e\xCC\x81"));
}

}  // namespace
}  // namespace layercake::model
