#include "model/jinja/format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "base/status_macros.h"
#include "model/jinja/error.h"
#include "model/jinja/unicode.h"

namespace layercake::model::jinja {
namespace {

// Wider fields and more digits than this serve no prompt.
constexpr int kMaxWidth = 1000;

// One replacement: [[fill]align][sign][#][0][width][,][.precision][type].
struct Spec {
  std::string fill = " ";
  char align = '\0';  // < > ^ =
  char sign = '-';    // - + or a space
  bool alternate = false;
  bool thousands = false;
  int width = 0;
  int precision = -1;
  char type = '\0';
};

bool Has(std::string_view set, char c) { return set.find(c) != std::string_view::npos; }

absl::StatusOr<int> ParseCount(std::string_view text, size_t& at) {
  int count = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
    count = count * 10 + (text[at++] - '0');
    if (count > kMaxWidth) return Invalid("a format width or precision is over ", kMaxWidth);
  }
  return count;
}

std::string FormatFloat(double value, const Spec& spec) {
  char format[16];
  char type = spec.type == '%' ? 'f' : spec.type;
  if (std::isinf(value) || std::isnan(value)) return FloatText(value);
  std::snprintf(format, sizeof format, "%%%s.*%c", spec.alternate ? "#" : "", type);
  if (spec.type == '%') value *= 100;
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  std::string out(static_cast<size_t>(std::snprintf(nullptr, 0, format, precision, value)), '\0');
  std::snprintf(out.data(), out.size() + 1, format, precision, value);
  return spec.type == '%' ? out + "%" : out;
}

absl::StatusOr<std::string> FormatInteger(Int value, char type) {
  const int base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
  if (base == 10) return IntText(value);
  std::string digits;
  Int rest = value;
  do {
    const int digit = std::abs(static_cast<int>(rest % base));
    digits.insert(digits.begin(), (type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[digit]);
    rest /= base;
  } while (rest != 0);
  return value < 0 ? "-" + digits : digits;
}

void InsertThousands(std::string& number) {
  const size_t first = number.find_first_of("0123456789");
  size_t end = number.find_first_not_of("0123456789", first);
  if (end == std::string::npos) end = number.size();
  for (size_t at = end; at > first + 3;) {
    at -= 3;
    number.insert(at, ",");
  }
}

// Pads `body` (with its sign, for numbers) to the width of `spec`.
MarkedString Pad(const MarkedString& body, const Spec& spec, char default_align) {
  const size_t length = CountCodePoints(body.text());
  const auto width = static_cast<size_t>(spec.width);
  if (length >= width) return body;
  const char align = spec.align == '\0' ? default_align : spec.align;
  const size_t padding = width - length;
  const size_t left = align == '<' ? 0 : align == '^' ? padding / 2 : padding;
  const size_t sign_size = align == '=' && !body.empty() && Has("+- ", body.text()[0]) ? 1 : 0;
  MarkedString out;
  out.AppendRange(body, 0, sign_size);
  for (size_t i = 0; i < left; ++i) out.Append(spec.fill, true);
  out.AppendRange(body, sign_size, body.size());
  for (size_t i = left; i < padding; ++i) out.Append(spec.fill, true);
  return out;
}

absl::StatusOr<MarkedString> FormatNumber(const Value& value, Spec spec) {
  std::string text;
  const bool is_float_type = spec.type != '\0' && Has("feEgG%F", spec.type);
  if (is_float_type || (value.is_float() && spec.precision >= 0)) {
    if (spec.type == '\0') spec.type = 'g';
    text = FormatFloat(value.number(), spec);
  } else if (value.is_float()) {
    text = FloatText(value.number());
  } else {
    LC_ASSIGN_OR_RETURN(text, FormatInteger(value.integer(), spec.type));
  }
  if (spec.thousands) InsertThousands(text);
  if (spec.sign != '-' && text[0] != '-') text.insert(text.begin(), spec.sign);
  return Pad(MarkedString(text, true), spec, '>');
}

absl::StatusOr<MarkedString> FormatText(const MarkedString& text, const Spec& spec) {
  if (spec.precision < 0) return Pad(text, spec, '<');
  size_t end = 0;
  for (int i = 0; i < spec.precision && end < text.size(); ++i) {
    end += DecodeAt(text.text(), end).size;
  }
  return Pad(text.Slice(0, end), spec, '<');
}

absl::StatusOr<Spec> ParseSpec(std::string_view text) {
  constexpr std::string_view kAligns = "<>^=";
  Spec spec;
  size_t at = 0;
  if (!text.empty()) {
    const size_t fill_size = DecodeAt(text, 0).size;
    if (text.size() > fill_size && Has(kAligns, text[fill_size])) {
      spec.fill = std::string(text.substr(0, fill_size));
      spec.align = text[fill_size];
      at = fill_size + 1;
    } else if (Has(kAligns, text[0])) {
      spec.align = text[0];
      at = 1;
    }
  }
  const auto skip = [&](char c) { return at < text.size() && text[at] == c ? ++at, true : false; };
  for (const char sign : {'+', '-', ' '}) {
    if (skip(sign)) spec.sign = sign;
  }
  spec.alternate = skip('#');
  if (skip('0') && spec.align == '\0') {
    spec.fill = "0";
    spec.align = '=';
  }
  LC_ASSIGN_OR_RETURN(spec.width, ParseCount(text, at));
  spec.thousands = skip(',');
  if (skip('.')) {
    LC_ASSIGN_OR_RETURN(spec.precision, ParseCount(text, at));
  }
  if (at < text.size()) spec.type = text[at++];
  if (at != text.size() || (spec.type != '\0' && !Has("sdfFeEgG%xXob", spec.type))) {
    return Invalid("the format spec '", text, "' is not supported");
  }
  return spec;
}

absl::StatusOr<MarkedString> ApplySpec(Runtime& runtime, const Value& value, const Spec& spec) {
  if (value.is_undefined()) return Invalid(value.undefined_reason());
  const bool wants_text = spec.type == 's' || (spec.type == '\0' && !value.is_number()) ||
                          (value.is_bool() && spec.type == '\0');
  if (wants_text) {
    if (value.is_number() && !value.is_bool())
      return Invalid("a number cannot be formatted as 's'");
    LC_ASSIGN_OR_RETURN(const StringPtr text, Str(runtime.budget, value));
    return FormatText(*text, spec);
  }
  if (!value.is_number() || (value.is_float() && Has("dxXob", spec.type))) {
    return Invalid("a ", TypeName(value), " cannot be formatted as '", std::string(1, spec.type),
                   "'");
  }
  return FormatNumber(value, spec);
}

// Walks a format of str.format.
class BraceFormatter {
 public:
  BraceFormatter(Runtime& runtime, const MarkedString& format, const Arguments& arguments)
      : runtime_(runtime), format_(format), text_(format.text()), arguments_(arguments) {}

  absl::StatusOr<Value> Run() {
    LC_RETURN_IF_ERROR(runtime_.budget.ChargeText(text_.size()));
    while (at_ < text_.size()) {
      const size_t brace = std::min(text_.find_first_of("{}", at_), text_.size());
      out_.AppendRange(format_, at_, brace);
      at_ = brace;
      if (at_ == text_.size()) break;
      if (at_ + 1 < text_.size() && text_[at_ + 1] == text_[at_]) {
        out_.AppendRange(format_, at_, at_ + 1);
        at_ += 2;
        continue;
      }
      if (text_[at_] == '}') return Invalid("a single '}' in a format string");
      LC_RETURN_IF_ERROR(Replace());
    }
    return MakeString(runtime_, std::move(out_));
  }

 private:
  absl::Status Replace() {
    const size_t end = text_.find('}', at_);
    if (end == std::string_view::npos) return Invalid("a '{' without '}' in a format string");
    std::string_view field = text_.substr(at_ + 1, end - at_ - 1);
    if (field.find('{') != std::string_view::npos) {
      return Invalid("nested replacement fields are not supported in a format string");
    }
    at_ = end + 1;
    std::string_view spec_text;
    if (const size_t colon = field.find(':'); colon != std::string_view::npos) {
      spec_text = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    std::string_view conversion;
    if (const size_t mark = field.find('!'); mark != std::string_view::npos) {
      conversion = field.substr(mark + 1);
      field = field.substr(0, mark);
    }
    LC_ASSIGN_OR_RETURN(Value value, Field(field));
    if (conversion == "r") {
      MarkedString text;
      LC_RETURN_IF_ERROR(AppendRepr(runtime_.budget, value, text));
      value = Value::String(std::move(text));
    } else if (conversion == "s") {
      LC_ASSIGN_OR_RETURN(StringPtr text, Str(runtime_.budget, value));
      value = Value::String(std::move(text));
    } else if (!conversion.empty()) {
      return Invalid("the conversion '!", conversion, "' is not supported");
    }
    LC_ASSIGN_OR_RETURN(const Spec spec, ParseSpec(spec_text));
    LC_ASSIGN_OR_RETURN(const MarkedString text, ApplySpec(runtime_, value, spec));
    LC_RETURN_IF_ERROR(runtime_.budget.ChargeString(out_.size() + text.size()));
    out_.Append(text);
    return absl::OkStatus();
  }

  absl::StatusOr<Value> Field(std::string_view field) {
    const size_t name_end = std::min(field.find_first_of(".["), field.size());
    LC_ASSIGN_OR_RETURN(Value value, Argument(field.substr(0, name_end)));
    field.remove_prefix(name_end);
    while (!field.empty()) {
      const bool is_attribute = field[0] == '.';
      const size_t end =
          is_attribute ? std::min(field.find_first_of(".[", 1), field.size()) : field.find(']');
      if (end == std::string_view::npos) return Invalid("a '[' without ']' in a format string");
      const std::string_view key = field.substr(1, end - 1);
      if (is_attribute) {
        LC_ASSIGN_OR_RETURN(value, GetAttribute(runtime_, value, key));
      } else {
        LC_ASSIGN_OR_RETURN(value,
                            GetPath(runtime_, value, Value::String(MarkedString(key, true))));
      }
      field.remove_prefix(is_attribute ? end : end + 1);
    }
    return value;
  }

  absl::StatusOr<Value> Argument(std::string_view name) {
    if (name.find_first_not_of("0123456789") == std::string_view::npos) {
      size_t at = 0;
      size_t index = next_index_;
      if (name.empty()) {
        ++next_index_;
      } else {
        LC_ASSIGN_OR_RETURN(const int count, ParseCount(name, at));
        index = static_cast<size_t>(count);
      }
      if (index < arguments_.positional.size()) return arguments_.positional[index];
      return Invalid("the format string wants argument ", index, " of ",
                     arguments_.positional.size());
    }
    for (const auto& [key, value] : arguments_.named) {
      if (key == name) return value;
    }
    return Invalid("the format string wants an argument '", name, "'");
  }

  Runtime& runtime_;
  const MarkedString& format_;
  const std::string_view text_;
  const Arguments& arguments_;
  MarkedString out_;
  size_t at_ = 0;
  size_t next_index_ = 0;
};

absl::StatusOr<MarkedString> PercentField(Runtime& runtime, const Value& value, Spec spec) {
  switch (spec.type) {
    case 's':
    case 'r': {
      MarkedString text;
      if (spec.type == 'r') {
        LC_RETURN_IF_ERROR(AppendRepr(runtime.budget, value, text));
      } else {
        LC_RETURN_IF_ERROR(AppendStr(runtime.budget, value, text));
      }
      spec.align = spec.align == '<' ? '<' : '>';
      spec.fill = " ";
      return FormatText(text, spec);
    }
    case 'd':
    case 'i':
      if (value.is_float()) {
        if (!(std::abs(value.number()) < 9e18)) return Invalid("%d: the number is too large");
        spec.type = 'd';
        spec.precision = -1;
        return FormatNumber(Value::Integer(static_cast<int64_t>(value.number())), spec);
      }
      spec.type = 'd';
      [[fallthrough]];
    case 'x':
    case 'X':
    case 'o':
      if (!value.is_integral()) break;
      return FormatNumber(value, spec);
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
      if (!value.is_number()) break;
      return FormatNumber(value, spec);
    default:
      return Invalid("the format %", std::string(1, spec.type), " is not supported");
  }
  return Invalid("%", std::string(1, spec.type), " needs a number, not a ", TypeName(value));
}

absl::StatusOr<Spec> ParsePercentSpec(std::string_view text, size_t& at) {
  Spec spec;
  for (; at < text.size() && Has("-+ 0#", text[at]); ++at) {
    if (text[at] == '-') {
      spec.align = '<';
      spec.fill = " ";
    } else if (text[at] == '0' && spec.align != '<') {
      spec.align = '=';
      spec.fill = "0";
    } else if (text[at] == '+' || text[at] == ' ') {
      spec.sign = text[at];
    }
  }
  LC_ASSIGN_OR_RETURN(spec.width, ParseCount(text, at));
  if (at < text.size() && text[at] == '.') {
    LC_ASSIGN_OR_RETURN(spec.precision, ParseCount(text, ++at));
  }
  if (at >= text.size()) return Invalid("an incomplete '%' in a format string");
  spec.type = text[at++];
  return spec;
}

}  // namespace

absl::StatusOr<Value> PercentFormat(Runtime& runtime, const MarkedString& format,
                                    const Value& values) {
  const bool is_tuple = values.is_sequence() && values.sequence()->form == Sequence::Form::kTuple;
  const size_t count = is_tuple ? values.sequence()->items.size() : 1;
  const std::string_view text = format.text();
  LC_RETURN_IF_ERROR(runtime.budget.ChargeText(text.size()));
  MarkedString out;
  size_t used = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t percent = std::min(text.find('%', at), text.size());
    out.AppendRange(format, at, percent);
    at = percent + 1;
    if (percent == text.size()) break;
    if (at < text.size() && text[at] == '%') {
      out.AppendRange(format, at, at + 1);
      ++at;
      continue;
    }
    Value value;
    if (at < text.size() && text[at] == '(') {
      const size_t close = text.find(')', at);
      if (close == std::string_view::npos || !values.is_dict()) {
        return Invalid("%(name) in a format string needs a dict");
      }
      const std::string_view name = text.substr(at + 1, close - at - 1);
      const Value* found = values.dict()->Find(EncodeStringKey(name));
      if (found == nullptr) return Invalid("the format string wants the key '", name, "'");
      value = *found;
      used = count;
      at = close + 1;
    } else {
      if (used >= count) return Invalid("too few values for the format string");
      value = is_tuple ? values.sequence()->items[used] : values;
      ++used;
    }
    LC_ASSIGN_OR_RETURN(const Spec spec, ParsePercentSpec(text, at));
    LC_ASSIGN_OR_RETURN(const MarkedString field, PercentField(runtime, value, spec));
    LC_RETURN_IF_ERROR(runtime.budget.ChargeString(out.size() + field.size()));
    out.Append(field);
  }
  const bool is_list = values.is_sequence() && !is_tuple && values.sequence()->is_indexable();
  if (used < count && !values.is_dict() && !is_list) {
    return Invalid("too many values for the format string");
  }
  return MakeString(runtime, std::move(out));
}

absl::StatusOr<Value> BraceFormat(Runtime& runtime, const MarkedString& format,
                                  const Arguments& arguments) {
  return BraceFormatter(runtime, format, arguments).Run();
}

absl::StatusOr<std::string> FormatLocalTime(std::string_view format, absl::Time time,
                                            absl::TimeZone timezone) {
  constexpr size_t kMaxFormat = 256;
  if (format.size() > kMaxFormat) {
    return Invalid("a time format of ", format.size(), " bytes is over ", kMaxFormat);
  }
  // What a naive datetime says where it differs from the C library.
  std::string c_format;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] == '\0') return Invalid("a time format holds a zero byte");
    if (format[i] != '%' || i + 1 == format.size()) {
      c_format += format[i];
      continue;
    }
    const char directive = format[++i];
    if (directive == 'f') {
      char micros[8];
      const absl::Duration fraction = time - absl::FromUnixSeconds(absl::ToUnixSeconds(time));
      std::snprintf(micros, sizeof micros, "%06d",
                    static_cast<int>(absl::ToInt64Microseconds(fraction) % 1'000'000));
      c_format += micros;
    } else if (directive != 'z' && directive != 'Z') {
      c_format += '%';
      c_format += directive;
    }
  }
  const std::tm local = absl::ToTM(time, timezone);
  // A mark at the end tells an empty result from one that did not fit.
  c_format += '.';
  std::string out(kMaxFormat * 128, '\0');
  const size_t size = std::strftime(out.data(), out.size(), c_format.c_str(), &local);
  if (size == 0) return Invalid("the time format '", format, "' makes too long a text");
  out.resize(size - 1);
  return out;
}

}  // namespace layercake::model::jinja
