#include "model/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "model/jinja/error.h"

namespace layercake::model::jinja {
namespace {

// Below this many entries a walk is faster than a hash table.
constexpr size_t kIndexedDictSize = 8;

absl::Status TooDeep() { return Invalid("a value nests deeper than ", kMaxValueDepth, " levels"); }

absl::StatusOr<bool> SequencesEqual(Budget& budget, const Sequence& a, const Sequence& b,
                                    int depth) {
  if (&a == &b) return true;
  if (a.form != b.form || !a.is_indexable() || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    LC_ASSIGN_OR_RETURN(const bool equal, Equals(budget, a.items[i], b.items[i], depth + 1));
    if (!equal) return false;
  }
  return true;
}

absl::StatusOr<bool> DictsEqual(Budget& budget, const Dict& a, const Dict& b, int depth) {
  if (&a == &b) return true;
  if (a.entries.size() != b.entries.size()) return false;
  for (const Dict::Entry& entry : a.entries) {
    const Value* other = b.Find(entry.encoded_key);
    if (other == nullptr) return false;
    LC_ASSIGN_OR_RETURN(const bool equal, Equals(budget, entry.value, *other, depth + 1));
    if (!equal) return false;
  }
  return true;
}

}  // namespace

Value Value::Undefined(std::string why) {
  return Value(
      Storage(std::in_place_index<0>, std::make_shared<const std::string>(std::move(why))));
}

std::string Value::undefined_reason() const {
  const auto& reason = std::get<0>(storage_);
  return reason == nullptr ? "the value is undefined" : *reason;
}

const Value* Dict::Find(std::string_view encoded_key) const {
  if (!index.empty()) {
    const auto found = index.find(std::string(encoded_key));
    return found == index.end() ? nullptr : &entries[found->second].value;
  }
  for (const Entry& entry : entries) {
    if (entry.encoded_key == encoded_key) return &entry.value;
  }
  return nullptr;
}

void Dict::Set(std::string encoded_key, Value key, Value value) {
  if (const Value* present = Find(encoded_key)) {
    *const_cast<Value*>(present) = std::move(value);
    return;
  }
  entries.push_back({std::move(encoded_key), std::move(key), std::move(value)});
  if (entries.size() == kIndexedDictSize + 1) {
    for (size_t i = 0; i < entries.size(); ++i) index.emplace(entries[i].encoded_key, i);
  } else if (entries.size() > kIndexedDictSize) {
    index.emplace(entries.back().encoded_key, entries.size() - 1);
  }
}

Value Arena::NewSequence(std::vector<Value> items, Sequence::Form form) {
  auto* sequence = New<Sequence>();
  sequence->items = std::move(items);
  sequence->form = form;
  return Value::Of(sequence);
}

std::string_view TypeName(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "undefined";
    case Kind::kNone:
      return "none";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kSequence:
      switch (value.sequence()->form) {
        case Sequence::Form::kList:
          return "list";
        case Sequence::Form::kTuple:
          return "tuple";
        case Sequence::Form::kRange:
          return "range";
        case Sequence::Form::kGenerator:
          return "generator";
        default:
          return "dict view";
      }
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "namespace";
    case Kind::kLoop:
      return "loop";
    case Kind::kFunction:
      return "function";
  }
  return "value";
}

bool IsTruthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.boolean();
    case Kind::kInt:
      return value.integer() != 0;
    case Kind::kFloat:
      return value.number() != 0.0;
    case Kind::kString:
      return !value.string().empty();
    case Kind::kSequence:
      // A generator does not know whether it has anything, so Python takes it for true.
      return value.sequence()->is_generator() || !value.sequence()->items.empty();
    case Kind::kDict:
      return !value.dict()->entries.empty();
    case Kind::kNamespace:
    case Kind::kLoop:
    case Kind::kFunction:
      return true;
  }
  return true;
}

absl::StatusOr<bool> Equals(Budget& budget, const Value& a, const Value& b, int depth) {
  if (depth > kMaxValueDepth) return TooDeep();
  LC_RETURN_IF_ERROR(budget.Charge(1));
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return a.number() == b.number();
    return a.integer() == b.integer();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      LC_RETURN_IF_ERROR(budget.ChargeText(std::min(a.text().size(), b.text().size())));
      return a.text() == b.text();
    case Kind::kSequence:
      return SequencesEqual(budget, *a.sequence(), *b.sequence(), depth);
    case Kind::kDict:
      return DictsEqual(budget, *a.dict(), *b.dict(), depth);
    case Kind::kNamespace:
      return a.ns() == b.ns();
    case Kind::kLoop:
      return a.loop() == b.loop();
    default:
      return a.function() == b.function();
  }
}

