#include "model/tokenizer/testing/tiny_vocabulary.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "model/tokenizer/spm.h"
#include "model/tokenizer/utf8.h"

namespace layercake::model::testing {
namespace {

void AddToken(TokenizerSpec* spec, std::string text, TokenType type, float score = 0) {
  spec->tokens.push_back(std::move(text));
  spec->token_types.push_back(static_cast<int32_t>(type));
  if (spec->model == "llama") spec->scores.push_back(score);
}

int64_t LastId(const TokenizerSpec& spec) { return static_cast<int64_t>(spec.tokens.size()) - 1; }

}  // namespace

std::string ByteAlphabet(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const uint32_t byte = static_cast<uint8_t>(c);
    uint32_t moved = 0x100;
    for (uint32_t b = 0; b < byte; ++b) {
      if (b < 33 || (b > 126 && b < 161) || b == 173) ++moved;
    }
    const bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    AppendUtf8(itself ? byte : moved, &out);
  }
  return out;
}

TokenizerSpec TinyBpeSpec(std::string_view pre) {
  TokenizerSpec spec;
  spec.model = "gpt2";
  spec.pre = std::string(pre);
  for (int byte = 0; byte < 256; ++byte) {
    AddToken(&spec, ByteAlphabet(std::string(1, static_cast<char>(byte))), TokenType::kNormal);
  }
  constexpr std::pair<const char*, const char*> kMerges[] = {
      {"h", "e"},   {"l", "l"},   {"he", "ll"},   {"hell", "o"},   {" ", "w"},
      {"o", "r"},   {" w", "or"}, {" wor", "ld"}, {"l", "d"},      {" ", " "},
      {"  ", "  "}, {"A", "A"},   {"AA", "AA"},   {"3", "3"},      {"33", "3"},
      {"\n", "\n"}, {"-", ">"},   {"_", "_"},     {"\xC3", "\xA9"}};
  for (const auto& [left, right] : kMerges) {
    spec.merges.push_back(ByteAlphabet(left) + " " + ByteAlphabet(right));
    AddToken(&spec, ByteAlphabet(std::string(left) + right), TokenType::kNormal);
  }
  // Reachable by whole-word lookup only: no merge leads to it.
  AddToken(&spec, ByteAlphabet(" whole"), TokenType::kNormal);
  AddToken(&spec, "<|bos|>", TokenType::kControl);
  spec.bos_id = LastId(spec);
  AddToken(&spec, "<|im_start|>", TokenType::kControl);
  AddToken(&spec, "<|im_end|>", TokenType::kControl);
  spec.eos_id = LastId(spec);
  AddToken(&spec, "<tool>", TokenType::kUserDefined);
  AddToken(&spec, "<tool_call>", TokenType::kUserDefined);
  return spec;
}

TokenizerSpec TinySpmSpec() {
  TokenizerSpec spec;
  spec.model = "llama";
  AddToken(&spec, "<unk>", TokenType::kUnknown);
  spec.unknown_id = LastId(spec);
  AddToken(&spec, "<s>", TokenType::kControl);
  spec.bos_id = LastId(spec);
  AddToken(&spec, "</s>", TokenType::kControl);
  spec.eos_id = LastId(spec);
  for (int byte = 0; byte < 256; ++byte) {
    std::array<char, 8> name;
    std::snprintf(name.data(), name.size(), "<0x%02X>", byte);
    AddToken(&spec, name.data(), TokenType::kByte);
  }
  const std::string space(kSpmSpace);
  const std::pair<std::string, float> kPieces[] = {{space + "he", -1},
                                                   {"he", -2},
                                                   {"ll", -3},
                                                   {space + "hell", -4},
                                                   {space + "hello", -5},
                                                   {space + "w", -6},
                                                   {"or", -7},
                                                   {space + "wor", -8},
                                                   {"ld", -9},
                                                   {space + "world", -10},
                                                   {space + space, -11},
                                                   {space + space + space + space, -12},
                                                   {"AA", -13},
                                                   {"AAAA", -14},
                                                   {space, -20},
                                                   {"h", -21},
                                                   {"e", -22},
                                                   {"l", -23},
                                                   {"o", -24},
                                                   {"w", -25},
                                                   {"r", -26},
                                                   {"d", -27},
                                                   {"A", -28},
                                                   {"\xC3\xA9", -29}};
  for (const auto& [text, score] : kPieces) AddToken(&spec, text, TokenType::kNormal, score);
  AddToken(&spec, "<tool>", TokenType::kUserDefined);
  return spec;
}

}  // namespace layercake::model::testing
