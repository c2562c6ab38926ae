#include "model/jinja/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

namespace layercake::model::jinja {
namespace {

enum class Case { kUpper, kLower, kTitle };

struct SpecialCase {
  char32_t code_point;
  char32_t upper[3];
  char32_t title[3];
};
constexpr SpecialCase kSpecialCases[] = {
#include "model/jinja/unicode_special_case.inc"
};

utf8proc_category_t Category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool IsCaseIgnorable(char32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      // The word-internal punctuation of Unicode's Case_Ignorable.
      return c == U'\'' || c == U'.' || c == U':' || c == 0xB7 || c == 0x2018 || c == 0x2019 ||
             c == 0x2024 || c == 0x2027;
  }
}

// Unicode's Final_Sigma: a cased letter before, none after, case-ignorable characters skipped.
bool IsFinalSigma(std::string_view text, size_t begin, size_t end) {
  bool cased_before = false;
  while (begin > 0) {
    begin = StartBefore(text, begin);
    const char32_t c = DecodeAt(text, begin).value;
    if (IsCaseIgnorable(c)) continue;
    cased_before = IsCased(c);
    break;
  }
  if (!cased_before) return false;
  while (end < text.size()) {
    const CodePoint c = DecodeAt(text, end);
    if (!IsCaseIgnorable(c.value)) return !IsCased(c.value);
    end += c.size;
  }
  return true;
}

void AppendMapped(const MarkedString& text, size_t offset, const CodePoint& c, Case mapping,
                  MarkedString& out) {
  const bool trusted = text.TrustedAt(offset);
  if (!c.valid) {
    out.Append(std::string_view(text.text()).substr(offset, c.size), trusted);
    return;
  }
  std::string mapped;
  const auto code_point = static_cast<utf8proc_int32_t>(c.value);
  if (mapping == Case::kLower) {
    if (c.value == 0x130) {  // the one code point whose lower case is two
      mapped = "i\u0307";
    } else if (c.value == 0x3A3 && IsFinalSigma(text.text(), offset, offset + c.size)) {
      AppendUtf8(0x3C2, mapped);
    } else {
      AppendUtf8(static_cast<char32_t>(utf8proc_tolower(code_point)), mapped);
    }
  } else {
    const SpecialCase* special = std::lower_bound(
        std::begin(kSpecialCases), std::end(kSpecialCases), c.value,
        [](const SpecialCase& entry, char32_t value) { return entry.code_point < value; });
    if (special != std::end(kSpecialCases) && special->code_point == c.value) {
      for (const char32_t part : mapping == Case::kUpper ? special->upper : special->title) {
        if (part != 0) AppendUtf8(part, mapped);
      }
    } else {
      AppendUtf8(static_cast<char32_t>(mapping == Case::kUpper ? utf8proc_toupper(code_point)
                                                               : utf8proc_totitle(code_point)),
                 mapped);
    }
  }
  out.Append(mapped, trusted);
}

template <typename ChooseCase>
MarkedString MapEach(const MarkedString& text, ChooseCase choose) {
  MarkedString out;
  for (size_t offset = 0; offset < text.size();) {
    const CodePoint c = DecodeAt(text.text(), offset);
    AppendMapped(text, offset, c, choose(c.value), out);
    offset += c.size;
  }
  out.set_markup(text.markup());
  return out;
}

}  // namespace

CodePoint DecodeAt(std::string_view text, size_t offset) {
  const auto first = static_cast<unsigned char>(text[offset]);
  if (first < 0x80) return {first, 1, true};
  utf8proc_int32_t value = 0;
  const utf8proc_ssize_t size = utf8proc_iterate(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + offset,
      static_cast<utf8proc_ssize_t>(std::min<size_t>(text.size() - offset, 4)), &value);
  if (size <= 0) return {0xFFFD, 1, false};
  return {static_cast<char32_t>(value), static_cast<size_t>(size), true};
}

size_t StartBefore(std::string_view text, size_t end) {
  const size_t limit = end > 4 ? end - 4 : 0;
  for (size_t start = end; start-- > limit;) {
    if ((static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) continue;
    // A lead byte counts only when its whole sequence ends here; stray continuation bytes stand
    // alone.
    return start + DecodeAt(text, start).size == end ? start : end - 1;
  }
  return end - 1;
}

size_t CountCodePoints(std::string_view text) {
  size_t count = 0;
  for (size_t offset = 0; offset < text.size(); ++count) offset += DecodeAt(text, offset).size;
  return count;
}

void AppendUtf8(char32_t code_point, std::string& out) {
  utf8proc_uint8_t buffer[4];
  const utf8proc_ssize_t size =
      utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), buffer);
  out.append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(size));
}

bool IsSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool IsPrintable(char32_t c) {
  if (c == U' ') return true;
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool IsAlpha(char32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return true;
    default:
      return false;
  }
}

bool IsAlnum(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return IsAlpha(c) || category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

bool IsUpper(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LU; }
bool IsLower(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LL; }
bool IsCased(char32_t c) { return IsUpper(c) || IsLower(c) || Category(c) == UTF8PROC_CATEGORY_LT; }

MarkedString ToUpper(const MarkedString& text) {
  return MapEach(text, [](char32_t) { return Case::kUpper; });
}

MarkedString ToLower(const MarkedString& text) {
  return MapEach(text, [](char32_t) { return Case::kLower; });
}

MarkedString Capitalize(const MarkedString& text) {
  bool first = true;
  return MapEach(text, [&first](char32_t) {
    const Case mapping = first ? Case::kTitle : Case::kLower;
    first = false;
    return mapping;
  });
}

MarkedString TitleCase(const MarkedString& text) {
  bool after_cased = false;
  return MapEach(text, [&after_cased](char32_t c) {
    const Case mapping = after_cased ? Case::kLower : Case::kTitle;
    after_cased = IsCased(c);
    return mapping;
  });
}

}  // namespace layercake::model::jinja
