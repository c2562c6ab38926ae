#include "model/tokenizer/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_join.h"
#include "base/random.h"
#include "model/tokenizer/utf8.h"

namespace layercake::model {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr const char* kNames[] = {
    "codeshell",   "command-r", "dbrx",      "deepseek-coder", "deepseek-llm", "deepseek-r1-qwen",
    "deepseek-v3", "default",   "exaone",    "falcon3",        "gpt-2",        "llama-bpe",
    "llama-v3",    "llama3",    "pixtral",   "qwen2",          "refact",       "smaug-bpe",
    "smollm",      "stablelm2", "starcoder", "tekken"};

std::vector<std::string> Split(std::string_view name, std::string_view text) {
  const auto pre_tokenizer = PreTokenizer::Create(name);
  EXPECT_TRUE(pre_tokenizer.ok()) << pre_tokenizer.status();
  std::vector<std::string_view> pieces;
  const absl::Status status = (*pre_tokenizer)->Split(text, &pieces);
  EXPECT_TRUE(status.ok()) << status;
  return {pieces.begin(), pieces.end()};
}

TEST(PreTokenizer, CutsAsThePublishedExpressionsDo) {
  const struct {
    const char* name;
    const char* text;
    std::vector<std::string> pieces;
  } kCases[] = {
      {"qwen2", "12 I'M ok", {"1", "2", " I", "'M", " ok"}},
      {"qwen2", "(x):\ny", {"(x", "):\n", "y"}},
      {"qwen2", "a  b   ", {"a", " ", " b", "   "}},
      {"qwen2", "a\r\n\r\n b", {"a", "\r\n\r\n", " b"}},
      {"llama-bpe", "12345 x", {"123", "45", " x"}},
      {"gpt-2", "12345 I'M I'm", {"12345", " I", "'", "M", " I", "'m"}},
      {"gpt-2", "a\n\nb", {"a", "\n", "\n", "b"}},
      {"smollm", "v12 34", {"v", "1", "2", " ", "3", "4"}},
      {"default", "a==1234", {"a", "==", "123", "4"}},
      {"tekken",
       "camelCaseWord HTTPServer 12",
       {"camel", "Case", "Word", " HTTPServer", " ", "1", "2"}},
      {"tekken", "a//\n/b", {"a", "//\n/", "b"}},
      {"deepseek-llm",
       "ab 12\n\xE4\xB8\xAD!  ",
       {"ab", " ", "12", "\n", "\xE4\xB8\xAD", "!", "  "}},
      {"deepseek-v3", "ab1234 .x", {"ab", "123", "4", " .", "x"}},
      {"deepseek-coder", "a1 b!", {"a", "1", " b", "!"}},
      // U+180E has not been white space since Unicode 6.3.
      {"gpt-2",
       "a\xE1\xA0\x8E"
       "b",
       {"a", "\xE1\xA0\x8E", "b"}},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(Split(c.name, c.text), ElementsAreArray(c.pieces)) << c.name << ": " << c.text;
  }
}

TEST(PreTokenizer, LosesNothingForAnyName) {
  constexpr uint64_t kSeed = 11;
  base::SeededRandom random(kSeed);
  for (const char* name : kNames) {
    for (int round = 0; round < 60; ++round) {
      std::string text;
      for (int i = 0; i < 40; ++i) {
        const uint32_t starts[] = {0x20, 0x09, 0x30, 0x41, 0xC0, 0x300, 0x4E00, 0x1F600, 0x2000};
        AppendUtf8(static_cast<uint32_t>(starts[random.Below(9)] + random.Below(16)), &text);
      }
      EXPECT_EQ(absl::StrJoin(Split(name, text), ""), text)
          << name << " seed " << kSeed << " round " << round;
    }
  }
}

TEST(PreTokenizer, RefusesAnUnknownNameAndListsTheKnown) {
  const absl::Status status = PreTokenizer::Create("gpt-9").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"gpt-9\""));
  for (const char* name : kNames) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
}

TEST(PreTokenizer, SurvivesLongRunsForEveryName) {
  const std::string runs[] = {
      std::string(200'000, ' '),
      std::string(200'000, ' ') + "x",
      std::string(200'000, ' ') + "\xE4\xB8\xAD" + std::string(200'000, ' ') + "x",
      std::string(100'000, 'A'),
      std::string(100'000, 'A') + "b",
      std::string(100'000, '\n') + "x",
      std::string(100'000, '^'),
      std::string(100'000, '7'),
  };
  for (const char* name : kNames) {
    for (const std::string& run : runs) {
      size_t total = 0;
      for (const std::string& piece : Split(name, run)) total += piece.size();
      EXPECT_EQ(total, run.size()) << name;
    }
  }
}

}  // namespace
}  // namespace layercake::model
