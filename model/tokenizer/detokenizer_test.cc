#include "model/tokenizer/detokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/random.h"
#include "model/tokenizer/testing/tiny_vocabulary.h"
#include "model/tokenizer/utf8.h"

namespace layercake::model {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

std::unique_ptr<Tokenizer> Make(TokenizerSpec spec) {
  auto tokenizer = Tokenizer::Create(std::move(spec));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// In TinyBpeSpec the ids 0 to 255 are the bytes.
std::vector<TokenId> Bytes(std::string_view bytes) {
  std::vector<TokenId> ids;
  for (const char byte : bytes) ids.push_back(static_cast<uint8_t>(byte));
  return ids;
}

std::vector<std::string> Deltas(const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                                const DecodeOptions& options = {}) {
  StreamingDetokenizer stream(tokenizer, options);
  std::vector<std::string> deltas;
  for (const TokenId id : ids) {
    const auto delta = stream.Feed(id);
    EXPECT_TRUE(delta.ok()) << delta.status();
    deltas.push_back(delta.value_or(""));
  }
  deltas.push_back(stream.Finish());
  return deltas;
}

TEST(StreamingDetokenizer, HoldsACharacterUntilItIsWhole) {
  const auto tokenizer = Make(testing::TinyBpeSpec("qwen2"));
  EXPECT_EQ(Deltas(*tokenizer, Bytes("a\xF0\x9F\x98\x80z")),
            (std::vector<std::string>{"a", "", "", "", "\xF0\x9F\x98\x80", "z", ""}));
}

TEST(StreamingDetokenizer, EndsAnUnfinishedCharacterWithOneReplacement) {
  const auto tokenizer = Make(testing::TinyBpeSpec("qwen2"));
  EXPECT_EQ(Deltas(*tokenizer, Bytes("ok\xF0\x9F\x98")),
            (std::vector<std::string>{"o", "k", "", "", "", kReplacement}));
  EXPECT_EQ(Deltas(*tokenizer, {}), std::vector<std::string>{""});
}

TEST(StreamingDetokenizer, ReplacesBytesThatCanBeNoCharacterAtOnce) {
  const auto tokenizer = Make(testing::TinyBpeSpec("qwen2"));
  const std::string r = kReplacement;
  EXPECT_EQ(Deltas(*tokenizer, Bytes("\xC0\x80")), (std::vector<std::string>{r, r, ""}));
  EXPECT_EQ(Deltas(*tokenizer, Bytes("\xED\xA0\x80x")),
            (std::vector<std::string>{"", r + r, r, "x", ""}));
  EXPECT_EQ(Deltas(*tokenizer, Bytes("\xFF")), (std::vector<std::string>{r, ""}));
  EXPECT_EQ(Deltas(*tokenizer, Bytes("\xE4\xB8z")),
            (std::vector<std::string>{"", "", r + "z", ""}));
}

TEST(StreamingDetokenizer, PrintsControlTokensOnlyWhenAsked) {
  const auto tokenizer = Make(testing::TinyBpeSpec("qwen2"));
  const auto ids = tokenizer->Encode("he<|im_end|>", {.parse_special = true});
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(Deltas(*tokenizer, *ids), (std::vector<std::string>{"he", "", ""}));
  EXPECT_EQ(Deltas(*tokenizer, *ids, {.show_control = true}),
            (std::vector<std::string>{"he", "<|im_end|>", ""}));
}

TEST(StreamingDetokenizer, DropsTheSpaceThatSpmPutInFront) {
  const auto tokenizer = Make(testing::TinySpmSpec());
  const auto ids = tokenizer->Encode("hello world", {.add_special = true});
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(Deltas(*tokenizer, *ids), (std::vector<std::string>{"", "hello", " world", ""}));
  const std::vector<TokenId> answer(ids->begin() + 1, ids->end());
  EXPECT_EQ(Deltas(*tokenizer, answer, {.at_start = false}),
            (std::vector<std::string>{" hello", " world", ""}));
}

TEST(StreamingDetokenizer, RefusesAnIdOutsideTheVocabularyAndGoesOn) {
  const auto tokenizer = Make(testing::TinyBpeSpec("qwen2"));
  StreamingDetokenizer stream(*tokenizer);
  EXPECT_EQ(stream.Feed(0xC3).value_or("?"), "");
  EXPECT_TRUE(stream.holds_text());
  for (const TokenId id : {-1, static_cast<TokenId>(tokenizer->vocab_size())}) {
    EXPECT_EQ(stream.Feed(id).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(tokenizer->Decode({id}).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(stream.Feed(0xA9).value_or("?"), "\xC3\xA9");
}

TEST(StreamingDetokenizer, JoinedDeltasEqualDecodeForAnyIds) {
  constexpr uint64_t kSeed = 5;
  base::SeededRandom random(kSeed);
  for (const TokenizerSpec& spec : {testing::TinyBpeSpec("smollm"), testing::TinySpmSpec()}) {
    const auto tokenizer = Make(spec);
    for (int round = 0; round < 500; ++round) {
      std::vector<TokenId> ids;
      std::string raw;
      for (uint64_t i = random.Below(30); i > 0; --i) {
        ids.push_back(static_cast<TokenId>(random.Below(tokenizer->vocab_size())));
        raw += tokenizer->TokenToPiece(ids.back()).value_or("?");
      }
      for (const bool at_start : {true, false}) {
        std::string joined;
        for (const std::string& delta : Deltas(*tokenizer, ids, {.at_start = at_start})) {
          EXPECT_TRUE(IsValidUtf8(delta)) << "seed " << kSeed << " round " << round;
          joined += delta;
        }
        EXPECT_EQ(joined, tokenizer->Decode(ids, {.at_start = at_start}).value_or("?"))
            << "seed " << kSeed << " round " << round;
        if (spec.model == "gpt2") {
          EXPECT_EQ(joined, ReplaceInvalidUtf8(raw)) << "seed " << kSeed << " round " << round;
        }
      }
    }
  }
}

}  // namespace
}  // namespace layercake::model
