// The filters on text, numbers and single values; those on sequences are in sequence_filters.cc.
#include "model/jinja/filters.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/status_macros.h"
#include "model/jinja/error.h"
#include "model/jinja/format.h"
#include "model/jinja/json_text.h"
#include "model/jinja/operators.h"
#include "model/jinja/text_functions.h"
#include "model/jinja/unicode.h"

namespace layercake::model::jinja {
namespace {

using Result = absl::StatusOr<Value>;

Result StringFilter(Runtime& runtime, const Value& self, const Arguments&) {
  LC_ASSIGN_OR_RETURN(StringPtr text, Str(runtime.budget, self));
  return Value::String(std::move(text));
}

Result MapCase(Runtime& runtime, const Value& self, MarkedString (*map)(const MarkedString&)) {
  LC_ASSIGN_OR_RETURN(const StringPtr text, Str(runtime.budget, self));
  LC_RETURN_IF_ERROR(runtime.budget.ChargeText(text->size() * 4));
  return MakeString(runtime, map(*text));
}
Result UpperFilter(Runtime& runtime, const Value& self, const Arguments&) {
  return MapCase(runtime, self, &ToUpper);
}
Result LowerFilter(Runtime& runtime, const Value& self, const Arguments&) {
  return MapCase(runtime, self, &ToLower);
}
Result CapitalizeFilter(Runtime& runtime, const Value& self, const Arguments&) {
  return MapCase(runtime, self, &Capitalize);
}

// Jinja's own rule for words: they start behind white space and - ( { [ <.
Result TitleFilter(Runtime& runtime, const Value& self, const Arguments&) {
  LC_ASSIGN_OR_RETURN(const StringPtr text, Str(runtime.budget, self));
  LC_RETURN_IF_ERROR(runtime.budget.ChargeText(text->size() * 4));
  MarkedString out;
  const auto is_border = [&](size_t at) {
    const char32_t c = DecodeAt(text->text(), at).value;
    return IsSpace(c) || c == U'-' || c == U'(' || c == U'{' || c == U'[' || c == U'<';
  };
  for (size_t at = 0; at < text->size();) {
    size_t end = at;
    while (end < text->size() && is_border(end)) end += DecodeAt(text->text(), end).size;
    out.AppendRange(*text, at, end);
    if (end == text->size()) break;
    at = end;
    while (end < text->size() && !is_border(end)) end += DecodeAt(text->text(), end).size;
    const size_t rest = at + DecodeAt(text->text(), at).size;
    out.Append(ToUpper(text->Slice(at, rest)));
    out.Append(ToLower(text->Slice(rest, end)));
    at = end;
  }
  return MakeString(runtime, std::move(out));
}

Result TrimFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("trim", arguments, {"chars"}));
  LC_ASSIGN_OR_RETURN(const StringPtr text, Str(runtime.budget, self));
  if (!bound[0] || bound[0]->is_none()) {
    return StripText(runtime, *text, nullptr, true, true);
  }
  LC_ASSIGN_OR_RETURN(const StringPtr characters, AsString("the characters to trim", *bound[0]));
  return StripText(runtime, *text, characters.get(), true, true);
}

Result ReplaceFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("replace", arguments, {"old", "new", "count"}, 2));
  LC_ASSIGN_OR_RETURN(const StringPtr text, Str(runtime.budget, self));
  LC_ASSIGN_OR_RETURN(const StringPtr old_text, Str(runtime.budget, *bound[0]));
  LC_ASSIGN_OR_RETURN(const StringPtr new_text, Str(runtime.budget, *bound[1]));
  int64_t count = -1;
  if (bound[2] && !bound[2]->is_none()) {
    LC_ASSIGN_OR_RETURN(count, AsInteger("count", *bound[2]));
  }
  return ReplaceText(runtime, *text, *old_text, *new_text, count);
}

absl::StatusOr<MarkedString> IndentText(std::string_view what, const Value& width) {
  if (width.is_string()) return width.string();
  LC_ASSIGN_OR_RETURN(const int64_t count, AsInteger(what, width));
  constexpr int64_t kMaxIndent = 1000;
  if (count > kMaxIndent) return Invalid(what, " ", count, " is over ", kMaxIndent);
  return MarkedString(std::string(static_cast<size_t>(std::max<int64_t>(count, 0)), ' '), true);
}

Result IndentFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("indent", arguments, {"width", "first", "blank"}));
  LC_ASSIGN_OR_RETURN(const StringPtr text, AsString("what is indented", self));
  LC_ASSIGN_OR_RETURN(const MarkedString indent,
                      IndentText("the indent width", bound[0].value_or(Value::Integer(4))));
  const bool first = bound[1] && IsTruthy(*bound[1]);
  const bool blank = bound[2] && IsTruthy(*bound[2]);
  LC_RETURN_IF_ERROR(runtime.budget.ChargeText(text->size()));
  MarkedString terminated = *text;
  terminated.Append("\n", true);
  const std::vector<MarkedString> lines = SplitLines(terminated, false);
  MarkedString out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.Append("\n", true);
    if (i > 0 ? blank || !lines[i].empty() : first) {
      LC_RETURN_IF_ERROR(runtime.budget.ChargeString(out.size() + indent.size()));
      out.Append(indent);
    }
    out.Append(lines[i]);
  }
  return MakeString(runtime, std::move(out));
}

