// The methods of Python's str that templates call.
#include <algorithm>
#include <iterator>

#include "base/status_macros.h"
#include "model/jinja/error.h"
#include "model/jinja/format.h"
#include "model/jinja/operators.h"
#include "model/jinja/text_functions.h"
#include "model/jinja/unicode.h"

namespace layercake::model::jinja {

absl::StatusOr<Value> StripText(Runtime& runtime, const MarkedString& text,
                                const MarkedString* characters, bool left, bool right) {
  const std::string& bytes = text.text();
  LC_RETURN_IF_ERROR(runtime.budget.ChargeText(bytes.size()));
  std::vector<char32_t> set;
  if (characters != nullptr) {
    for (size_t at = 0; at < characters->size();) {
      const CodePoint c = DecodeAt(characters->text(), at);
      set.push_back(c.value);
      at += c.size;
    }
    std::sort(set.begin(), set.end());
  }
  const auto strips = [&](char32_t c) {
    return characters == nullptr ? IsSpace(c) : std::binary_search(set.begin(), set.end(), c);
  };
  size_t begin = 0;
  size_t end = bytes.size();
  while (left && begin < end) {
    const CodePoint c = DecodeAt(bytes, begin);
    if (!strips(c.value)) break;
    begin += c.size;
  }
  while (right && begin < end) {
    const size_t start = StartBefore(bytes, end);
    if (!strips(DecodeAt(bytes, start).value)) break;
    end = start;
  }
  return MakeString(runtime, text.Slice(begin, end));
}

absl::StatusOr<Value> ReplaceText(Runtime& runtime, const MarkedString& text,
                                  const MarkedString& old_text, const MarkedString& new_text,
                                  int64_t count) {
  LC_RETURN_IF_ERROR(runtime.budget.ChargeText(text.size()));
  MarkedString out;
  size_t copied = 0;
  size_t at = 0;
  while (count != 0) {
    const size_t found = FindText(text.text(), old_text.text(), at);
    if (found == std::string_view::npos) break;
    LC_RETURN_IF_ERROR(runtime.budget.ChargeText(old_text.size() + new_text.size()));
    LC_RETURN_IF_ERROR(runtime.budget.CheckSize(out.size() + new_text.size()));
    out.AppendRange(text, copied, found);
    out.Append(new_text);
    copied = found + old_text.size();
    at = copied;
    if (count > 0) --count;
    if (!old_text.empty()) continue;
    // An empty text stands before every character and at the end.
    if (at >= text.size()) break;
    at += DecodeAt(text.text(), at).size;
  }
  out.AppendRange(text, copied, text.size());
  return MakeString(runtime, std::move(out));
}

std::vector<MarkedString> SplitLines(const MarkedString& text, bool keep_ends) {
  std::vector<MarkedString> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = DecodeAt(text.text(), at);
    size_t next = at + c.size;
    const bool ends = (c.value >= 0x0A && c.value <= 0x0D) ||
                      (c.value >= 0x1C && c.value <= 0x1E) || c.value == 0x85 ||
                      c.value == 0x2028 || c.value == 0x2029;
    if (ends) {
      if (c.value == U'\r' && next < text.size() && text.text()[next] == '\n') ++next;
      lines.push_back(text.Slice(begin, keep_ends ? next : at));
      begin = next;
    }
    at = next;
  }
  if (begin < text.size()) lines.push_back(text.Slice(begin, text.size()));
  return lines;
}

absl::StatusOr<Value> JoinTexts(Runtime& runtime, const MarkedString& separator,
                                const std::vector<Value>& items) {
  MarkedString out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) {
      LC_RETURN_IF_ERROR(runtime.budget.ChargeText(separator.size()));
      out.Append(separator);
    }
    LC_RETURN_IF_ERROR(AppendStr(runtime.budget, items[i], out));
    LC_RETURN_IF_ERROR(runtime.budget.CheckSize(out.size()));
  }
  return MakeString(runtime, std::move(out));
}

