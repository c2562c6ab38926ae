// str() and repr() of values, as Python prints them.
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/status_macros.h"
#include "model/jinja/error.h"
#include "model/jinja/unicode.h"
#include "model/jinja/value.h"

namespace layercake::model::jinja {
namespace {

void AppendEscaped(char32_t c, std::string& out) {
  char buffer[16];
  const auto value = static_cast<unsigned>(c);
  const char* format = c <= 0xFF ? "\\x%02x" : c <= 0xFFFF ? "\\u%04x" : "\\U%08x";
  std::snprintf(buffer, sizeof buffer, format, value);
  out += buffer;
}

// repr(str): single quotes unless the text has single quotes and no double ones.
void AppendStringRepr(const MarkedString& string, MarkedString& out) {
  const std::string& text = string.text();
  const bool has_single = text.find('\'') != std::string::npos;
  const char quote = has_single && text.find('"') == std::string::npos ? '"' : '\'';
  out.Append(std::string_view(&quote, 1), false);
  for (size_t offset = 0; offset < text.size();) {
    const CodePoint c = DecodeAt(text, offset);
    std::string piece;
    if (c.value == U'\\' || c.value == static_cast<char32_t>(quote)) {
      piece = {'\\', static_cast<char>(c.value)};
    } else if (c.value == U'\n') {
      piece = "\\n";
    } else if (c.value == U'\r') {
      piece = "\\r";
    } else if (c.value == U'\t') {
      piece = "\\t";
    } else if (c.valid && !IsPrintable(c.value)) {
      AppendEscaped(c.value, piece);
    } else {
      piece = text.substr(offset, c.size);
    }
    out.Append(piece, string.TrustedAt(offset));
    offset += c.size;
  }
  out.Append(std::string_view(&quote, 1), false);
}

absl::Status AppendItems(Budget& budget, const Sequence& sequence, MarkedString& out, int depth) {
  for (size_t i = 0; i < sequence.items.size(); ++i) {
    if (i > 0) out.Append(", ", false);
    LC_RETURN_IF_ERROR(AppendRepr(budget, sequence.items[i], out, depth + 1));
  }
  return absl::OkStatus();
}

absl::Status AppendSequenceRepr(Budget& budget, const Sequence& sequence, MarkedString& out,
                                int depth) {
  std::string_view open = "[";
  std::string_view close = "]";
  switch (sequence.form) {
    case Sequence::Form::kList:
      break;
    case Sequence::Form::kTuple:
      open = "(";
      close = sequence.items.size() == 1 ? ",)" : ")";
      break;
    case Sequence::Form::kKeysView:
      open = "dict_keys([";
      close = "])";
      break;
    case Sequence::Form::kValuesView:
      open = "dict_values([";
      close = "])";
      break;
    case Sequence::Form::kItemsView:
      open = "dict_items([";
      close = "])";
      break;
    case Sequence::Form::kRange:
    case Sequence::Form::kGenerator:
      // Python prints a memory address for the one and not the elements for the other: no template
      // can want either.
      return Invalid("a ", sequence.is_generator() ? "generator" : "range",
                     " cannot be printed: turn it into a list with the filter `list` first");
  }
  out.Append(open, false);
  LC_RETURN_IF_ERROR(AppendItems(budget, sequence, out, depth));
  out.Append(close, false);
  return absl::OkStatus();
}

absl::Status AppendDictRepr(Budget& budget, const Dict& dict, MarkedString& out, int depth) {
  out.Append("{", false);
  bool first = true;
  for (const Dict::Entry& entry : dict.entries) {
    if (!first) out.Append(", ", false);
    first = false;
    LC_RETURN_IF_ERROR(AppendRepr(budget, entry.key, out, depth + 1));
    out.Append(": ", false);
    LC_RETURN_IF_ERROR(AppendRepr(budget, entry.value, out, depth + 1));
  }
  out.Append("}", false);
  return absl::OkStatus();
}

}  // namespace

std::string IntText(Int value) {
  if (value >= INT64_MIN && value <= INT64_MAX) return Cat(static_cast<int64_t>(value));
  std::string digits;
  for (Int rest = value; rest != 0; rest /= 10) {
    const int digit = static_cast<int>(rest % 10);
    digits.insert(digits.begin(), static_cast<char>('0' + (digit < 0 ? -digit : digit)));
  }
  return value < 0 ? "-" + digits : digits;
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto result =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view shortest(buffer, static_cast<size_t>(result.ptr - buffer));
  const size_t exponent_at = shortest.find('e');
  int exponent = 0;
  const char* exponent_text = shortest.data() + exponent_at + 1;
  if (*exponent_text == '+') ++exponent_text;
  std::from_chars(exponent_text, result.ptr, exponent);
  // Python's repr turns to the exponent form at 1e16 and below 1e-4.
  if (exponent < -4 || exponent >= 16) {
    std::snprintf(buffer + exponent_at, sizeof buffer - exponent_at, "e%s%02d",
                  exponent < 0 ? "-" : "+", std::abs(exponent));
    return buffer;
  }
  std::string digits;
  const bool negative = shortest[0] == '-';
  for (const char c : shortest.substr(0, exponent_at)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  if (exponent < 0) {
    digits = "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else {
    const auto whole = static_cast<size_t>(exponent) + 1;
    if (digits.size() <= whole) {
      digits.append(whole - digits.size(), '0');
      digits += ".0";
    } else {
      digits.insert(whole, ".");
    }
  }
  return negative ? "-" + digits : digits;
}

absl::Status AppendRepr(Budget& budget, const Value& value, MarkedString& out, int depth) {
  if (depth > kMaxValueDepth) {
    return Invalid("cannot print a value that nests deeper than ", kMaxValueDepth, " levels");
  }
  switch (value.kind()) {
    case Kind::kUndefined:
      LC_RETURN_IF_ERROR(budget.Charge(1));
      out.Append("Undefined", true);
      return absl::OkStatus();
    case Kind::kString:
      LC_RETURN_IF_ERROR(budget.ChargeText(value.text().size()));
      // Escapes make a character ten times as long at most.
      LC_RETURN_IF_ERROR(budget.CheckSize(out.size() + value.text().size()));
      AppendStringRepr(value.string(), out);
      return absl::OkStatus();
    case Kind::kSequence:
      return AppendSequenceRepr(budget, *value.sequence(), out, depth);
    case Kind::kDict:
      return AppendDictRepr(budget, *value.dict(), out, depth);
    case Kind::kNamespace:
    case Kind::kLoop:
    case Kind::kFunction:
      return Invalid("a ", TypeName(value), " cannot be printed");
    default:
      return AppendStr(budget, value, out);
  }
}

absl::Status AppendStr(Budget& budget, const Value& value, MarkedString& out) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return absl::OkStatus();
    case Kind::kNone:
      LC_RETURN_IF_ERROR(budget.Charge(1));
      out.Append("None", true);
      return absl::OkStatus();
    case Kind::kBool:
      LC_RETURN_IF_ERROR(budget.Charge(1));
      out.Append(value.boolean() ? "True" : "False", true);
      return absl::OkStatus();
    case Kind::kInt:
      LC_RETURN_IF_ERROR(budget.Charge(1));
      out.Append(IntText(value.integer()), true);
      return absl::OkStatus();
    case Kind::kFloat:
      LC_RETURN_IF_ERROR(budget.Charge(1));
      out.Append(FloatText(value.number()), true);
      return absl::OkStatus();
    case Kind::kString:
      LC_RETURN_IF_ERROR(budget.ChargeText(value.text().size()));
      LC_RETURN_IF_ERROR(budget.CheckSize(out.size() + value.text().size()));
      out.Append(value.string());
      return absl::OkStatus();
    default:
      return AppendRepr(budget, value, out);
  }
}

absl::StatusOr<StringPtr> Str(Budget& budget, const Value& value) {
  if (value.is_string()) return value.string_ptr();
  MarkedString text;
  LC_RETURN_IF_ERROR(AppendStr(budget, value, text));
  return std::make_shared<const MarkedString>(std::move(text));
}

}  // namespace layercake::model::jinja
