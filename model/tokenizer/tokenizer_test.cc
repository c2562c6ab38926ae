#include "model/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "model/tokenizer/testing/tiny_vocabulary.h"

namespace layercake::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Tokenizer> Make(TokenizerSpec spec) {
  auto tokenizer = Tokenizer::Create(std::move(spec));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::vector<TokenId> Ids(const absl::StatusOr<std::vector<TokenId>>& ids) {
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.value_or(std::vector<TokenId>{-1});
}

TokenId IdOf(const TokenizerSpec& spec, std::string_view token) {
  for (size_t i = 0; i < spec.tokens.size(); ++i) {
    if (spec.tokens[i] == token) return static_cast<TokenId>(i);
  }
  ADD_FAILURE() << "no token " << token;
  return -1;
}

// --- What Create refuses ---

struct BadSpec {
  const char* what;
  std::function<void(TokenizerSpec*)> spoil;
  absl::StatusCode code;
  std::vector<const char*> message;
};

void ExpectRefused(const TokenizerSpec& good, const std::vector<BadSpec>& cases) {
  for (const BadSpec& c : cases) {
    TokenizerSpec spec = good;
    c.spoil(&spec);
    const absl::Status status = Tokenizer::Create(spec).status();
    EXPECT_EQ(status.code(), c.code) << c.what << ": " << status;
    for (const char* part : c.message) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part)) << c.what;
    }
  }
}

TEST(Tokenizer, RefusesASpecThatContradictsItself) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  ExpectRefused(testing::TinyBpeSpec("qwen2"),
                {{"eos as u32 minus one",
                  [](TokenizerSpec* s) { s->eos_id = 4294967295; },
                  kInvalid,
                  {"tokenizer.ggml.eos_token_id", "4294967295"}},
                 {"negative id",
                  [](TokenizerSpec* s) { s->padding_id = -1; },
                  kInvalid,
                  {"tokenizer.ggml.padding_token_id", "-1"}},
                 {"first id past the end",
                  [](TokenizerSpec* s) { s->fim_sep_id = static_cast<int64_t>(s->tokens.size()); },
                  kInvalid,
                  {"tokenizer.ggml.fim_sep_token_id"}},
                 {"no tokens",
                  [](TokenizerSpec* s) { s->tokens.clear(); },
                  kInvalid,
                  {"tokenizer.ggml.tokens"}},
                 {"types short",
                  [](TokenizerSpec* s) { s->token_types.pop_back(); },
                  kInvalid,
                  {"tokenizer.ggml.token_type"}},
                 {"scores short",
                  [](TokenizerSpec* s) { s->scores.push_back(1); },
                  kInvalid,
                  {"tokenizer.ggml.scores has 1"}},
                 {"no merges",
                  [](TokenizerSpec* s) { s->merges.clear(); },
                  kInvalid,
                  {"tokenizer.ggml.merges"}},
                 {"odd merge",
                  [](TokenizerSpec* s) { s->merges[3] = "hello"; },
                  kInvalid,
                  {"tokenizer.ggml.merges[3]", "hello"}},
                 {"BOS wanted but unknown",
                  [](TokenizerSpec* s) {
                    s->bos_id.reset();
                    s->add_bos = true;
                  },
                  kInvalid,
                  {"tokenizer.ggml.bos_token_id"}},
                 {"EOS wanted but unknown",
                  [](TokenizerSpec* s) {
                    s->eos_id.reset();
                    s->add_eos = true;
                  },
                  kInvalid,
                  {"tokenizer.ggml.eos_token_id"}},
                 {"endless special token",
                  [](TokenizerSpec* s) { s->tokens.back() = std::string(1000, 'x'); },
                  kInvalid,
                  {"1000 bytes"}},
                 {"unknown model",
                  [](TokenizerSpec* s) { s->model = "bert"; },
                  kUnimplemented,
                  {"tokenizer.ggml.model", "\"bert\""}},
                 {"unknown pre",
                  [](TokenizerSpec* s) { s->pre = "gpt-9"; },
                  kUnimplemented,
                  {"tokenizer.ggml.pre", "\"gpt-9\""}},
                 {"missing pre",
                  [](TokenizerSpec* s) { s->pre.reset(); },
                  kUnimplemented,
                  {"tokenizer.ggml.pre is missing"}}});
  ExpectRefused(testing::TinySpmSpec(), {{"no scores",
                                          [](TokenizerSpec* s) { s->scores.clear(); },
                                          kInvalid,
                                          {"tokenizer.ggml.scores has 0"}},
                                         {"score not a number",
                                          [](TokenizerSpec* s) { s->scores[7] = std::nanf(""); },
                                          kInvalid,
                                          {"tokenizer.ggml.scores[7]"}}});
}