namespace {

absl::StatusOr<Value> Strip(Runtime& runtime, const Value& self, const Arguments& arguments,
                            bool left, bool right) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("strip", arguments, {"chars"}));
  if (!bound[0] || bound[0]->is_none()) {
    return StripText(runtime, self.string(), nullptr, left, right);
  }
  LC_ASSIGN_OR_RETURN(const StringPtr characters, AsString("the characters to strip", *bound[0]));
  return StripText(runtime, self.string(), characters.get(), left, right);
}

absl::StatusOr<Value> StrStrip(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return Strip(runtime, self, arguments, true, true);
}
absl::StatusOr<Value> StrLstrip(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return Strip(runtime, self, arguments, true, false);
}
absl::StatusOr<Value> StrRstrip(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return Strip(runtime, self, arguments, false, true);
}

// Splits at runs of white space; `limit` < 0: everywhere.
std::vector<Value> SplitAtSpace(const MarkedString& text, int64_t limit, bool from_right) {
  const std::string& bytes = text.text();
  std::vector<Value> parts;
  const auto is_space = [&](size_t at) { return IsSpace(DecodeAt(bytes, at).value); };
  if (from_right) {
    size_t end = bytes.size();
    while (true) {
      while (end > 0 && is_space(StartBefore(bytes, end))) end = StartBefore(bytes, end);
      if (end == 0) break;
      size_t begin = end;
      if (limit-- == 0) {
        parts.push_back(Value::String(text.Slice(0, end)));  // keeps its leading white space
        break;
      }
      while (begin > 0 && !is_space(StartBefore(bytes, begin))) begin = StartBefore(bytes, begin);
      parts.push_back(Value::String(text.Slice(begin, end)));
      end = begin;
    }
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  size_t begin = 0;
  while (true) {
    while (begin < bytes.size() && is_space(begin)) begin += DecodeAt(bytes, begin).size;
    if (begin == bytes.size()) return parts;
    size_t end = begin;
    if (limit-- == 0) {
      parts.push_back(
          Value::String(text.Slice(begin, bytes.size())));  // keeps trailing white space
      return parts;
    }
    while (end < bytes.size() && !is_space(end)) end += DecodeAt(bytes, end).size;
    parts.push_back(Value::String(text.Slice(begin, end)));
    begin = end;
  }
}

absl::StatusOr<Value> Split(Runtime& runtime, const Value& self, const Arguments& arguments,
                            bool from_right) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("split", arguments, {"sep", "maxsplit"}));
  const MarkedString& text = self.string();
  LC_RETURN_IF_ERROR(runtime.budget.ChargeText(text.size()));
  int64_t limit = -1;
  if (bound[1]) {
    LC_ASSIGN_OR_RETURN(limit, AsInteger("maxsplit", *bound[1]));
  }
  if (!bound[0] || bound[0]->is_none()) {
    // At most every second byte starts a part.
    LC_RETURN_IF_ERROR(runtime.budget.Charge(text.size() / 2));
    std::vector<Value> parts = SplitAtSpace(text, limit, from_right);
    LC_RETURN_IF_ERROR(runtime.budget.Charge(parts.size() * kStringOperations));
    return MakeSequence(runtime, std::move(parts));
  }
  LC_ASSIGN_OR_RETURN(const StringPtr separator, AsString("the separator", *bound[0]));
  if (separator->empty()) return Invalid("split needs a separator that is not empty");
  std::vector<size_t> cuts;
  for (size_t at = FindText(text.text(), separator->text(), 0); at != std::string_view::npos;
       at = FindText(text.text(), separator->text(), at + separator->size())) {
    if (!from_right && limit >= 0 && cuts.size() >= static_cast<size_t>(limit)) break;
    LC_RETURN_IF_ERROR(runtime.budget.Charge(kStringOperations));
    cuts.push_back(at);
  }
  if (from_right && limit >= 0 && cuts.size() > static_cast<size_t>(limit)) {
    cuts.erase(cuts.begin(), cuts.end() - limit);
  }
  std::vector<Value> parts;
  size_t begin = 0;
  for (const size_t cut : cuts) {
    parts.push_back(Value::String(text.Slice(begin, cut)));
    begin = cut + separator->size();
  }
  parts.push_back(Value::String(text.Slice(begin, text.size())));
  return MakeSequence(runtime, std::move(parts));
}

