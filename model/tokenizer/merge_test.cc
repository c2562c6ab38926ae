// Both merge loops against twins that rescan everything for the best pair after each merge.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/spm.h"
#include "model/tokenizer/testing/tiny_vocabulary.h"

namespace layercake::model {
namespace {

struct RandomMerges {
  std::vector<std::string> pieces;
  std::vector<std::string> merges;
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  std::map<std::string, TokenId> ids;
};

// Letters a to d and a few dozen random merges of what is there already.
RandomMerges MakeMerges(base::Random& random) {
  RandomMerges out;
  const auto add = [&out](const std::string& piece) {
    if (!out.ids.emplace(piece, static_cast<TokenId>(out.pieces.size())).second) return;
    out.pieces.push_back(piece);
  };
  for (const char* letter : {"a", "b", "c", "d"}) add(letter);
  for (int i = 0; i < 40; ++i) {
    const std::string left = out.pieces[random.Below(out.pieces.size())];
    const std::string right = out.pieces[random.Below(out.pieces.size())];
    if (left.size() + right.size() > 12) continue;
    if (!out.ranks.emplace(std::pair(left, right), out.merges.size()).second) continue;
    out.merges.push_back(left + " " + right);
    add(left + right);
  }
  return out;
}

std::string RandomLetters(base::Random& random, size_t length) {
  std::string text;
  for (size_t i = 0; i < length; ++i) text += static_cast<char>('a' + random.Below(4));
  return text;
}

std::vector<TokenId> TwinBpe(const RandomMerges& model, const std::string& text) {
  std::vector<std::string> symbols;
  for (const char c : text) symbols.emplace_back(1, c);
  while (true) {
    size_t best_rank = std::numeric_limits<size_t>::max();
    size_t at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = model.ranks.find({symbols[i], symbols[i + 1]});
      if (found != model.ranks.end() && found->second < best_rank) {
        best_rank = found->second;
        at = i;
      }
    }
    if (best_rank == std::numeric_limits<size_t>::max()) break;
    symbols[at] += symbols[at + 1];
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
  std::vector<TokenId> ids;
  for (const std::string& symbol : symbols) ids.push_back(model.ids.at(symbol));
  return ids;
}

TEST(Bpe, MergesInRankOrderWhateverTheLength) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    base::SeededRandom random(seed);
    const RandomMerges merges = MakeMerges(random);
    const auto model = BpeModel::Create(
        merges.pieces, std::vector<bool>(merges.pieces.size(), true), merges.merges, false);
    ASSERT_TRUE(model.ok()) << model.status();
    BpeModel::Scratch scratch;
    for (const size_t length : {0, 1, 2, 3, 7, 31, 32, 33, 64, 150}) {
      const std::string text = RandomLetters(random, length);
      std::vector<TokenId> ids;
      (*model)->EncodePiece(text, &scratch, &ids);
      EXPECT_EQ(ids, TwinBpe(merges, text)) << "seed " << seed << " text " << text;
    }
  }
}

TEST(Bpe, RefusesAMergeWithoutASpaceAndSkipsOneThatCannotApply) {
  const std::vector<std::string> pieces = {"a", "b", "ab"};
  const std::vector<bool> usable(3, true);
  const std::vector<std::string> bad = {"a b", "ab"};
  const absl::Status status = BpeModel::Create(pieces, usable, bad, false).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("merges[1]"), std::string::npos) << status;

  const std::vector<std::string> odd = {"a z", "b b", "\xE2\x96\x81 a", "a b", "a b"};
  const auto model = BpeModel::Create(pieces, usable, odd, false);
  ASSERT_TRUE(model.ok()) << model.status();
  BpeModel::Scratch scratch;
  std::vector<TokenId> ids;
  (*model)->EncodePiece("abb", &scratch, &ids);
  EXPECT_EQ(ids, (std::vector<TokenId>{2, 1}));
}

TEST(Bpe, KnowsTheByteAlphabet) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string bytes(1, static_cast<char>(byte));
    EXPECT_EQ(DecodeByteAlphabet(testing::ByteAlphabet(bytes)), bytes) << byte;
  }
  EXPECT_EQ(DecodeByteAlphabet("\xC4\xA0the"), " the");
  EXPECT_EQ(DecodeByteAlphabet("a b"), std::nullopt);
  EXPECT_EQ(DecodeByteAlphabet("\xE2\x96\x81"), std::nullopt);
  EXPECT_EQ(DecodeByteAlphabet("\xFF"), std::nullopt);
}

std::vector<TokenId> TwinSpm(const RandomMerges& model, const std::vector<float>& scores,
                             const std::string& text) {
  std::vector<std::string> symbols;
  for (const char c : text) symbols.emplace_back(1, c);
  while (true) {
    const float* best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = model.ids.find(symbols[i] + symbols[i + 1]);
      if (found == model.ids.end()) continue;
      const float& score = scores[static_cast<size_t>(found->second)];
      if (best == nullptr || score > *best) {
        best = &score;
        at = i;
      }
    }
    if (best == nullptr) break;
    symbols[at] += symbols[at + 1];
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
  std::vector<TokenId> ids;
  for (const std::string& symbol : symbols) ids.push_back(model.ids.at(symbol));
  return ids;
}

TEST(Spm, MergesByScoreAndLeftmostAmongEquals) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    base::SeededRandom random(seed);
    const RandomMerges merges = MakeMerges(random);
    std::vector<float> scores;
    for (size_t i = 0; i < merges.pieces.size(); ++i) {
      scores.push_back(-static_cast<float>(random.Below(12)));  // many equal scores
    }
    const std::vector<TokenType> types(merges.pieces.size(), TokenType::kNormal);
    const SpmModel model(merges.pieces, scores, std::vector<bool>(merges.pieces.size(), true),
                         types, std::nullopt);
    for (const size_t length : {0, 1, 2, 5, 33, 150}) {
      const std::string text = RandomLetters(random, length);
      std::vector<TokenId> ids;
      model.Encode(text, &ids);
      EXPECT_EQ(ids, TwinSpm(merges, scores, text)) << "seed " << seed << " text " << text;
    }
  }
}

TEST(Spm, ReadsByteTokens) {
  EXPECT_EQ(ParseByteToken("<0x0A>"), '\n');
  EXPECT_EQ(ParseByteToken("<0xfF>"), '\xFF');
  for (const char* text : {"", "<0x0A", "<0x0G>", "<0x0AA>", "<1x0A>", "0x0A"}) {
    EXPECT_EQ(ParseByteToken(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace layercake::model
