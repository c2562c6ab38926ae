// Splits a template into text and tokens, with Jinja's rules for white space around tags
// (trim_blocks, lstrip_blocks, the signs - and +, one trailing newline dropped). Pure function.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/jinja/value.h"

namespace layercake::model::jinja {

struct Token {
  enum class Type {
    kText,           // template text between tags
    kBlockBegin,     // {%
    kBlockEnd,       // %}
    kVariableBegin,  // {{
    kVariableEnd,    // }}
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd,  // of the template
  };

  Type type = Type::kEnd;
  std::string text;     // text, name, operator, or a string literal after its escapes
  Int integer = 0;      // of kInteger
  double number = 0.0;  // of kFloat
  size_t line = 1;      // counted from 1
  size_t column = 1;    // in characters, counted from 1
};

// InvalidArgument with the position and `message`: the one form of every parse error.
absl::Status SyntaxError(size_t line, size_t column, std::string_view message);

// All tokens, kEnd last. InvalidArgument names line and column.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace layercake::model::jinja