Result SafeFilter(Runtime& runtime, const Value& self, const Arguments&) {
  LC_ASSIGN_OR_RETURN(const StringPtr text, Str(runtime.budget, self));
  MarkedString marked = *text;
  marked.set_markup(true);
  return MakeString(runtime, std::move(marked));
}

Result EscapeFilter(Runtime& runtime, const Value& self, const Arguments&) {
  LC_ASSIGN_OR_RETURN(StringPtr text, Str(runtime.budget, self));
  if (text->markup()) return Value::String(std::move(text));
  LC_RETURN_IF_ERROR(runtime.budget.ChargeText(text->size()));
  return MakeString(runtime, EscapeHtml(*text));
}

Result ToJsonFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(
      const Bound bound,
      Bind("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonTextOptions options;
  options.ensure_ascii = bound[0] && IsTruthy(*bound[0]);
  if (bound[1] && !bound[1]->is_none()) {
    LC_ASSIGN_OR_RETURN(const MarkedString indent, IndentText("tojson's indent", *bound[1]));
    options.indent = indent.text();
    options.item_separator.assign(1, ',');
  }
  if (bound[2] && !bound[2]->is_none()) {
    LC_ASSIGN_OR_RETURN(const std::vector<Value> parts, AllItems(runtime, *bound[2]));
    if (parts.size() != 2) return Invalid("tojson: separators must be a pair");
    LC_ASSIGN_OR_RETURN(const StringPtr item, AsString("a separator", parts[0]));
    LC_ASSIGN_OR_RETURN(const StringPtr key, AsString("a separator", parts[1]));
    options.item_separator = item->text();
    options.key_separator = key->text();
  }
  options.sort_keys = bound[3] && IsTruthy(*bound[3]);
  LC_ASSIGN_OR_RETURN(MarkedString text, ToJsonText(runtime, self, options));
  return Value::String(std::move(text));
}

Result DefaultFilter(Runtime&, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("default", arguments, {"default_value", "boolean"}));
  const bool replaces_false = bound[1] && IsTruthy(*bound[1]);
  if (!self.is_undefined() && !(replaces_false && !IsTruthy(self))) return self;
  return bound[0].value_or(Value::String(MarkedString()));
}

Result AbsFilter(Runtime&, const Value& self, const Arguments&) {
  if (self.is_float()) return Value::Float(std::abs(self.number()));
  if (self.is_integral() && self.integer() >= 0) return Value::Integer(self.integer());
  return ApplyUnary(UnaryOperator::kMinus, self);
}

// Python's float(text) on trimmed text; nothing when it does not parse.
std::optional<double> ParseFloat(std::string text) {
  std::erase(text, '_');
  if (text.empty() || text.find_first_of("xX") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end != text.c_str() + text.size()) return std::nullopt;
  return value;
}

Result FloatFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("float", arguments, {"default"}));
  if (self.is_undefined()) return Invalid(self.undefined_reason());
  if (self.is_number()) return Value::Float(self.number());
  if (self.is_string()) {
    LC_ASSIGN_OR_RETURN(const Value text, StripText(runtime, self.string(), nullptr, true, true));
    if (const std::optional<double> value = ParseFloat(text.text())) return Value::Float(*value);
  }
  return bound[0].value_or(Value::Float(0.0));
}

std::optional<Int> ParseInteger(std::string text, int64_t base) {
  std::erase(text, '_');
  const bool negative = !text.empty() && text[0] == '-';
  std::string_view digits = text;
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) digits.remove_prefix(1);
  if (digits.size() > 2 && digits[0] == '0') {
    const char marker = static_cast<char>(digits[1] | 0x20);
    const int64_t marked = marker == 'x' ? 16 : marker == 'o' ? 8 : marker == 'b' ? 2 : 0;
    if (marked != 0 && marked == base) digits.remove_prefix(2);
  }
  uint64_t value = 0;
  const auto result =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, static_cast<int>(base));
  if (digits.empty() || result.ec != std::errc() || result.ptr != digits.data() + digits.size()) {
    return std::nullopt;
  }
  return negative ? -static_cast<Int>(value) : static_cast<Int>(value);
}

Result IntFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("int", arguments, {"default", "base"}));
  if (self.is_undefined()) return Invalid(self.undefined_reason());
  int64_t base = 10;
  if (bound[1]) {
    LC_ASSIGN_OR_RETURN(base, AsInteger("base", *bound[1]));
    if (base < 2 || base > 36) return Invalid("int: the base must be 2 to 36");
  }
  std::optional<double> number;
  if (self.is_integral()) return Value::Integer(self.integer());
  if (self.is_float()) number = self.number();
  if (self.is_string()) {
    LC_ASSIGN_OR_RETURN(const Value text, StripText(runtime, self.string(), nullptr, true, true));
    if (const std::optional<Int> value = ParseInteger(text.text(), base)) {
      return Value::Integer(*value);
    }
    number = ParseFloat(text.text());
  }
  if (number && std::abs(*number) < 1e37) return Value::Integer(static_cast<Int>(*number));
  return bound[0].value_or(Value::Integer(0));
}

