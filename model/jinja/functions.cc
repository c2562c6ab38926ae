// The global functions: range, dict, namespace, raise_exception, strftime_now.
#include <algorithm>

#include "base/status_macros.h"
#include "model/jinja/error.h"
#include "model/jinja/format.h"
#include "model/jinja/runtime.h"

namespace layercake::model::jinja {
namespace {

// As in Jinja's sandbox.
constexpr int64_t kMaxRange = 100'000;

absl::StatusOr<Value> Range(Runtime& runtime, const Value&, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("range", arguments, {"start", "stop", "step"}, 1));
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;
  LC_ASSIGN_OR_RETURN(stop, AsInteger("range", *bound[0]));
  if (bound[1]) {
    start = stop;
    LC_ASSIGN_OR_RETURN(stop, AsInteger("range", *bound[1]));
  }
  if (bound[2]) {
    LC_ASSIGN_OR_RETURN(step, AsInteger("range", *bound[2]));
  }
  if (step == 0) return Invalid("a range step cannot be zero");
  std::vector<Value> items;
  for (Int at = start; step > 0 ? at < stop : at > stop; at += step) {
    if (items.size() == kMaxRange) return Invalid("a range has more than ", kMaxRange, " items");
    items.push_back(Value::Integer(at));
  }
  return MakeSequence(runtime, std::move(items), Sequence::Form::kRange);
}

// The pairs of dict(mapping_or_pairs, name=value, ...).
absl::StatusOr<Dict*> BuildDict(Runtime& runtime, const Arguments& arguments) {
  if (arguments.positional.size() > 1) return Invalid("dict takes one positional argument");
  auto* dict = runtime.arena.New<Dict>();
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.is_dict()) {
      LC_RETURN_IF_ERROR(runtime.budget.Charge(source.dict()->entries.size()));
      *dict = *source.dict();
    } else {
      LC_ASSIGN_OR_RETURN(const std::vector<Value> pairs, AllItems(runtime, source));
      for (const Value& pair : pairs) {
        LC_ASSIGN_OR_RETURN(const std::vector<Value> parts, AllItems(runtime, pair));
        if (parts.size() != 2) return Invalid("dict needs pairs of key and value");
        LC_ASSIGN_OR_RETURN(std::string key, EncodeKey(parts[0]));
        dict->Set(std::move(key), parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) {
    LC_RETURN_IF_ERROR(runtime.budget.Charge(1));
    dict->Set(EncodeStringKey(name), Value::String(MarkedString(name, true)), value);
  }
  return dict;
}

absl::StatusOr<Value> MakeDict(Runtime& runtime, const Value&, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(Dict * dict, BuildDict(runtime, arguments));
  return Value::Of(dict);
}

absl::StatusOr<Value> MakeNamespace(Runtime& runtime, const Value&, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Dict* dict, BuildDict(runtime, arguments));
  auto* ns = runtime.arena.New<Namespace>();
  for (const Dict::Entry& entry : dict->entries) {
    if (!entry.key.is_string()) return Invalid("a namespace needs names that are strings");
    ns->attributes.emplace_back(entry.key.text(), entry.value);
  }
  return Value::Of(ns);
}

absl::StatusOr<Value> RaiseException(Runtime& runtime, const Value&, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("raise_exception", arguments, {"message"}, 1));
  LC_ASSIGN_OR_RETURN(const StringPtr message, Str(runtime.budget, *bound[0]));
  return Invalid("the chat template refuses this input: ", message->text());
}

absl::StatusOr<Value> StrftimeNow(Runtime& runtime, const Value&, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("strftime_now", arguments, {"format"}, 1));
  LC_ASSIGN_OR_RETURN(const StringPtr format, AsString("the time format", *bound[0]));
  LC_ASSIGN_OR_RETURN(const std::string text, FormatLocalTime(format->text(), runtime.options.now,
                                                              runtime.options.timezone));
  return MakeString(runtime, MarkedString(text, true));
}

}  // namespace

Native FindFunction(std::string_view name) {
  if (name == "range") return &Range;
  if (name == "dict") return &MakeDict;
  if (name == "namespace") return &MakeNamespace;
  if (name == "raise_exception") return &RaiseException;
  if (name == "strftime_now") return &StrftimeNow;
  return nullptr;
}

}  // namespace layercake::model::jinja
