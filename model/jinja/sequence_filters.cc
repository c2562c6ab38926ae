// The filters on sequences and mappings.
#include <algorithm>

#include "base/status_macros.h"
#include "model/jinja/error.h"
#include "model/jinja/filters.h"
#include "model/jinja/operators.h"
#include "model/jinja/text_functions.h"
#include "model/jinja/unicode.h"

namespace layercake::model::jinja {
namespace {

using Result = absl::StatusOr<Value>;

bool IsTrueArgument(const std::optional<Value>& argument) {
  return argument && IsTruthy(*argument);
}
bool IsGiven(const std::optional<Value>& argument) { return argument && !argument->is_none(); }

Result FirstFilter(Runtime& runtime, const Value& self, const Arguments&) {
  size_t position = 0;
  LC_ASSIGN_OR_RETURN(std::optional<Value> item, NextItem(runtime, self, position));
  return item ? *std::move(item) : Value::Undefined("there is no first item in an empty sequence");
}

absl::Status RequireReversible(const Value& value) {
  if (value.is_sequence() && value.sequence()->is_generator()) {
    return Invalid("a generator cannot be walked backwards: turn it into a list first");
  }
  return absl::OkStatus();
}

Result LastFilter(Runtime& runtime, const Value& self, const Arguments&) {
  LC_RETURN_IF_ERROR(RequireReversible(self));
  LC_ASSIGN_OR_RETURN(const std::vector<Value> items, AllItems(runtime, self));
  if (items.empty()) return Value::Undefined("there is no last item in an empty sequence");
  return items.back();
}

Result ReverseFilter(Runtime& runtime, const Value& self, const Arguments&) {
  if (self.is_string()) {
    return ApplySlice(runtime, self, Value::None(), Value::None(), Value::Integer(-1));
  }
  LC_ASSIGN_OR_RETURN(std::vector<Value> items, AllItems(runtime, self));
  std::reverse(items.begin(), items.end());
  // reversed() makes an iterator; what it cannot reverse becomes a list.
  return MakeSequence(
      runtime, std::move(items),
      RequireReversible(self).ok() ? Sequence::Form::kGenerator : Sequence::Form::kList);
}

Result ListFilter(Runtime& runtime, const Value& self, const Arguments&) {
  LC_ASSIGN_OR_RETURN(std::vector<Value> items, AllItems(runtime, self));
  return MakeSequence(runtime, std::move(items));
}

Result ItemsFilter(Runtime& runtime, const Value& self, const Arguments&) {
  std::vector<Value> items;
  if (self.is_dict()) {
    for (const Dict::Entry& entry : self.dict()->entries) {
      LC_ASSIGN_OR_RETURN(Value pair,
                          MakeSequence(runtime, {entry.key, entry.value}, Sequence::Form::kTuple));
      items.push_back(std::move(pair));
    }
  } else if (!self.is_undefined()) {
    return Invalid("items needs a mapping, not a ", TypeName(self));
  }
  return MakeSequence(runtime, std::move(items), Sequence::Form::kGenerator);
}

Result JoinFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("join", arguments, {"d", "attribute"}));
  LC_ASSIGN_OR_RETURN(const StringPtr separator,
                      Str(runtime.budget, bound[0].value_or(Value::String(MarkedString()))));
  LC_ASSIGN_OR_RETURN(std::vector<Value> items, AllItems(runtime, self));
  if (IsGiven(bound[1])) {
    for (Value& item : items) {
      LC_ASSIGN_OR_RETURN(item, GetPath(runtime, item, *bound[1]));
    }
  }
  return JoinTexts(runtime, *separator, items);
}

// Lower case for strings, the value itself otherwise.
Result IgnoreCase(Runtime& runtime, const Value& value) {
  if (!value.is_string()) return value;
  LC_RETURN_IF_ERROR(runtime.budget.ChargeText(value.text().size() * 4));
  return MakeString(runtime, ToLower(value.string()));
}