TEST(Tokenizer, ToleratesDuplicateTokens) {
  for (TokenizerSpec spec : {testing::TinyBpeSpec("qwen2"), testing::TinySpmSpec()}) {
    const size_t size = spec.tokens.size();
    const bool spm = spec.model == "llama";
    for (size_t i = 0; i < size; ++i) {
      spec.tokens.push_back(spec.tokens[i]);
      spec.token_types.push_back(spec.token_types[i]);
      if (spm) spec.scores.push_back(spec.scores[i]);
    }
    const auto tokenizer = Make(spec);
    const auto ids = Ids(tokenizer->Encode("hello world<tool>"));
    for (const TokenId id : ids) EXPECT_LT(static_cast<size_t>(id), size);
    EXPECT_EQ(tokenizer->Decode(ids).value_or("?"), "hello world<tool>");
  }
}

// --- Encoding ---

TEST(Tokenizer, MergesWordsAndFallsBackToBytes) {
  const TokenizerSpec spec = testing::TinyBpeSpec("qwen2");
  const auto tokenizer = Make(spec);
  EXPECT_THAT(Ids(tokenizer->Encode("hello world")),
              ElementsAre(IdOf(spec, "hello"), IdOf(spec, testing::ByteAlphabet(" world"))));
  EXPECT_THAT(Ids(tokenizer->Encode("\xE4\xB8\xAD")), ElementsAre(0xE4, 0xB8, 0xAD));
  EXPECT_THAT(Ids(tokenizer->Encode("->")), ElementsAre(IdOf(spec, "->")));
  EXPECT_THAT(Ids(tokenizer->Encode("333")), ElementsAre('3', '3', '3'));
  EXPECT_THAT(Ids(tokenizer->Encode("")), ElementsAre());
  // Only the pre-tokenizers of Llama 3's kind look a whole word up before merging.
  const std::string whole = testing::ByteAlphabet(" whole");
  EXPECT_EQ(Ids(tokenizer->Encode(" whole")).size(), 5u);
  EXPECT_THAT(Ids(Make(testing::TinyBpeSpec("llama-bpe"))->Encode(" whole")),
              ElementsAre(IdOf(spec, whole)));
  EXPECT_THAT(Ids(Make(testing::TinyBpeSpec("llama-bpe"))->Encode("333")),
              ElementsAre(IdOf(spec, "333")));
}

TEST(Tokenizer, LeavesOutAByteThatTheVocabularyLacks) {
  TokenizerSpec spec = testing::TinyBpeSpec("smollm");
  spec.tokens[0x04] = "unused";
  const auto tokenizer = Make(spec);
  EXPECT_EQ(tokenizer->Decode(Ids(tokenizer->Encode("a\x04 b"))).value_or("?"), "a b");
}

TEST(Tokenizer, NormalizesForQwenOnly) {
  const std::string composed = "\xC3\xA9", decomposed = "e\xCC\x81";
  const auto qwen = Make(testing::TinyBpeSpec("qwen2"));
  EXPECT_EQ(Ids(qwen->Encode(decomposed)), Ids(qwen->Encode(composed)));
  EXPECT_EQ(qwen->Decode(Ids(qwen->Encode(decomposed))).value_or("?"), composed);
  const auto llama = Make(testing::TinyBpeSpec("llama-bpe"));
  EXPECT_EQ(llama->Decode(Ids(llama->Encode(decomposed))).value_or("?"), decomposed);
}

TEST(Tokenizer, RefusesInvalidUtf8WithItsOffset) {
  for (const TokenizerSpec& spec : {testing::TinyBpeSpec("qwen2"), testing::TinySpmSpec()}) {
    const auto tokenizer = Make(spec);
    for (const char* text : {"abc\xFF", "abc\xED\xA0\x80", "abc\xC0\x80", "abc\xF0\x9F\x98"}) {
      const absl::Status status = tokenizer->Encode(text).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr("byte 3"));
    }
    EXPECT_TRUE(tokenizer->Encode("abc").ok());
  }
}