absl::StatusOr<Value> StrSplit(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return Split(runtime, self, arguments, false);
}
absl::StatusOr<Value> StrRsplit(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return Split(runtime, self, arguments, true);
}

absl::StatusOr<Value> StrSplitlines(Runtime& runtime, const Value& self,
                                    const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("splitlines", arguments, {"keepends"}));
  LC_RETURN_IF_ERROR(runtime.budget.ChargeText(self.text().size()));
  std::vector<Value> lines;
  for (MarkedString& line : SplitLines(self.string(), bound[0] && IsTruthy(*bound[0]))) {
    LC_RETURN_IF_ERROR(runtime.budget.Charge(kStringOperations));
    lines.push_back(Value::String(std::move(line)));
  }
  return MakeSequence(runtime, std::move(lines));
}

absl::StatusOr<Value> StrPartition(Runtime& runtime, const Value& self,
                                   const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("partition", arguments, {"sep"}, 1));
  LC_ASSIGN_OR_RETURN(const StringPtr separator, AsString("the separator", *bound[0]));
  if (separator->empty()) return Invalid("partition needs a separator that is not empty");
  const MarkedString& text = self.string();
  LC_RETURN_IF_ERROR(runtime.budget.ChargeText(text.size()));
  const size_t cut = std::min(FindText(text.text(), separator->text(), 0), text.size());
  const size_t rest = std::min(cut + separator->size(), text.size());
  return MakeSequence(runtime,
                      {Value::String(text.Slice(0, cut)), Value::String(text.Slice(cut, rest)),
                       Value::String(text.Slice(rest, text.size()))},
                      Sequence::Form::kTuple);
}

// text.startswith(x) with x a string or a tuple of strings.
absl::StatusOr<Value> HasAffix(Runtime& runtime, const Value& self, const Arguments& arguments,
                               bool at_end) {
  LC_ASSIGN_OR_RETURN(const Bound bound,
                      Bind(at_end ? "endswith" : "startswith", arguments, {"prefix"}, 1));
  std::vector<Value> affixes = {*bound[0]};
  if (bound[0]->is_sequence() && bound[0]->sequence()->form == Sequence::Form::kTuple) {
    affixes = bound[0]->sequence()->items;
  }
  const std::string_view text = self.text();
  for (const Value& affix : affixes) {
    LC_ASSIGN_OR_RETURN(const StringPtr wanted, AsString("the start or end", affix));
    LC_RETURN_IF_ERROR(runtime.budget.ChargeText(wanted->size()));
    if (at_end ? text.ends_with(wanted->text()) : text.starts_with(wanted->text())) {
      return Value::Bool(true);
    }
  }
  return Value::Bool(false);
}

absl::StatusOr<Value> StrStartswith(Runtime& runtime, const Value& self,
                                    const Arguments& arguments) {
  return HasAffix(runtime, self, arguments, false);
}
absl::StatusOr<Value> StrEndswith(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return HasAffix(runtime, self, arguments, true);
}

absl::StatusOr<Value> RemoveAffix(Runtime& runtime, const Value& self, const Arguments& arguments,
                                  bool at_end) {
  LC_ASSIGN_OR_RETURN(const Bound bound,
                      Bind(at_end ? "removesuffix" : "removeprefix", arguments, {"affix"}, 1));
  LC_ASSIGN_OR_RETURN(const StringPtr affix, AsString("the affix", *bound[0]));
  const std::string_view text = self.text();
  const bool present = at_end ? text.ends_with(affix->text()) : text.starts_with(affix->text());
  if (!present) return self;
  const size_t size = affix->size();
  return MakeString(runtime, at_end ? self.string().Slice(0, text.size() - size)
                                    : self.string().Slice(size, text.size()));
}

absl::StatusOr<Value> StrRemoveprefix(Runtime& runtime, const Value& self,
                                      const Arguments& arguments) {
  return RemoveAffix(runtime, self, arguments, false);
}
absl::StatusOr<Value> StrRemovesuffix(Runtime& runtime, const Value& self,
                                      const Arguments& arguments) {
  return RemoveAffix(runtime, self, arguments, true);
}