// The keys that `sort` and its like compare: the items or an attribute of each, without case.
absl::StatusOr<std::vector<Value>> SortKeys(Runtime& runtime, const std::vector<Value>& items,
                                            const std::optional<Value>& attribute,
                                            bool case_sensitive) {
  std::vector<Value> keys = items;
  for (Value& key : keys) {
    if (IsGiven(attribute)) {
      LC_ASSIGN_OR_RETURN(key, GetPath(runtime, key, *attribute));
    }
    if (!case_sensitive) {
      LC_ASSIGN_OR_RETURN(key, IgnoreCase(runtime, key));
    }
  }
  return keys;
}

// Stable order of `keys`, as indices. Merge sort, since a comparison may fail.
absl::StatusOr<std::vector<size_t>> SortedOrder(Runtime& runtime, const std::vector<Value>& keys,
                                                bool reverse) {
  std::vector<size_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::vector<size_t> merged(keys.size());
  for (size_t width = 1; width < keys.size(); width *= 2) {
    for (size_t begin = 0; begin < keys.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, keys.size());
      const size_t end = std::min(begin + 2 * width, keys.size());
      size_t left = begin;
      size_t right = middle;
      for (size_t out = begin; out < end; ++out) {
        bool takes_right = left == middle;
        if (left < middle && right < end) {
          LC_ASSIGN_OR_RETURN(const std::partial_ordering compared,
                              Compare(runtime.budget, keys[order[right]], keys[order[left]]));
          takes_right = reverse ? compared > 0 : compared < 0;
        }
        merged[out] = takes_right ? order[right++] : order[left++];
      }
    }
    order.swap(merged);
  }
  return order;
}

absl::StatusOr<std::vector<Value>> Sorted(Runtime& runtime, const std::vector<Value>& items,
                                          const std::vector<Value>& keys, bool reverse) {
  LC_ASSIGN_OR_RETURN(const std::vector<size_t> order, SortedOrder(runtime, keys, reverse));
  std::vector<Value> sorted;
  sorted.reserve(items.size());
  for (const size_t index : order) sorted.push_back(items[index]);
  return sorted;
}

// sort(attribute="a,b"): the lists of both attributes, compared in order.
absl::StatusOr<std::vector<Value>> MultiSortKeys(Runtime& runtime, const std::vector<Value>& items,
                                                 const std::string& attributes,
                                                 bool case_sensitive) {
  std::vector<std::vector<Value>> parts(items.size());
  for (size_t begin = 0; begin <= attributes.size();) {
    const size_t end = std::min(attributes.find(',', begin), attributes.size());
    const Value path = Value::String(MarkedString(attributes.substr(begin, end - begin), true));
    LC_ASSIGN_OR_RETURN(const std::vector<Value> keys,
                        SortKeys(runtime, items, path, case_sensitive));
    for (size_t i = 0; i < items.size(); ++i) parts[i].push_back(keys[i]);
    begin = end + 1;
  }
  std::vector<Value> keys;
  for (std::vector<Value>& part : parts) {
    LC_ASSIGN_OR_RETURN(Value key, MakeSequence(runtime, std::move(part)));
    keys.push_back(std::move(key));
  }
  return keys;
}

Result SortFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound,
                      Bind("sort", arguments, {"reverse", "case_sensitive", "attribute"}));
  LC_ASSIGN_OR_RETURN(const std::vector<Value> items, AllItems(runtime, self));
  const bool case_sensitive = IsTrueArgument(bound[1]);
  std::vector<Value> keys;
  if (IsGiven(bound[2]) && bound[2]->is_string() &&
      bound[2]->text().find(',') != std::string::npos) {
    LC_ASSIGN_OR_RETURN(keys, MultiSortKeys(runtime, items, bound[2]->text(), case_sensitive));
  } else {
    LC_ASSIGN_OR_RETURN(keys, SortKeys(runtime, items, bound[2], case_sensitive));
  }
  LC_ASSIGN_OR_RETURN(std::vector<Value> sorted,
                      Sorted(runtime, items, keys, IsTrueArgument(bound[0])));
  return MakeSequence(runtime, std::move(sorted));
}