TEST(Tokenizer, SpmPutsASpaceInFrontAndUsesByteTokens) {
  TokenizerSpec spec = testing::TinySpmSpec();
  const auto tokenizer = Make(spec);
  const std::string space = "\xE2\x96\x81";
  EXPECT_THAT(Ids(tokenizer->Encode("hello world")),
              ElementsAre(IdOf(spec, space + "hello"), IdOf(spec, space + "world")));
  EXPECT_THAT(Ids(tokenizer->Encode("\n")), ElementsAre(IdOf(spec, space), IdOf(spec, "<0x0A>")));
  EXPECT_THAT(Ids(tokenizer->Encode("")), ElementsAre());
  // After a special token too; Decode takes both away again.
  const auto ids = Ids(tokenizer->Encode("hello<tool>hello"));
  EXPECT_THAT(ids, ElementsAre(IdOf(spec, space + "hello"), IdOf(spec, "<tool>"),
                               IdOf(spec, space + "hello")));
  EXPECT_EQ(tokenizer->Decode(ids).value_or("?"), "hello<tool>hello");
  spec.add_space_prefix = false;
  EXPECT_EQ(Make(spec)->Decode(Ids(Make(spec)->Encode(" hello"))).value_or("?"), " hello");
}

// --- Special tokens ---

TEST(Tokenizer, NeverMakesAControlTokenOfPlainText) {
  for (TokenizerSpec spec : {testing::TinyBpeSpec("llama-bpe"), testing::TinySpmSpec()}) {
    const bool spm = spec.model == "llama";
    // A control token that a whole-word lookup or a merge would find, and an end token that the
    // file calls user-defined.
    const auto add = [&](const char* text, TokenType type) {
      spec.tokens.push_back(text);
      spec.token_types.push_back(static_cast<int32_t>(type));
      if (spm) spec.scores.push_back(100);
    };
    add("hehe", TokenType::kControl);
    add("<|eot_id|>", TokenType::kUserDefined);
    const auto tokenizer = Make(spec);
    const std::string text = "hehe<s></s><unk><|im_end|><|bos|><|eot_id|><0x0A>";
    const auto ids = Ids(tokenizer->Encode(text));
    for (const TokenId id : ids) EXPECT_FALSE(tokenizer->IsControl(id)) << id;
    EXPECT_EQ(tokenizer->Decode(ids).value_or("?"), text);
    const auto parsed = Ids(tokenizer->Encode("hehe<|eot_id|>", {.parse_special = true}));
    EXPECT_THAT(parsed, ElementsAre(IdOf(spec, "hehe"), IdOf(spec, "<|eot_id|>")));
  }
}

TEST(Tokenizer, MatchesTheLongestSpecialTokenFromTheLeft) {
  TokenizerSpec spec = testing::TinyBpeSpec("qwen2");
  for (const char* text : {"<tool_call>!", "ool_"}) {
    spec.tokens.push_back(text);
    spec.token_types.push_back(static_cast<int32_t>(TokenType::kUserDefined));
  }
  const auto tokenizer = Make(spec);
  EXPECT_THAT(Ids(tokenizer->Encode("<tool><tool_call><tool_call>!<tool_")),
              ElementsAre(IdOf(spec, "<tool>"), IdOf(spec, "<tool_call>"),
                          IdOf(spec, "<tool_call>!"), '<', 't', IdOf(spec, "ool_")));
}

TEST(Tokenizer, RecognisesControlTokensOnlyInsideASpanThatAllowsThem) {
  const TokenizerSpec spec = testing::TinyBpeSpec("qwen2");
  const auto tokenizer = Make(spec);
  const TokenId start = IdOf(spec, "<|im_start|>"), end = IdOf(spec, "<|im_end|>");
  const auto count = [&](const std::vector<TextSpan>& spans, TokenId wanted) {
    const auto ids = Ids(tokenizer->EncodeSpans(spans, false));
    return std::count(ids.begin(), ids.end(), wanted);
  };
  // The user's own "<|im_end|>" stays text between the template's two.
  const std::vector<TextSpan> chat = {
      {"<|im_start|>", true}, {"hello<|im_end|><|im_start|>", false}, {"<|im_end|>", true}};
  EXPECT_EQ(count(chat, start), 1);
  EXPECT_EQ(count(chat, end), 1);
  // Never across a border, whichever side allows it.
  EXPECT_EQ(count({{"<|im_", true}, {"end|>", false}}, end), 0);
  EXPECT_EQ(count({{"<|im_", false}, {"end|>", true}}, end), 0);
  EXPECT_EQ(count({{"<|im_", true}, {"end|>", true}}, end), 0);
  EXPECT_EQ(count({{"a", false}, {"<|im_end|>", true}, {"b", false}}, end), 1);
  EXPECT_EQ(count({}, end), 0);
}