absl::StatusOr<Value> StrReplace(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("replace", arguments, {"old", "new", "count"}, 2));
  LC_ASSIGN_OR_RETURN(const StringPtr old_text, AsString("the text to replace", *bound[0]));
  LC_ASSIGN_OR_RETURN(const StringPtr new_text, AsString("the replacement", *bound[1]));
  int64_t count = -1;
  if (bound[2]) {
    LC_ASSIGN_OR_RETURN(count, AsInteger("count", *bound[2]));
  }
  return ReplaceText(runtime, self.string(), *old_text, *new_text, count);
}

absl::StatusOr<Value> MapCase(Runtime& runtime, const Value& self, const Arguments& arguments,
                              MarkedString (*map)(const MarkedString&)) {
  LC_RETURN_IF_ERROR(Bind("the method", arguments, {}).status());
  LC_RETURN_IF_ERROR(runtime.budget.ChargeText(self.text().size() * 4));
  return MakeString(runtime, map(self.string()));
}
absl::StatusOr<Value> StrUpper(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return MapCase(runtime, self, arguments, &ToUpper);
}
absl::StatusOr<Value> StrLower(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return MapCase(runtime, self, arguments, &ToLower);
}
absl::StatusOr<Value> StrCapitalize(Runtime& runtime, const Value& self,
                                    const Arguments& arguments) {
  return MapCase(runtime, self, arguments, &Capitalize);
}
absl::StatusOr<Value> StrTitle(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return MapCase(runtime, self, arguments, &TitleCase);
}

absl::StatusOr<Value> StrFormat(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return BraceFormat(runtime, self.string(), arguments);
}

absl::StatusOr<Value> StrJoin(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("join", arguments, {"iterable"}, 1));
  LC_ASSIGN_OR_RETURN(const std::vector<Value> items, AllItems(runtime, *bound[0]));
  for (const Value& item : items) {
    LC_RETURN_IF_ERROR(AsString("each item of join", item).status());
  }
  return JoinTexts(runtime, self.string(), items);
}

// find, rfind, index, rindex, count: positions count characters.
absl::StatusOr<Value> Find(Runtime& runtime, const Value& self, const Arguments& arguments,
                           bool from_right, bool must_exist) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("find", arguments, {"sub"}, 1));
  LC_ASSIGN_OR_RETURN(const StringPtr wanted, AsString("the text to find", *bound[0]));
  LC_RETURN_IF_ERROR(runtime.budget.ChargeText(self.text().size() * 2));
  size_t found = FindText(self.text(), wanted->text(), 0);
  if (from_right && found != std::string::npos) {
    if (wanted->empty()) {
      found = self.text().size();
    } else {
      for (size_t next = found; next != std::string::npos;
           next = FindText(self.text(), wanted->text(), next + 1)) {
        LC_RETURN_IF_ERROR(runtime.budget.ChargeText(wanted->size()));
        found = next;
      }
    }
  }
  if (found == std::string::npos) {
    if (must_exist) return Invalid("the text does not contain '", wanted->text(), "'");
    return Value::Integer(-1);
  }
  return Value::Integer(
      static_cast<Int>(CountCodePoints(std::string_view(self.text()).substr(0, found))));
}
absl::StatusOr<Value> StrFind(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return Find(runtime, self, arguments, false, false);
}
absl::StatusOr<Value> StrRfind(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return Find(runtime, self, arguments, true, false);
}
absl::StatusOr<Value> StrIndex(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return Find(runtime, self, arguments, false, true);
}

absl::StatusOr<Value> StrCount(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("count", arguments, {"sub"}, 1));
  LC_ASSIGN_OR_RETURN(const StringPtr wanted, AsString("the text to count", *bound[0]));
  LC_RETURN_IF_ERROR(runtime.budget.ChargeText(self.text().size()));
  if (wanted->empty()) {
    return Value::Integer(static_cast<Int>(CountCodePoints(self.text())) + 1);
  }
  Int count = 0;
  for (size_t at = FindText(self.text(), wanted->text(), 0); at != std::string::npos;
       at = FindText(self.text(), wanted->text(), at + wanted->size())) {
    ++count;
  }
  return Value::Integer(count);
}