absl::StatusOr<std::partial_ordering> Compare(Budget& budget, const Value& a, const Value& b,
                                              int depth) {
  if (depth > kMaxValueDepth) return TooDeep();
  LC_RETURN_IF_ERROR(budget.Charge(1));
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return a.number() <=> b.number();
    return a.integer() <=> b.integer();
  }
  if (a.is_string() && b.is_string()) {
    LC_RETURN_IF_ERROR(budget.ChargeText(std::min(a.text().size(), b.text().size())));
    // Byte order of UTF-8 is code point order.
    return a.text().compare(b.text()) <=> 0;
  }
  if (a.is_sequence() && b.is_sequence() && a.sequence()->form == b.sequence()->form &&
      (a.sequence()->form == Sequence::Form::kList ||
       a.sequence()->form == Sequence::Form::kTuple)) {
    const std::vector<Value>& left = a.sequence()->items;
    const std::vector<Value>& right = b.sequence()->items;
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      LC_ASSIGN_OR_RETURN(const bool equal, Equals(budget, left[i], right[i], depth + 1));
      if (!equal) return Compare(budget, left[i], right[i], depth + 1);
    }
    return left.size() <=> right.size();
  }
  for (const Value* side : {&a, &b}) {
    if (side->is_undefined()) return absl::InvalidArgumentError(side->undefined_reason());
  }
  return Invalid("cannot order ", TypeName(a), " and ", TypeName(b));
}

std::string EncodeStringKey(std::string_view key) { return Cat("s", key); }

absl::StatusOr<std::string> EncodeKey(const Value& key, int depth) {
  if (depth > kMaxValueDepth) return TooDeep();
  switch (key.kind()) {
    case Kind::kString:
      return EncodeStringKey(key.text());
    case Kind::kBool:
    case Kind::kInt:
      return Cat("i", IntText(key.integer()));
    case Kind::kFloat: {
      const double number = key.number();
      if (std::trunc(number) == number && std::abs(number) < 1e15) {
        return Cat("i", static_cast<int64_t>(number));
      }
      return Cat("f", FloatText(number));
    }
    case Kind::kNone:
      return "n";
    case Kind::kUndefined:
      return "u";
    case Kind::kSequence: {
      if (key.sequence()->form != Sequence::Form::kTuple) break;
      std::string encoded = "t";
      for (const Value& item : key.sequence()->items) {
        LC_ASSIGN_OR_RETURN(const std::string part, EncodeKey(item, depth + 1));
        encoded += Cat(part.size(), ":", part);
      }
      return encoded;
    }
    default:
      break;
  }
  return Invalid("a ", TypeName(key), " cannot be a dict key");
}

absl::StatusOr<Value> FromJson(Budget& budget, Arena& arena, const nlohmann::ordered_json& json,
                               bool trusted, int depth) {
  if (depth > kMaxValueDepth) return TooDeep();
  LC_RETURN_IF_ERROR(budget.Charge(1));
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer:
      return Value::Integer(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_unsigned:
      return Value::Integer(json.get<uint64_t>());
    case nlohmann::ordered_json::value_t::number_float:
      return Value::Float(json.get<double>());
    case nlohmann::ordered_json::value_t::string: {
      const auto& text = json.get_ref<const std::string&>();
      LC_RETURN_IF_ERROR(budget.ChargeString(text.size()));
      LC_RETURN_IF_ERROR(budget.Charge(kStringOperations));
      return Value::String(MarkedString(text, trusted));
    }
    case nlohmann::ordered_json::value_t::array: {
      auto* list = arena.New<Sequence>();
      list->frozen = true;
      list->items.reserve(json.size());
      for (const auto& item : json) {
        LC_ASSIGN_OR_RETURN(Value value, FromJson(budget, arena, item, trusted, depth + 1));
        list->items.push_back(std::move(value));
      }
      return Value::Of(list);
    }
    case nlohmann::ordered_json::value_t::object: {
      auto* dict = arena.New<Dict>();
      for (const auto& [key, item] : json.items()) {
        LC_ASSIGN_OR_RETURN(Value value, FromJson(budget, arena, item, trusted, depth + 1));
        LC_RETURN_IF_ERROR(budget.ChargeString(key.size()));
        LC_RETURN_IF_ERROR(budget.Charge(2 * kStringOperations));
        dict->Set(EncodeStringKey(key), Value::String(MarkedString(key, trusted)),
                  std::move(value));
      }
      return Value::Of(dict);
    }
    default:
      return Value::None();
  }
}

}  // namespace layercake::model::jinja
