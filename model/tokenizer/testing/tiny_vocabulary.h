// Small vocabularies of both models, for tests and the fuzzer. Pure.
#pragma once

#include <string>
#include <string_view>

#include "model/tokenizer/tokenizer_spec.h"

namespace layercake::model::testing {

// A byte in GPT-2's printable alphabet, as the vocabulary file has it.
std::string ByteAlphabet(std::string_view bytes);

// "gpt2": the 256 bytes are ids 0 to 255; then the merges of a few words, spaces and digits; then
// <|bos|>, <|im_start|>, <|im_end|> (control) and <tool>, <tool_call> (user-defined).
// BOS is not added unless the pre-tokenizer's default says so; EOS is <|im_end|>.
TokenizerSpec TinyBpeSpec(std::string_view pre);

// "llama": <unk>, <s>, </s>, the 256 byte tokens <0x00> to <0xFF>, then letters, pairs and words
// with their scores, and <tool> (user-defined).
TokenizerSpec TinySpmSpec();

}  // namespace layercake::model::testing