// str.isX(): every character fits and there is one.
absl::StatusOr<Value> AllCharacters(Runtime& runtime, const Value& self, bool (*fits)(char32_t)) {
  LC_RETURN_IF_ERROR(runtime.budget.ChargeText(self.text().size()));
  for (size_t at = 0; at < self.text().size();) {
    const CodePoint c = DecodeAt(self.text(), at);
    if (!fits(c.value)) return Value::Bool(false);
    at += c.size;
  }
  return Value::Bool(!self.string().empty());
}
absl::StatusOr<Value> StrIsspace(Runtime& runtime, const Value& self, const Arguments&) {
  return AllCharacters(runtime, self, &IsSpace);
}
absl::StatusOr<Value> StrIsalpha(Runtime& runtime, const Value& self, const Arguments&) {
  return AllCharacters(runtime, self, &IsAlpha);
}
absl::StatusOr<Value> StrIsalnum(Runtime& runtime, const Value& self, const Arguments&) {
  return AllCharacters(runtime, self, &IsAlnum);
}
absl::StatusOr<Value> StrIsdigit(Runtime& runtime, const Value& self, const Arguments&) {
  return AllCharacters(runtime, self, [](char32_t c) { return IsAlnum(c) && !IsAlpha(c); });
}
absl::StatusOr<Value> StrIsupper(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const bool is_upper, FindTest("upper")(runtime, self, arguments));
  return Value::Bool(is_upper);
}
absl::StatusOr<Value> StrIslower(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const bool is_lower, FindTest("lower")(runtime, self, arguments));
  return Value::Bool(is_lower);
}

absl::StatusOr<Value> UnsupportedMethod(Runtime&, const Value& self, const Arguments&) {
  return Invalid("this method of a ", TypeName(self), " is not supported in a chat template");
}

struct Method {
  std::string_view name;
  Native native;
};

constexpr Method kStringMethods[] = {
    {"capitalize", &StrCapitalize},
    {"count", &StrCount},
    {"endswith", &StrEndswith},
    {"find", &StrFind},
    {"format", &StrFormat},
    {"index", &StrIndex},
    {"isalnum", &StrIsalnum},
    {"isalpha", &StrIsalpha},
    {"isdecimal", &StrIsdigit},
    {"isdigit", &StrIsdigit},
    {"islower", &StrIslower},
    {"isnumeric", &StrIsdigit},
    {"isspace", &StrIsspace},
    {"isupper", &StrIsupper},
    {"join", &StrJoin},
    {"lower", &StrLower},
    {"lstrip", &StrLstrip},
    {"partition", &StrPartition},
    {"removeprefix", &StrRemoveprefix},
    {"removesuffix", &StrRemovesuffix},
    {"replace", &StrReplace},
    {"rfind", &StrRfind},
    {"rsplit", &StrRsplit},
    {"rstrip", &StrRstrip},
    {"split", &StrSplit},
    {"splitlines", &StrSplitlines},
    {"startswith", &StrStartswith},
    {"strip", &StrStrip},
    {"title", &StrTitle},
    {"upper", &StrUpper},
};
// Exist in Python, so that `text.center is defined` holds, but no template calls them.
constexpr std::string_view kOtherStringMethods[] = {
    "casefold",     "center",      "encode",   "expandtabs", "format_map", "isascii",
    "isidentifier", "isprintable", "istitle",  "ljust",      "maketrans",  "rindex",
    "rjust",        "rpartition",  "swapcase", "translate",  "zfill",
};
}  // namespace

Native FindStringMethod(std::string_view name) {
  for (const Method& method : kStringMethods) {
    if (method.name == name) return method.native;
  }
  for (const std::string_view other : kOtherStringMethods) {
    if (other == name) return &UnsupportedMethod;
  }
  return nullptr;
}

}  // namespace layercake::model::jinja
