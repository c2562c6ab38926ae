// Real vocabularies: llama.cpp's vectors, ids by Hugging Face's tokenizers, ids from bug reports,
// and the time that long texts take. The vocabulary-only files are not part of the repository; each
// test that lacks its file says so and is skipped.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "model/gguf/gguf_file.h"
#include "model/gguf/tokenizer_metadata.h"
#include "model/tokenizer/detokenizer.h"
#include "model/tokenizer/normal_form.h"
#include "model/tokenizer/tokenizer.h"

namespace layercake::model {
namespace {

namespace fs = std::filesystem;

fs::path VocabularyPath(const std::string& name) {
  return fs::path(LAYERCAKE_SOURCE_DIR) / ".." / "shared" / "data" / "vocab" /
         absl::StrCat("ggml-vocab-", name, ".gguf");
}

fs::path SmolLm2Path() {
  if (const char* path = std::getenv("LAYERCAKE_TEST_MODEL")) return path;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const fs::path base = cache != nullptr && *cache == '/'
                            ? fs::path(cache)
                            : fs::path(home != nullptr ? home : "/") / ".cache";
  return base / "layercake" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf";
}

fs::path PathOf(const std::string& name) {
  return name == "smollm2" ? SmolLm2Path() : VocabularyPath(name);
}

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const fs::path& path) {
  const absl::StatusOr<GgufFile> file = GgufFile::Open(path.string());
  if (!file.ok()) return file.status();
  absl::StatusOr<TokenizerSpec> spec = LoadTokenizerSpec(file->metadata());
  if (!spec.ok()) return spec.status();
  return Tokenizer::Create(*std::move(spec));
}

class VocabularyTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const fs::path path = PathOf(GetParam());
    if (!fs::exists(path)) GTEST_SKIP() << "no vocabulary at " << path;
    auto tokenizer = Load(path);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  std::vector<TokenId> Ids(std::string_view text, const EncodeOptions& options = {}) const {
    const auto ids = tokenizer_->Encode(text, options);
    EXPECT_TRUE(ids.ok()) << ids.status();
    return ids.value_or(std::vector<TokenId>{-1});
  }

  std::string Text(const std::vector<TokenId>& ids) const {
    return tokenizer_->Decode(ids).value_or("?");
  }

  bool IsQwen() const { return std::string_view(GetParam()) == "qwen2"; }
  bool IsSmolLm2() const { return std::string_view(GetParam()) == "smollm2"; }

  std::unique_ptr<Tokenizer> tokenizer_;
};