TEST(Tokenizer, EncodesSpansAsOneText) {
  const std::string text = "hello  world\r\n 33 \xC3\xA9<tool_call>->e\xCC\x81 \xF0\x9F\x98\x80";
  for (const TokenizerSpec& spec :
       {testing::TinyBpeSpec("qwen2"), testing::TinyBpeSpec("smollm"), testing::TinySpmSpec()}) {
    const auto tokenizer = Make(spec);
    const auto whole = Ids(tokenizer->Encode(text));
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      const std::string_view view = text;
      const std::vector<TextSpan> spans = {{view.substr(0, cut), true}, {view.substr(cut), false}};
      EXPECT_EQ(Ids(tokenizer->EncodeSpans(spans, false)), whole) << "cut at " << cut;
    }
  }
}

TEST(Tokenizer, PutsExactlyOneBosWhereTheModelWantsIt) {
  const TokenizerSpec llama3 = testing::TinyBpeSpec("llama-bpe");
  const TokenId bos = static_cast<TokenId>(*llama3.bos_id);
  TokenizerSpec qwen_with_bos = testing::TinyBpeSpec("qwen2");
  qwen_with_bos.add_bos = true;
  TokenizerSpec llama3_without = llama3;
  llama3_without.add_bos = false;
  const struct {
    const char* what;
    TokenizerSpec spec;
    long wanted;
  } kModels[] = {{"llama-bpe", llama3, 1},
                 {"tekken", testing::TinyBpeSpec("tekken"), 1},
                 {"qwen2", testing::TinyBpeSpec("qwen2"), 0},
                 {"smollm", testing::TinyBpeSpec("smollm"), 0},
                 {"qwen2 with add_bos", qwen_with_bos, 1},
                 {"llama-bpe without add_bos", llama3_without, 0}};
  for (const auto& model : kModels) {
    const auto tokenizer = Make(model.spec);
    EXPECT_EQ(tokenizer->add_bos(), model.wanted == 1) << model.what;
    const auto count = [&](const absl::StatusOr<std::vector<TokenId>>& encoded) {
      const auto ids = Ids(encoded);
      if (model.wanted == 1) {
        EXPECT_EQ(ids.at(0), bos) << model.what;
      }
      return std::count(ids.begin(), ids.end(), bos);
    };
    const EncodeOptions raw = {.add_special = true};
    EXPECT_EQ(count(tokenizer->Encode("hello", raw)), model.wanted) << model.what;
    EXPECT_EQ(count(tokenizer->Encode("", raw)), model.wanted) << model.what;
    EXPECT_EQ(count(tokenizer->Encode("<|bos|>hello", raw)), model.wanted) << model.what;
    // A chat template that writes the BOS itself.
    const std::vector<TextSpan> chat = {{"<|bos|><|im_start|>", true}, {"hello", false}};
    EXPECT_EQ(count(tokenizer->EncodeSpans(chat, true)), 1) << model.what;
    EXPECT_EQ(count(tokenizer->Encode("<|bos|>", {.add_special = true, .parse_special = true})), 1)
        << model.what;
  }
}

TEST(Tokenizer, PutsEosBehindOnlyWhenToldAndOnce) {
  TokenizerSpec spec = testing::TinySpmSpec();
  spec.add_eos = true;
  const auto tokenizer = Make(spec);
  const TokenId eos = *tokenizer->eos_id();
  for (const char* text : {"hello", "hello</s>", ""}) {
    const auto ids = Ids(tokenizer->Encode(text, {.add_special = true, .parse_special = true}));
    EXPECT_EQ(std::count(ids.begin(), ids.end(), eos), 1) << text;
    EXPECT_EQ(ids.back(), eos);
  }
  EXPECT_EQ(Ids(Make(testing::TinySpmSpec())->Encode("hello", {.add_special = true})).back(),
            IdOf(spec, "\xE2\x96\x81hello"));
}

TEST(Tokenizer, KnowsEveryTokenThatEndsAGeneration) {
  TokenizerSpec spec = testing::TinyBpeSpec("llama-bpe");
  std::set<TokenId> wanted = {static_cast<TokenId>(*spec.eos_id)};
  const auto add = [&](const char* text) {
    spec.tokens.push_back(text);
    spec.token_types.push_back(static_cast<int32_t>(TokenType::kControl));
    const TokenId id = static_cast<TokenId>(spec.tokens.size()) - 1;
    return id;
  };
  for (const char* text : {"<|eot_id|>", "<|endoftext|>", "</s>", "<end_of_turn>"}) {
    wanted.insert(add(text));
  }
  spec.eot_id = add("<odd end of turn>");
  spec.eom_id = add("<odd end of message>");
  spec.fim_pad_id = add("<odd pad>");
  for (const auto& id : {spec.eot_id, spec.eom_id, spec.fim_pad_id}) {
    wanted.insert(static_cast<TokenId>(*id));
  }
  add("<just control>");
  const auto tokenizer = Make(spec);
  for (TokenId id = -1; id <= static_cast<TokenId>(spec.tokens.size()); ++id) {
    EXPECT_EQ(tokenizer->IsEndOfGeneration(id), wanted.contains(id)) << id;
  }
  EXPECT_EQ(tokenizer->end_of_generation_ids().size(), wanted.size());
}

