#include "coordinator/output_stream.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "coordinator/testing/word_tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Shown {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<std::string> deltas;
  std::string matched;
};

class OutputStreamTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(tokenizer_, nullptr); }

  static void Append(const std::optional<v1::Delta>& delta, Shown& shown) {
    if (!delta) return;
    shown.text += delta->text();
    shown.deltas.push_back(delta->text());
    shown.ids.insert(shown.ids.end(), delta->token_ids().begin(), delta->token_ids().end());
  }

  Shown Run(const std::vector<int32_t>& tokens, std::vector<std::string> stops) {
    OutputStream stream(*tokenizer_, std::move(stops), 0);
    Shown shown;
    for (const int32_t token : tokens) {
      const auto update = stream.Add(token, std::nullopt);
      EXPECT_TRUE(update.ok()) << update.status();
      Append(update->delta, shown);
      if (!update->matched_stop.empty()) {
        shown.matched = update->matched_stop;
        return shown;
      }
    }
    Append(stream.Finish(), shown);
    return shown;
  }

  std::unique_ptr<model::Tokenizer> tokenizer_ = MakeWordTokenizer();
};

// CASES D1.
TEST_F(OutputStreamTest, EndsExactlyBeforeTheEarliestStop) {
  const std::vector<int32_t> fox = {0, 1, 2, 3};  // "The quick brown fox"
  EXPECT_EQ(Run(fox, {"own fox"}).text, "The quick br");
  EXPECT_EQ(Run(fox, {"own fox"}).matched, "own fox");
  EXPECT_EQ(Run(fox, {"fox", "brown fox"}).text, "The quick ");
  EXPECT_EQ(Run(fox, {"fox", "brown fox"}).matched, "brown fox");
  EXPECT_EQ(Run(fox, {"The"}).text, "");
  EXPECT_THAT(Run(fox, {"The"}).ids, IsEmpty());
}

TEST_F(OutputStreamTest, GivesEverythingWhenTheStopNeverCompletes) {
  const Shown shown = Run({0, 1, 2, 3}, {"own cat"});
  EXPECT_EQ(shown.text, "The quick brown fox");
  EXPECT_THAT(shown.ids, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(shown.matched, IsEmpty());
  EXPECT_EQ(Run({0, 1, 2}, {"own cat"}).text, "The quick brown") << "held text is not lost";
}

TEST_F(OutputStreamTest, DelaysOnlyWhatCanStillBecomeAStop) {
  EXPECT_THAT(Run({0, 1, 2, 3}, {"own cat"}).deltas, ElementsAre("The", " quick", " brown fox"));
  EXPECT_THAT(Run({0, 1, 2, 3}, {"zebra"}).deltas, ElementsAre("The", " quick", " brown", " fox"));
}

TEST_F(OutputStreamTest, KeepsIdsWithTheTextThatTheyMade) {
  const Shown shown = Run({0, 1, 2, 3}, {"own fox"});
  EXPECT_THAT(shown.ids, ElementsAre(0, 1, 2)) << "' brown' is cut, ' fox' not shown at all";
}

TEST_F(OutputStreamTest, NeverCutsACharacterAndFindsAStopThatEndsInOne) {
  const Shown shown = Run({0, 7, 8, 9, 10, 6}, {});
  EXPECT_THAT(shown.deltas, ElementsAre("The", "\xF0\x9F\x98\x80", "!"));
  EXPECT_THAT(shown.ids, ElementsAre(0, 7, 8, 9, 10, 6));
  EXPECT_EQ(Run({0, 7, 8, 9, 10, 6}, {"\xF0\x9F\x98\x80"}).text, "The");
}

TEST_F(OutputStreamTest, TurnsAnUnfinishedCharacterIntoOneReplacement) {
  EXPECT_EQ(Run({0, 7, 8}, {}).text, "The\xEF\xBF\xBD");
  EXPECT_EQ(Run({14, 0}, {}).text, "\xEF\xBF\xBDThe");
}

// Whatever the cuts into tokens and deltas: the text is that of a search over the whole.
TEST_F(OutputStreamTest, EqualsASearchOverTheWholeText) {
  const std::vector<std::string> words = {"The", " quick", " brown", " fox", " own", " cat", "!"};
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    base::SeededRandom random(seed);
    std::vector<int32_t> tokens;
    std::string whole;
    for (uint64_t i = 0, n = 1 + random.Below(12); i < n; ++i) {
      tokens.push_back(static_cast<int32_t>(random.Below(words.size())));
      whole += words[static_cast<size_t>(tokens.back())];
    }
    std::vector<std::string> stops;
    for (uint64_t i = 0, n = random.Below(4); i < n; ++i) {
      const size_t begin = random.Below(whole.size());
      std::string stop = whole.substr(begin, 1 + random.Below(9));
      if (random.Below(2) == 0) stop += "!";
      stops.push_back(std::move(stop));
    }
    // The stream sees tokens one by one, so a match that completes first wins; the reference is the
    // earliest begin among those complete at the first token boundary where there is any.
    std::string expected = whole;
    std::string prefix;
    for (const int32_t token : tokens) {
      prefix += words[static_cast<size_t>(token)];
      size_t best = std::string::npos;
      for (const std::string& stop : stops) best = std::min(best, prefix.find(stop));
      if (best != std::string::npos) {
        expected = prefix.substr(0, best);
        break;
      }
    }
    EXPECT_EQ(Run(tokens, stops).text, expected) << "seed " << seed << " text " << whole;
  }
}

TEST_F(OutputStreamTest, RefusesATokenOutsideTheVocabulary) {
  OutputStream stream(*tokenizer_, {}, 0);
  EXPECT_FALSE(stream.Add(99, std::nullopt).ok());
}

}  // namespace
}  // namespace layercake::coordinator
