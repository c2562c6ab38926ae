// UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF.
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace layercake::model {

// What stands at the front of some bytes.
struct Utf8Step {
  enum class Kind {
    kCharacter,   // `length` bytes are one character, `code_point`
    kIncomplete,  // all `length` bytes to the end begin a character that is cut off
    kInvalid,     // `length` bytes (the longest prefix of a character, at least 1) are no character
  };
  Kind kind;
  size_t length;
  uint32_t code_point;  // of kCharacter, else 0
};

// Looks at the front of `bytes`, which must not be empty.
Utf8Step NextUtf8(std::string_view bytes);

// Offset of the first byte that is not part of a whole character; npos when all of it is valid.
size_t FirstInvalidUtf8(std::string_view bytes);

inline bool IsValidUtf8(std::string_view bytes) {
  return FirstInvalidUtf8(bytes) == std::string_view::npos;
}

// How many bytes at the end begin a character that more bytes could still complete: 0 to 3.
size_t IncompleteUtf8Tail(std::string_view bytes);

// Replaces each longest invalid prefix (Unicode's "maximal subpart") by one U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view bytes);

// Appends `code_point`, a Unicode scalar value.
void AppendUtf8(uint32_t code_point, std::string* out);

}  // namespace layercake::model