// round(value, precision) with ties to even, exact in decimal as Python's is.
double RoundDecimal(double value, int64_t precision) {
  if (!std::isfinite(value) || precision > 300) return value;
  if (precision < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-precision));
    return std::isfinite(unit) ? std::nearbyint(value / unit) * unit : 0.0;
  }
  char buffer[700];
  std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), value);
  return std::strtod(buffer, nullptr);
}

Result RoundFilter(Runtime&, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("round", arguments, {"precision", "method"}));
  int64_t precision = 0;
  if (bound[0]) {
    LC_ASSIGN_OR_RETURN(precision, AsInteger("precision", *bound[0]));
  }
  std::string method = "common";
  if (bound[1]) {
    LC_ASSIGN_OR_RETURN(const StringPtr name, AsString("method", *bound[1]));
    method = name->text();
  }
  if (self.is_undefined()) return Invalid(self.undefined_reason());
  if (!self.is_number()) return Invalid("round needs a number, not a ", TypeName(self));
  if (method == "common") {
    if (self.is_integral() && precision >= 0) return Value::Integer(self.integer());
    if (self.is_integral()) {
      return Value::Integer(static_cast<Int>(RoundDecimal(self.number(), precision)));
    }
    return Value::Float(RoundDecimal(self.number(), precision));
  }
  if (method != "ceil" && method != "floor") {
    return Invalid("round: the method must be common, ceil or floor");
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = self.number() * scale;
  return Value::Float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Result FormatFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const StringPtr text, Str(runtime.budget, self));
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    return Invalid("format takes positional or named arguments, not both");
  }
  if (!arguments.named.empty()) {
    auto* dict = runtime.arena.New<Dict>();
    for (const auto& [name, value] : arguments.named) {
      dict->Set(EncodeStringKey(name), Value::String(MarkedString(name, true)), value);
    }
    return PercentFormat(runtime, *text, Value::Of(dict));
  }
  LC_ASSIGN_OR_RETURN(const Value values,
                      MakeSequence(runtime, arguments.positional, Sequence::Form::kTuple));
  return PercentFormat(runtime, *text, values);
}

Result WordCountFilter(Runtime& runtime, const Value& self, const Arguments&) {
  LC_ASSIGN_OR_RETURN(const StringPtr text, Str(runtime.budget, self));
  LC_RETURN_IF_ERROR(runtime.budget.ChargeText(text->size()));
  Int words = 0;
  bool in_word = false;
  for (size_t at = 0; at < text->size();) {
    const CodePoint c = DecodeAt(text->text(), at);
    const bool is_word = IsAlnum(c.value) || c.value == U'_';
    if (is_word && !in_word) ++words;
    in_word = is_word;
    at += c.size;
  }
  return Value::Integer(words);
}

Result LengthFilter(Runtime& runtime, const Value& self, const Arguments&) {
  LC_ASSIGN_OR_RETURN(const size_t length, Length(runtime, self));
  return Value::Integer(static_cast<Int>(length));
}

// Attributes only: x|attr("a") never looks at the item x["a"].
Result AttrFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("attr", arguments, {"name"}, 1));
  LC_ASSIGN_OR_RETURN(const StringPtr name, AsString("the attribute name", *bound[0]));
  if (self.is_dict() && FindMethod(self, name->text()) == nullptr) {
    return Value::Undefined(Cat("a dict has no attribute '", name->text(), "'"));
  }
  return GetAttribute(runtime, self, name->text());
}

constexpr NamedFilter kFilters[] = {
    {"abs", &PlainFilter<&AbsFilter>},
    {"attr", &AttrFilter},
    {"capitalize", &PlainFilter<&CapitalizeFilter>},
    {"count", &PlainFilter<&LengthFilter>},
    {"d", &DefaultFilter},
    {"default", &DefaultFilter},
    {"e", &PlainFilter<&EscapeFilter>},
    {"escape", &PlainFilter<&EscapeFilter>},
    {"float", &FloatFilter},
    {"format", &FormatFilter},
    {"indent", &IndentFilter},
    {"int", &IntFilter},
    {"length", &PlainFilter<&LengthFilter>},
    {"lower", &PlainFilter<&LowerFilter>},
    {"replace", &ReplaceFilter},
    {"round", &RoundFilter},
    {"safe", &PlainFilter<&SafeFilter>},
    {"string", &PlainFilter<&StringFilter>},
    {"title", &PlainFilter<&TitleFilter>},
    {"tojson", &ToJsonFilter},
    {"trim", &TrimFilter},
    {"upper", &PlainFilter<&UpperFilter>},
    {"wordcount", &PlainFilter<&WordCountFilter>},
};

}  // namespace

Native FindFilter(std::string_view name) {
  for (const NamedFilter& filter : kFilters) {
    if (filter.name == name) return filter.native;
  }
  return FindSequenceFilter(name);
}

}  // namespace layercake::model::jinja