Result DictSortFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound,
                      Bind("dictsort", arguments, {"case_sensitive", "by", "reverse"}));
  if (self.is_undefined()) return Invalid(self.undefined_reason());
  if (!self.is_dict()) return Invalid("dictsort needs a mapping, not a ", TypeName(self));
  std::string by = "key";
  if (bound[1]) {
    LC_ASSIGN_OR_RETURN(const StringPtr name, AsString("by", *bound[1]));
    by = name->text();
  }
  if (by != "key" && by != "value") return Invalid("dictsort sorts by \"key\" or by \"value\"");
  std::vector<Value> items;
  std::vector<Value> keys;
  for (const Dict::Entry& entry : self.dict()->entries) {
    LC_ASSIGN_OR_RETURN(Value pair,
                        MakeSequence(runtime, {entry.key, entry.value}, Sequence::Form::kTuple));
    items.push_back(std::move(pair));
    keys.push_back(by == "key" ? entry.key : entry.value);
  }
  LC_ASSIGN_OR_RETURN(keys, SortKeys(runtime, keys, std::nullopt, IsTrueArgument(bound[0])));
  LC_ASSIGN_OR_RETURN(std::vector<Value> sorted,
                      Sorted(runtime, items, keys, IsTrueArgument(bound[2])));
  return MakeSequence(runtime, std::move(sorted));
}

Result UniqueFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound,
                      Bind("unique", arguments, {"case_sensitive", "attribute"}));
  LC_ASSIGN_OR_RETURN(const std::vector<Value> items, AllItems(runtime, self));
  LC_ASSIGN_OR_RETURN(const std::vector<Value> keys,
                      SortKeys(runtime, items, bound[1], IsTrueArgument(bound[0])));
  Dict seen;
  std::vector<Value> unique;
  for (size_t i = 0; i < items.size(); ++i) {
    LC_ASSIGN_OR_RETURN(std::string key, EncodeKey(keys[i]));
    LC_RETURN_IF_ERROR(runtime.budget.ChargeText(key.size()));
    if (seen.Find(key) != nullptr) continue;
    seen.Set(std::move(key), Value::None(), Value::None());
    unique.push_back(items[i]);
  }
  return MakeSequence(runtime, std::move(unique), Sequence::Form::kGenerator);
}

Result Extreme(Runtime& runtime, const Value& self, const Arguments& arguments, bool wants_max) {
  LC_ASSIGN_OR_RETURN(const Bound bound,
                      Bind(wants_max ? "max" : "min", arguments, {"case_sensitive", "attribute"}));
  LC_ASSIGN_OR_RETURN(const std::vector<Value> items, AllItems(runtime, self));
  if (items.empty()) return Value::Undefined("there is no smallest or largest of no items");
  LC_ASSIGN_OR_RETURN(const std::vector<Value> keys,
                      SortKeys(runtime, items, bound[1], IsTrueArgument(bound[0])));
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    LC_ASSIGN_OR_RETURN(const std::partial_ordering order,
                        Compare(runtime.budget, keys[i], keys[best]));
    if (wants_max ? order > 0 : order < 0) best = i;
  }
  return items[best];
}
Result MinFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return Extreme(runtime, self, arguments, false);
}
Result MaxFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return Extreme(runtime, self, arguments, true);
}

Result SumFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Bound bound, Bind("sum", arguments, {"attribute", "start"}));
  LC_ASSIGN_OR_RETURN(const std::vector<Value> items, AllItems(runtime, self));
  Value sum = bound[1].value_or(Value::Integer(0));
  if (sum.is_string()) return Invalid("sum does not add strings: use join");
  for (Value item : items) {
    if (IsGiven(bound[0])) {
      LC_ASSIGN_OR_RETURN(item, GetPath(runtime, item, *bound[0]));
    }
    LC_ASSIGN_OR_RETURN(sum, ApplyBinary(runtime, BinaryOperator::kAdd, sum, item));
  }
  return sum;
}

