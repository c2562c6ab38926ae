// Tokenizer and chat template as a GGUF file states them. Works on vocabulary-only files. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/gguf/metadata.h"
#include "model/tokenizer/tokenizer_spec.h"

namespace layercake::model {

// Copies the vocabulary out of the file. NotFound when the file has no tokenizer (tokens or model
// missing); InvalidArgument when a key holds another type or arrays disagree in length, naming
// the keys and both values. What the values mean is checked by Tokenizer::Create.
absl::StatusOr<TokenizerSpec> LoadTokenizerSpec(const Metadata& metadata);

struct ChatTemplates {
  std::string default_template;  // tokenizer.chat_template; empty when the file has none
  struct Named {
    std::string name;  // "tool_use", "rag", ...
    std::string source;
  };
  std::vector<Named> named;  // tokenizer.chat_template.NAME, in file order
};
absl::StatusOr<ChatTemplates> LoadChatTemplates(const Metadata& metadata);

}  // namespace layercake::model
