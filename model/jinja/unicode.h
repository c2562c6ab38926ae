// What Python's str knows about code points: white space, printability, case. Pure functions.
// Bytes that are not UTF-8 count as one code point each, so that every text has a length.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "model/jinja/marked_string.h"

namespace layercake::model::jinja {

struct CodePoint {
  char32_t value = 0;  // U+FFFD for a byte that is not part of valid UTF-8
  size_t size = 1;     // bytes
  bool valid = true;
};

// The code point that starts at `offset` < text.size().
CodePoint DecodeAt(std::string_view text, size_t offset);
// The start of the code point that ends at `end` > 0.
size_t StartBefore(std::string_view text, size_t end);
size_t CountCodePoints(std::string_view text);
void AppendUtf8(char32_t code_point, std::string& out);

bool IsSpace(char32_t c);      // str.isspace
bool IsPrintable(char32_t c);  // str.isprintable
bool IsAlnum(char32_t c);
bool IsAlpha(char32_t c);
bool IsUpper(char32_t c);
bool IsLower(char32_t c);
bool IsCased(char32_t c);

// str.upper, str.lower, str.capitalize, str.title. The mapped text keeps the origin of each
// character.
MarkedString ToUpper(const MarkedString& text);
MarkedString ToLower(const MarkedString& text);
MarkedString Capitalize(const MarkedString& text);
MarkedString TitleCase(const MarkedString& text);

}  // namespace layercake::model::jinja
