// A tokenizer whose vocabulary a test can read: whole words, and the bytes of two characters.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace layercake::coordinator {

// Ids in order: 0 "The", 1 " quick", 2 " brown", 3 " fox", 4 " own", 5 " cat", 6 "!", 7..10 the
// four bytes of U+1F600, 11..12 the two bytes of "é", 13 <|end|> (end of generation), 14 byte 0xFF.
inline std::unique_ptr<model::Tokenizer> MakeWordTokenizer() {
  model::TokenizerSpec spec;
  spec.model = "gpt2";
  spec.pre = "gpt-2";
  // Byte-level vocabularies write a space as U+0120 and each other byte as a printable character.
  spec.tokens = {"The", "Ġquick", "Ġbrown", "Ġfox", "Ġown", "Ġcat",    "!", "ð",
                 "Ł",   "ĺ",      "Ģ",      "Ã",    "©",    "<|end|>", "ÿ"};
  spec.token_types.assign(spec.tokens.size(), 1);
  spec.token_types[13] = 3;
  spec.eos_id = 13;
  spec.merges = {"T he"};
  auto tokenizer = model::Tokenizer::Create(std::move(spec));
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

}  // namespace layercake::coordinator