// --- The digest ---

TEST(Tokenizer, DigestChangesWithEveryField) {
  const TokenizerSpec good = testing::TinySpmSpec();
  const std::function<void(TokenizerSpec*)> kChanges[] = {
      [](TokenizerSpec*) {},
      [](TokenizerSpec* s) { s->pre = "default"; },
      [](TokenizerSpec* s) { s->tokens[275] = "other"; },
      [](TokenizerSpec* s) { s->tokens[270].swap(s->tokens[271]); },
      [](TokenizerSpec* s) { s->token_types[275] = 5; },
      [](TokenizerSpec* s) { s->scores[275] = 0.5f; },
      [](TokenizerSpec* s) { s->merges = {"a b"}; },
      [](TokenizerSpec* s) {
        s->merges = {"a", "b"};
      },
      [](TokenizerSpec* s) { s->bos_id = 2; },
      [](TokenizerSpec* s) { s->eos_id = 1; },
      [](TokenizerSpec* s) { s->eot_id = 1; },
      [](TokenizerSpec* s) { s->eom_id = 1; },
      [](TokenizerSpec* s) { s->padding_id = 1; },
      [](TokenizerSpec* s) { s->add_bos = true; },
      [](TokenizerSpec* s) { s->add_eos = false; },
      [](TokenizerSpec* s) { s->add_space_prefix = true; },
  };
  std::set<std::string> digests;
  for (const auto& change : kChanges) {
    TokenizerSpec spec = good;
    change(&spec);
    const std::string digest = Make(spec)->sha256();
    EXPECT_EQ(digest.size(), 64u);
    digests.insert(digest);
    EXPECT_EQ(Make(spec)->sha256(), digest);
  }
  EXPECT_EQ(digests.size(), std::size(kChanges));
}

// --- Long runs: CPU time that grows with the square of the text would be minutes ---

TEST(Tokenizer, TakesLongRunsInNearLinearTime) {
  std::string cjk, prose, marks = "e";
  for (int i = 0; i < 26'000; ++i) cjk += "\xE4\xB8\xAD";
  while (prose.size() < 1'000'000) prose += "The hello world, 333 times -> it's said:\n  again. ";
  for (int i = 0; i < 250'000; ++i) marks += "\xCC\x81\xCC\xA3";
  const std::pair<const char*, std::string> kTexts[] = {
      {"43,000 A", std::string(43'000, 'A')},
      {"131,072 Z", std::string(131'072, 'Z')},
      {"50,000 _", std::string(50'000, '_')},
      {"200,000 spaces", std::string(200'000, ' ')},
      {"200,000 spaces and a letter", std::string(200'000, ' ') + "x"},
      {"1,000,000 ^", std::string(1'000'000, '^')},
      {"300,000 A", std::string(300'000, 'A')},
      {"300,000 line ends", std::string(300'000, '\n')},
      {"300,000 <", std::string(300'000, '<')},
      {"26,000 CJK letters", cjk},
      {"500,000 combining marks", marks},
      {"1 MB of prose", prose},
  };
  for (const TokenizerSpec& spec :
       {testing::TinyBpeSpec("qwen2"), testing::TinyBpeSpec("llama-bpe"),
        testing::TinyBpeSpec("smollm"), testing::TinyBpeSpec("deepseek-llm"),
        testing::TinySpmSpec()}) {
    const auto tokenizer = Make(spec);
    for (const auto& [name, text] : kTexts) {
      const std::clock_t begin = std::clock();
      const auto ids = Ids(tokenizer->Encode(text));
      const double cpu_s = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
      EXPECT_LT(cpu_s, 5.0) << name << " with " << spec.pre.value_or(spec.model);
      if (spec.pre != "qwen2") {
        EXPECT_EQ(tokenizer->Decode(ids).value_or("?"), text) << name;
      }
    }
  }
}

}  // namespace
}  // namespace layercake::model
