// The methods of Python's list, tuple and dict that templates call.
#include <algorithm>
#include <iterator>

#include "base/status_macros.h"
#include "model/jinja/error.h"
#include "model/jinja/runtime.h"
#include "model/jinja/text_functions.h"

namespace layercake::model::jinja {
namespace {

absl::Status RequireOwnList(const Value& self, std::string_view method) {
  if (!self.sequence()->frozen) return absl::OkStatus();
  return Invalid(method, ": this list belongs to the input, which a template may not change");
}

absl::StatusOr<Value> ListAppend(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("append", arguments, {"object"}, 1));
  LC_RETURN_IF_ERROR(RequireOwnList(self, "append"));
  LC_RETURN_IF_ERROR(runtime.budget.Charge(4));
  self.sequence()->items.push_back(*bound[0]);
  return Value::None();
}

absl::StatusOr<Value> ListExtend(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("extend", arguments, {"iterable"}, 1));
  LC_RETURN_IF_ERROR(RequireOwnList(self, "extend"));
  LC_ASSIGN_OR_RETURN(const std::vector<Value> items, AllItems(runtime, *bound[0]));
  LC_RETURN_IF_ERROR(runtime.budget.Charge(4 * items.size()));
  self.sequence()->items.insert(self.sequence()->items.end(), items.begin(), items.end());
  return Value::None();
}

absl::StatusOr<Value> ListInsert(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("insert", arguments, {"index", "object"}, 2));
  LC_RETURN_IF_ERROR(RequireOwnList(self, "insert"));
  LC_ASSIGN_OR_RETURN(int64_t index, AsInteger("index", *bound[0]));
  std::vector<Value>& items = self.sequence()->items;
  LC_RETURN_IF_ERROR(runtime.budget.Charge(1 + items.size() / 4));
  const auto size = static_cast<int64_t>(items.size());
  if (index < 0) index = std::max<int64_t>(index + size, 0);
  items.insert(items.begin() + std::min(index, size), *bound[1]);
  return Value::None();
}

absl::StatusOr<Value> ListPop(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("pop", arguments, {"index"}));
  LC_RETURN_IF_ERROR(RequireOwnList(self, "pop"));
  std::vector<Value>& items = self.sequence()->items;
  LC_RETURN_IF_ERROR(runtime.budget.Charge(1 + items.size() / 4));
  const auto size = static_cast<int64_t>(items.size());
  int64_t index = -1;
  if (bound[0]) {
    LC_ASSIGN_OR_RETURN(index, AsInteger("index", *bound[0]));
  }
  if (index < 0) index += size;
  if (index < 0 || index >= size) return Invalid("pop: a list of ", size, " has no such item");
  Value item = items[static_cast<size_t>(index)];
  items.erase(items.begin() + index);
  return item;
}

absl::StatusOr<Value> ListIndex(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("index", arguments, {"value"}, 1));
  const std::vector<Value>& items = self.sequence()->items;
  for (size_t i = 0; i < items.size(); ++i) {
    LC_ASSIGN_OR_RETURN(const bool equal, Equals(runtime.budget, items[i], *bound[0]));
    if (equal) return Value::Integer(static_cast<Int>(i));
  }
  return Invalid("index: the value is not in the list");
}

absl::StatusOr<Value> ListCount(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("count", arguments, {"value"}, 1));
  Int count = 0;
  for (const Value& item : self.sequence()->items) {
    LC_ASSIGN_OR_RETURN(const bool equal, Equals(runtime.budget, item, *bound[0]));
    if (equal) ++count;
  }
  return Value::Integer(count);
}

absl::StatusOr<Value> DictGet(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("get", arguments, {"key", "default"}, 1));
  LC_ASSIGN_OR_RETURN(const std::string key, EncodeKey(*bound[0]));
  LC_RETURN_IF_ERROR(runtime.budget.ChargeText(key.size()));
  if (const Value* found = self.dict()->Find(key)) return *found;
  return bound[1].value_or(Value::None());
}

absl::StatusOr<Value> View(Runtime& runtime, const Value& self, const Arguments& arguments,
                           Sequence::Form form) {
  LC_RETURN_IF_ERROR(Bind("the method", arguments, {}).status());
  std::vector<Value> items;
  for (const Dict::Entry& entry : self.dict()->entries) {
    if (form == Sequence::Form::kItemsView) {
      LC_ASSIGN_OR_RETURN(Value pair,
                          MakeSequence(runtime, {entry.key, entry.value}, Sequence::Form::kTuple));
      items.push_back(std::move(pair));
    } else {
      items.push_back(form == Sequence::Form::kKeysView ? entry.key : entry.value);
    }
  }
  return MakeSequence(runtime, std::move(items), form);
}
absl::StatusOr<Value> DictItems(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return View(runtime, self, arguments, Sequence::Form::kItemsView);
}
absl::StatusOr<Value> DictKeys(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return View(runtime, self, arguments, Sequence::Form::kKeysView);
}
absl::StatusOr<Value> DictValues(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return View(runtime, self, arguments, Sequence::Form::kValuesView);
}
absl::StatusOr<Value> DictCopy(Runtime&, const Value& self, const Arguments& arguments) {
  LC_RETURN_IF_ERROR(Bind("copy", arguments, {}).status());
  return self;  // a dict never changes here, so it is its own copy
}

absl::StatusOr<Value> UnsupportedMethod(Runtime&, const Value& self, const Arguments&) {
  return Invalid("this method of a ", TypeName(self), " is not supported in a chat template");
}

struct Method {
  std::string_view name;
  Native native;
};

constexpr Method kListMethods[] = {
    {"append", &ListAppend}, {"copy", &UnsupportedMethod}, {"count", &ListCount},
    {"extend", &ListExtend}, {"index", &ListIndex},        {"insert", &ListInsert},
    {"pop", &ListPop},
};
constexpr Method kTupleMethods[] = {{"count", &ListCount}, {"index", &ListIndex}};
constexpr Method kDictMethods[] = {
    {"copy", &DictCopy}, {"fromkeys", &UnsupportedMethod}, {"get", &DictGet}, {"items", &DictItems},
    {"keys", &DictKeys}, {"values", &DictValues},
};

template <size_t kSize>
Native Lookup(const Method (&methods)[kSize], std::string_view name) {
  for (const Method& method : methods) {
    if (method.name == name) return method.native;
  }
  return nullptr;
}

}  // namespace

Native FindMethod(const Value& object, std::string_view name) {
  switch (object.kind()) {
    case Kind::kString:
      return FindStringMethod(name);
    case Kind::kDict:
      return Lookup(kDictMethods, name);
    case Kind::kSequence:
      if (object.sequence()->form == Sequence::Form::kList) return Lookup(kListMethods, name);
      if (object.sequence()->form == Sequence::Form::kTuple) return Lookup(kTupleMethods, name);
      return nullptr;
    default:
      return nullptr;
  }
}

bool IsHiddenMethod(const Value& object, std::string_view name) {
  constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  constexpr std::string_view kList[] = {"clear", "remove", "reverse", "sort"};
  constexpr std::string_view kOwnListOnly[] = {"append", "extend", "insert", "pop"};
  const auto has = [name](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  if (object.is_dict()) return has(kDict);
  if (!object.is_sequence() || object.sequence()->form != Sequence::Form::kList) return false;
  return has(kList) || (object.sequence()->frozen && has(kOwnListOnly));
}

}  // namespace layercake::model::jinja
