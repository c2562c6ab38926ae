// Encodes arbitrary bytes and decodes arbitrary ids with small vocabularies of both models.
// Also run by tokenizer_test over a fixed sequence of inputs.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/detokenizer.h"
#include "model/tokenizer/normal_form.h"
#include "model/tokenizer/spm.h"
#include "model/tokenizer/testing/tiny_vocabulary.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/utf8.h"

namespace layercake::model {
namespace {

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

using Vocabularies = std::vector<std::unique_ptr<Tokenizer>>;

Vocabularies MakeVocabularies() {
  Vocabularies all;
  for (const char* pre : {"qwen2", "llama-bpe", "smollm", "gpt-2", "default", "tekken",
                          "deepseek-llm", "deepseek-v3", "deepseek-coder"}) {
    all.push_back(Tokenizer::Create(testing::TinyBpeSpec(pre)).value());
  }
  all.push_back(Tokenizer::Create(testing::TinySpmSpec()).value());
  return all;
}

// What a text becomes at most on its way to ids and back: NFC, or U+2581 read as a space.
std::string Canonical(const Tokenizer& tokenizer, std::string_view text) {
  if (tokenizer.add_space_prefix()) return SpmUnescape(text);
  return NormalizeNfc(text).value();
}

void CheckEncode(const Tokenizer& tokenizer, std::string_view text, size_t cut) {
  for (const bool parse_special : {false, true}) {
    const auto ids = tokenizer.Encode(text, {.parse_special = parse_special});
    Require(ids.ok() == IsValidUtf8(text), "Encode takes valid UTF-8 and nothing else");
    if (!ids.ok()) return;
    for (const TokenId id : *ids) {
      Require(tokenizer.IsValidId(id), "ids lie in the vocabulary");
      Require(parse_special || !tokenizer.IsControl(id), "text makes no control token");
    }
    const auto back = tokenizer.Decode(*ids, {.show_control = true});
    Require(back.ok(), "Decode takes what Encode gave");
    Require(Canonical(tokenizer, *back) == Canonical(tokenizer, text), "the text comes back");
  }
  cut = std::min(cut, text.size());
  const std::array<TextSpan, 2> spans = {TextSpan{text.substr(0, cut)}, {text.substr(cut)}};
  Require(tokenizer.EncodeSpans(spans, false).value() == tokenizer.Encode(text).value(),
          "a span border changes nothing");
}

void CheckDecode(const Tokenizer& tokenizer, std::string_view bytes) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    const int high = static_cast<int8_t>(bytes[i]) % 3;  // some outside the vocabulary
    ids.push_back(high * 256 + static_cast<uint8_t>(bytes[i + 1]));
  }
  const bool valid =
      std::all_of(ids.begin(), ids.end(), [&](TokenId id) { return tokenizer.IsValidId(id); });
  const auto text = tokenizer.Decode(ids);
  Require(text.ok() == valid, "Decode takes ids of the vocabulary and nothing else");
  if (!valid) return;
  Require(IsValidUtf8(*text), "decoded text is valid UTF-8");
  std::string joined;
  StreamingDetokenizer stream(tokenizer);
  for (const TokenId id : ids) {
    const std::string delta = stream.Feed(id).value();
    Require(IsValidUtf8(delta), "no delta cuts a character");
    joined += delta;
  }
  Require(joined + stream.Finish() == *text, "deltas joined are the decoded text");
}

}  // namespace
}  // namespace layercake::model

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  using namespace layercake::model;  // NOLINT: the entry point has a fixed place
  static const Vocabularies* const vocabularies = new Vocabularies(MakeVocabularies());
  if (size < 2) return 0;
  const Tokenizer& tokenizer = *(*vocabularies)[input[0] % vocabularies->size()];
  const std::string_view rest(reinterpret_cast<const char*>(input + 2), size - 2);
  CheckEncode(tokenizer, rest, input[1]);
  CheckDecode(tokenizer, rest);
  return 0;
}