std::string ParameterName(const ::testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// --- llama.cpp's vectors ---

using Vectors = VocabularyTest;

TEST_P(Vectors, EqualEveryLine) {
  const std::string base = PathOf(GetParam()).string();
  const std::vector<std::string> texts =
      absl::StrSplit(ReadFile(base + ".inp"), "\n__ggml_vocab_test__\n");
  const std::vector<std::string> lines = absl::StrSplit(ReadFile(base + ".out"), '\n');
  ASSERT_GE(texts.size(), 40u);
  ASSERT_GE(lines.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    std::vector<TokenId> wanted;
    for (const std::string& word :
         std::vector<std::string>(absl::StrSplit(lines[i], ' ', absl::SkipEmpty()))) {
      TokenId id = -1;
      ASSERT_TRUE(absl::SimpleAtoi(word, &id)) << lines[i];
      wanted.push_back(id);
    }
    EXPECT_EQ(Ids(texts[i]), wanted) << "line " << i << ": " << texts[i];
    EXPECT_EQ(Text(wanted), texts[i]) << "line " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(LlamaCpp, Vectors,
                         ::testing::Values("gpt-2", "llama-bpe", "llama-spm", "qwen2"),
                         ParameterName);

// --- Hugging Face's tokenizers ---

using Goldens = VocabularyTest;

TEST_P(Goldens, EqualEveryTextAndComeBack) {
  const nlohmann::json golden = nlohmann::json::parse(
      ReadFile(fs::path(LAYERCAKE_SOURCE_DIR) / "tests/reference/goldens/tokenizer.json"),
      /*cb=*/nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(golden.is_object());
  const auto texts = golden["texts"].get<std::vector<std::string>>();
  const auto wanted = golden["ids"][GetParam()].get<std::vector<std::vector<TokenId>>>();
  ASSERT_GE(texts.size(), 300u);
  ASSERT_EQ(wanted.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const nlohmann::json shown = texts[i];
    const std::vector<TokenId> ids = Ids(texts[i]);
    EXPECT_EQ(ids, wanted[i]) << "text " << i << ": " << shown;
    // SmolLM2's vocabulary has no token for some control characters; both leave them out.
    const bool lossy =
        IsSmolLm2() && texts[i].find_first_of("\x04\x06\x13\x14\x16\x1d") != std::string::npos;
    if (lossy) continue;
    EXPECT_EQ(Text(ids), IsQwen() ? NormalizeNfc(texts[i]).value_or("?") : texts[i]) << shown;
    std::string joined;
    StreamingDetokenizer stream(*tokenizer_);
    for (const TokenId id : ids) joined += stream.Feed(id).value_or("?");
    EXPECT_EQ(joined + stream.Finish(), Text(ids)) << shown;
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Goldens,
                         ::testing::Values("smollm2", "qwen2", "llama-bpe", "gpt-2"),
                         ParameterName);

// --- Ids that other engines got wrong ---

class Qwen2 : public VocabularyTest {};
TEST_P(Qwen2, CutsDigitsSymbolsAndFractionsAsTrained) {
  using V = std::vector<TokenId>;
  EXPECT_EQ(Ids("333333333"), V(9, 18));
  EXPECT_EQ(Ids("->"), V({405}));
  EXPECT_EQ(Ids("(x):\n"), V({2075, 982}));
  EXPECT_EQ(Ids("ied 4 \xC2\xBD months"), V({1122, 220, 19, 220, 26062, 3951}));
  EXPECT_EQ(Ids("e\xCC\x81"), Ids("\xC3\xA9"));
}
TEST_P(Qwen2, HasNoBosAndEndsAtBothItsEndTokens) {
  const TokenId bos = *tokenizer_->bos_id();
  for (const char* text : {"Hello", "", "<|endoftext|>Hello"}) {
    const auto ids = Ids(text, {.add_special = true});
    EXPECT_EQ(std::count(ids.begin(), ids.end(), bos), 0) << text;
  }
  EXPECT_TRUE(tokenizer_->IsEndOfGeneration(151643));
  EXPECT_TRUE(tokenizer_->IsEndOfGeneration(151645));
  EXPECT_FALSE(tokenizer_->IsEndOfGeneration(151644));
}
INSTANTIATE_TEST_SUITE_P(Real, Qwen2, ::testing::Values("qwen2"), ParameterName);

class Llama3 : public VocabularyTest {};
TEST_P(Llama3, CutsDigitsByThreeAndLooksWholeWordsUp) {
  using V = std::vector<TokenId>;
  EXPECT_EQ(Ids("333333333"), V({8765, 8765, 8765}));
  EXPECT_EQ(Ids(" Vi\xE1\xBB\x87t"), V({101798}));
}
TEST_P(Llama3, HasExactlyOneBosInAllCases) {
  constexpr TokenId kBos = 128000;
  const std::string bos_text = "<|begin_of_text|>";
  const std::string header = bos_text + "<|start_header_id|>";
  const std::vector<std::vector<TextSpan>> kPrompts = {
      {{header, true}, {"Hello", false}, {"<|eot_id|>", true}},
      {{"Hello", false}},
      {{bos_text, true}, {"Hello", false}},
      {{"", false}},
      {},
  };
  for (const auto& prompt : kPrompts) {
    const auto ids = tokenizer_->EncodeSpans(prompt, /*add_special=*/true);
    ASSERT_TRUE(ids.ok()) << ids.status();
    ASSERT_FALSE(ids->empty());
    EXPECT_EQ(ids->front(), kBos);
    EXPECT_EQ(std::count(ids->begin(), ids->end(), kBos), 1);
  }
  // In a user's text the same characters are text: one BOS in front, none inside.
  const auto raw = Ids(bos_text + "Hello", {.add_special = true});
  EXPECT_EQ(raw.front(), kBos);
  EXPECT_EQ(std::count(raw.begin(), raw.end(), kBos), 1);
}
INSTANTIATE_TEST_SUITE_P(Real, Llama3, ::testing::Values("llama-bpe"), ParameterName);

// --- Time, of this process on the CPU, so that a busy machine changes nothing ---

using LongTexts = VocabularyTest;

TEST_P(LongTexts, TakeAboutASecondAMegabyte) {
  std::string cjk;
  for (int i = 0; i < 26'000; ++i) cjk += "\xE4\xB8\xAD";
  std::string prose;
  for (int i = 0; prose.size() < 1'000'000; ++i) {
    absl::StrAppend(&prose, "It was chapter ", i, ", and the \xC3\xA9lan of run-on sentences",
                    i % 7 == 0 ? "...\r\n\r\n" : ", they'd say, ", "grew by ", i * 37, "%. ");
  }
  const std::pair<const char*, std::string> kTexts[] = {
      {"43,000 A", std::string(43'000, 'A')},
      {"131,072 Z", std::string(131'072, 'Z')},
      {"50,000 _", std::string(50'000, '_')},
      {"200,000 spaces", std::string(200'000, ' ')},
      {"1,000,000 ^", std::string(1'000'000, '^')},
      {"26,000 CJK letters", cjk},
      {"1 MB of prose", prose},
  };
  for (const auto& [name, text] : kTexts) {
    const std::clock_t begin = std::clock();
    const auto ids = Ids(text);
    const double cpu_s = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    EXPECT_LT(cpu_s, 5.0) << name;
    RecordProperty(name, absl::StrCat(cpu_s, " s"));
    EXPECT_EQ(Text(ids), text) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Real, LongTexts,
                         ::testing::Values("smollm2", "qwen2", "llama-bpe", "gpt-2", "llama-spm"),
                         ParameterName);

}  // namespace
}  // namespace layercake::model