// map(attribute="a.b", default=x), or map("filter", arguments...).
Result MapFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  // Of anything false (none, 0, "") nothing is mapped, as in Jinja.
  if (!IsTruthy(self)) return MakeSequence(runtime, {}, Sequence::Form::kGenerator);
  LC_ASSIGN_OR_RETURN(std::vector<Value> items, AllItems(runtime, self));
  if (arguments.positional.empty()) {
    LC_ASSIGN_OR_RETURN(const Bound bound, Bind("map", arguments, {"attribute", "default"}));
    if (!bound[0]) return Invalid("map needs an attribute or the name of a filter");
    for (Value& item : items) {
      LC_ASSIGN_OR_RETURN(item, GetPath(runtime, item, *bound[0]));
      if (item.is_undefined() && IsGiven(bound[1])) item = *bound[1];
    }
    return MakeSequence(runtime, std::move(items), Sequence::Form::kGenerator);
  }
  LC_ASSIGN_OR_RETURN(const StringPtr name, AsString("the filter", arguments.positional[0]));
  const Native filter = FindFilter(name->text());
  if (filter == nullptr) return Invalid("there is no filter '", name->text(), "'");
  // map("map", "map", …) recurses once for each argument.
  constexpr size_t kMaxArguments = 16;
  if (arguments.positional.size() > kMaxArguments) {
    return Invalid("map takes at most ", kMaxArguments, " arguments");
  }
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin());
  for (Value& item : items) {
    LC_ASSIGN_OR_RETURN(item, filter(runtime, item, rest));
  }
  return MakeSequence(runtime, std::move(items), Sequence::Form::kGenerator);
}

// select, reject, selectattr, rejectattr.
Result Choose(Runtime& runtime, const Value& self, const Arguments& arguments, bool by_attribute,
              bool wanted) {
  std::vector<Value> chosen;
  if (IsTruthy(self)) {
    LC_ASSIGN_OR_RETURN(const std::vector<Value> items, AllItems(runtime, self));
    Arguments rest = arguments;
    std::optional<Value> attribute;
    if (by_attribute) {
      if (rest.positional.empty()) return Invalid("selectattr and rejectattr need an attribute");
      attribute = rest.positional.front();
      rest.positional.erase(rest.positional.begin());
    }
    Test test = nullptr;
    if (!rest.positional.empty()) {
      LC_ASSIGN_OR_RETURN(const StringPtr name, AsString("the test", rest.positional.front()));
      test = FindTest(name->text());
      if (test == nullptr) return Invalid("there is no test '", name->text(), "'");
      rest.positional.erase(rest.positional.begin());
    }
    for (const Value& item : items) {
      Value tested = item;
      if (attribute) {
        LC_ASSIGN_OR_RETURN(tested, GetPath(runtime, item, *attribute));
      }
      bool holds = IsTruthy(tested);
      if (test != nullptr) {
        LC_ASSIGN_OR_RETURN(holds, test(runtime, tested, rest));
      }
      if (holds == wanted) chosen.push_back(item);
    }
  }
  return MakeSequence(runtime, std::move(chosen), Sequence::Form::kGenerator);
}
Result SelectFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return Choose(runtime, self, arguments, false, true);
}
Result RejectFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return Choose(runtime, self, arguments, false, false);
}
Result SelectAttrFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return Choose(runtime, self, arguments, true, true);
}
Result RejectAttrFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return Choose(runtime, self, arguments, true, false);
}

constexpr NamedFilter kFilters[] = {
    {"dictsort", &DictSortFilter},
    {"first", &PlainFilter<&FirstFilter>},
    {"items", &PlainFilter<&ItemsFilter>},
    {"join", &JoinFilter},
    {"last", &PlainFilter<&LastFilter>},
    {"list", &PlainFilter<&ListFilter>},
    {"map", &MapFilter},
    {"max", &MaxFilter},
    {"min", &MinFilter},
    {"reject", &RejectFilter},
    {"rejectattr", &RejectAttrFilter},
    {"reverse", &PlainFilter<&ReverseFilter>},
    {"select", &SelectFilter},
    {"selectattr", &SelectAttrFilter},
    {"sort", &SortFilter},
    {"sum", &SumFilter},
    {"unique", &UniqueFilter},
};

}  // namespace

Native FindSequenceFilter(std::string_view name) {
  for (const NamedFilter& filter : kFilters) {
    if (filter.name == name) return filter.native;
  }
  return nullptr;
}

}  // namespace layercake::model::jinja
