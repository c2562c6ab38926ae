#include "model/jinja/runtime.h"

#include <algorithm>
#include <cstdint>

#include "base/status_macros.h"
#include "model/jinja/error.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/unicode.h"

namespace layercake::model::jinja {
namespace {

absl::StatusOr<Value> MissingAttribute(const Value& object, std::string_view name) {
  return Value::Undefined(Cat("a ", TypeName(object), " has no '", name, "'"));
}

// A method of `object` as a value, or nothing.
std::optional<Value> BoundMethod(Runtime& runtime, const Value& object, std::string_view name) {
  if (IsHiddenMethod(object, name)) {
    return Value::Undefined(Cat("'", name, "' would change a ", TypeName(object),
                                ", which a chat template may not do"));
  }
  const Native native = FindMethod(object, name);
  if (native == nullptr) return std::nullopt;
  auto* method = runtime.arena.New<Function>();
  method->name = std::string(name);
  method->native = native;
  method->self = object;
  return Value::Of(method);
}

const Value* FindNamespaceAttribute(const Value& object, std::string_view name) {
  for (const auto& [key, value] : object.ns()->attributes) {
    if (key == name) return &value;
  }
  return nullptr;
}

absl::StatusOr<Value> SequenceItem(Runtime& runtime, const Value& object, Int index) {
  if (object.is_string()) {
    const std::string& text = object.text();
    LC_RETURN_IF_ERROR(runtime.budget.ChargeText(text.size()));
    if (index < 0) index += static_cast<Int>(CountCodePoints(text));
    size_t offset = 0;
    for (Int i = 0; i < index && offset < text.size(); ++i) offset += DecodeAt(text, offset).size;
    if (index < 0 || offset >= text.size()) return Value::Undefined("string index out of range");
    return MakeString(runtime, object.string().Slice(offset, offset + DecodeAt(text, offset).size));
  }
  const std::vector<Value>& items = object.sequence()->items;
  if (index < 0) index += static_cast<Int>(items.size());
  if (index < 0 || index >= static_cast<Int>(items.size())) {
    return Value::Undefined(
        Cat("a ", TypeName(object), " of ", items.size(), " has no item ", IntText(index)));
  }
  return items[static_cast<size_t>(index)];
}

// object[key] without the fallback to attributes; nothing when there is no such item.
absl::StatusOr<std::optional<Value>> FindItem(Runtime& runtime, const Value& object,
                                              const Value& key) {
  if (object.is_dict()) {
    const absl::StatusOr<std::string> encoded = EncodeKey(key);
    if (!encoded.ok()) return std::nullopt;
    LC_RETURN_IF_ERROR(runtime.budget.ChargeText(encoded->size()));
    const Value* found = object.dict()->Find(*encoded);
    if (found == nullptr) return std::nullopt;
    return *found;
  }
  const bool indexable =
      object.is_string() || (object.is_sequence() && object.sequence()->is_indexable());
  if (!indexable || !key.is_integral()) return std::nullopt;
  LC_ASSIGN_OR_RETURN(Value item, SequenceItem(runtime, object, key.integer()));
  return item;
}

}  // namespace

absl::StatusOr<Bound> Bind(std::string_view callee, const Arguments& arguments,
                           std::initializer_list<std::string_view> names, size_t required) {
  if (arguments.positional.size() > names.size()) {
    return Invalid(callee, " takes at most ", names.size(), " arguments, got ",
                   arguments.positional.size());
  }
  Bound bound(names.size());
  std::copy(arguments.positional.begin(), arguments.positional.end(), bound.begin());
  for (const auto& [name, value] : arguments.named) {
    const auto* found = std::find(names.begin(), names.end(), std::string_view(name));
    if (found == names.end()) return Invalid(callee, " takes no argument '", name, "'");
    std::optional<Value>& slot = bound[static_cast<size_t>(found - names.begin())];
    if (slot) return Invalid(callee, " got its argument '", name, "' twice");
    slot = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!bound[i]) return Invalid(callee, " needs its argument '", *(names.begin() + i), "'");
  }
  return bound;
}

absl::StatusOr<int64_t> AsInteger(std::string_view what, const Value& value) {
  if (value.is_undefined()) return Invalid(value.undefined_reason());
  if (!value.is_integral()) return Invalid(what, " must be an integer, not a ", TypeName(value));
  if (value.integer() < INT64_MIN || value.integer() > INT64_MAX) {
    return Invalid(what, " does not fit in 64 bits");
  }
  return static_cast<int64_t>(value.integer());
}

absl::StatusOr<StringPtr> AsString(std::string_view what, const Value& value) {
  if (value.is_undefined()) return Invalid(value.undefined_reason());
  if (!value.is_string()) return Invalid(what, " must be a string, not a ", TypeName(value));
  return value.string_ptr();
}

absl::StatusOr<Value> MakeString(Runtime& runtime, MarkedString text) {
  LC_RETURN_IF_ERROR(runtime.budget.ChargeString(text.size()));
  LC_RETURN_IF_ERROR(runtime.budget.Charge(kStringOperations));
  return Value::String(std::move(text));
}

absl::StatusOr<Value> MakeSequence(Runtime& runtime, std::vector<Value> items,
                                   Sequence::Form form) {
  LC_RETURN_IF_ERROR(runtime.budget.Charge(1 + 2 * items.size()));
  return runtime.arena.NewSequence(std::move(items), form);
}

bool IsIterable(const Value& value) {
  return value.is_string() || value.is_sequence() || value.is_dict() || value.is_undefined() ||
         value.kind() == Kind::kLoop;
}

absl::StatusOr<std::optional<Value>> NextItem(Runtime& runtime, const Value& iterable,
                                              size_t& position) {
  LC_RETURN_IF_ERROR(runtime.budget.Charge(1));
  switch (iterable.kind()) {
    case Kind::kUndefined:
      return std::nullopt;
    case Kind::kString: {
      const MarkedString& string = iterable.string();
      if (position >= string.size()) return std::nullopt;
      LC_RETURN_IF_ERROR(runtime.budget.Charge(kStringOperations));
      const size_t begin = position;
      position += DecodeAt(string.text(), begin).size;
      return Value::String(string.Slice(begin, position));
    }
    case Kind::kSequence: {
      Sequence& sequence = *iterable.sequence();
      size_t& next = sequence.is_generator() ? sequence.consumed : position;
      if (next >= sequence.items.size()) return std::nullopt;
      return sequence.items[next++];
    }
    case Kind::kDict:
      if (position >= iterable.dict()->entries.size()) return std::nullopt;
      return iterable.dict()->entries[position++].key;
    default:
      return Invalid("cannot iterate over a ", TypeName(iterable));
  }
}

absl::StatusOr<std::vector<Value>> AllItems(Runtime& runtime, const Value& iterable) {
  std::vector<Value> items;
  size_t position = 0;
  while (true) {
    LC_ASSIGN_OR_RETURN(std::optional<Value> item, NextItem(runtime, iterable, position));
    if (!item) return items;
    items.push_back(*std::move(item));
  }
}

absl::StatusOr<size_t> Length(Runtime& runtime, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return size_t{0};
    case Kind::kString:
      LC_RETURN_IF_ERROR(runtime.budget.ChargeText(value.text().size()));
      return CountCodePoints(value.text());
    case Kind::kDict:
      return value.dict()->entries.size();
    case Kind::kSequence:
      if (!value.sequence()->is_generator()) return value.sequence()->items.size();
      break;
    default:
      break;
  }
  return Invalid("a ", TypeName(value), " has no length",
                 value.is_sequence() ? ": turn it into a list with the filter `list` first" : "");
}

absl::StatusOr<Value> GetAttribute(Runtime& runtime, const Value& object, std::string_view name) {
  if (object.is_undefined()) return Invalid(object.undefined_reason());
  if (object.kind() == Kind::kNamespace) {
    LC_RETURN_IF_ERROR(runtime.budget.Charge(object.ns()->attributes.size() / 8));
    const Value* found = FindNamespaceAttribute(object, name);
    return found == nullptr ? MissingAttribute(object, name) : *found;
  }
  if (object.kind() == Kind::kLoop) return LoopAttribute(runtime, *object.loop(), name);
  if (std::optional<Value> method = BoundMethod(runtime, object, name)) return *std::move(method);
  if (object.is_dict()) {
    if (const Value* found = object.dict()->Find(EncodeStringKey(name))) return *found;
  }
  return MissingAttribute(object, name);
}

absl::StatusOr<Value> GetItem(Runtime& runtime, const Value& object, const Value& key) {
  if (object.is_undefined()) return Invalid(object.undefined_reason());
  LC_ASSIGN_OR_RETURN(std::optional<Value> item, FindItem(runtime, object, key));
  if (item) return *std::move(item);
  if (key.is_string()) {
    if (object.kind() == Kind::kNamespace || object.kind() == Kind::kLoop) {
      return GetAttribute(runtime, object, key.text());
    }
    if (std::optional<Value> method = BoundMethod(runtime, object, key.text())) {
      return *std::move(method);
    }
    return MissingAttribute(object, key.text());
  }
  return Value::Undefined(Cat("a ", TypeName(object), " has no such item"));
}

absl::StatusOr<Value> GetPath(Runtime& runtime, const Value& object, const Value& path) {
  if (!path.is_string()) return GetItem(runtime, object, path);
  Value value = object;
  std::string_view rest = path.text();
  while (true) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    const bool is_number = !part.empty() && part.size() < 10 &&
                           part.find_first_not_of("0123456789") == std::string_view::npos;
    const Value key = is_number ? Value::Integer(std::stoi(std::string(part)))
                                : Value::String(MarkedString(part, true));
    LC_ASSIGN_OR_RETURN(value, GetItem(runtime, value, key));
    if (dot == std::string_view::npos) return value;
    rest.remove_prefix(dot + 1);
  }
}

}  // namespace layercake::model::jinja
