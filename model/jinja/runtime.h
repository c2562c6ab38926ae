// What the built-in filters, tests, methods and functions share: the budget and arena of one
// rendering, call arguments, iteration and subscription. One rendering, one thread.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "model/jinja/budget.h"
#include "model/jinja/template.h"
#include "model/jinja/value.h"

namespace layercake::model::jinja {

struct Runtime {
  Budget& budget;
  Arena& arena;
  const RenderOptions& options;
};

// Evaluated call arguments.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// A built-in. `self` is the filtered value, the object of a method, or undefined for a function.
using Native = absl::StatusOr<Value> (*)(Runtime& runtime, const Value& self,
                                         const Arguments& arguments);
using Test = absl::StatusOr<bool> (*)(Runtime& runtime, const Value& value,
                                      const Arguments& arguments);

struct MacroDefinition;
class Scope;

// Something that can be called: a built-in with its object, or a macro with the scope it was
// defined in.
struct Function : Object {
  std::string name;
  Native native = nullptr;
  Value self;
  const MacroDefinition* macro = nullptr;
  Scope* scope = nullptr;
};

// Null when there is none of that name.
Native FindFilter(std::string_view name);
Test FindTest(std::string_view name);
// A method of `object`, or null.
Native FindMethod(const Value& object, std::string_view name);
// True for the methods that would change `object` and that Python's sandbox therefore hides.
bool IsHiddenMethod(const Value& object, std::string_view name);
// range, dict, namespace, raise_exception, strftime_now; or null.
Native FindFunction(std::string_view name);

// Arguments in the order of `names`, as Python binds them; missing ones are empty.
// InvalidArgument for too many, unknown or doubled ones, and for a missing one of the first
// `required`.
using Bound = std::vector<std::optional<Value>>;
absl::StatusOr<Bound> Bind(std::string_view callee, const Arguments& arguments,
                           std::initializer_list<std::string_view> names, size_t required = 0);

// The integer in `value`, for counts, widths and the like; fits in 63 bits.
absl::StatusOr<int64_t> AsInteger(std::string_view what, const Value& value);
absl::StatusOr<StringPtr> AsString(std::string_view what, const Value& value);

// A string value, paid for.
absl::StatusOr<Value> MakeString(Runtime& runtime, MarkedString text);
// A sequence value, paid for.
absl::StatusOr<Value> MakeSequence(Runtime& runtime, std::vector<Value> items,
                                   Sequence::Form form = Sequence::Form::kList);

// The item at `position` of an iteration over `iterable` (strings: characters; dicts: keys;
// generators are consumed), or nothing at its end. `position` belongs to this iteration and starts
// at 0. InvalidArgument when the value cannot be iterated.
absl::StatusOr<std::optional<Value>> NextItem(Runtime& runtime, const Value& iterable,
                                              size_t& position);
absl::StatusOr<std::vector<Value>> AllItems(Runtime& runtime, const Value& iterable);
bool IsIterable(const Value& value);
// len(value); InvalidArgument when it has none.
absl::StatusOr<size_t> Length(Runtime& runtime, const Value& value);

// object.name and object[key] with Jinja's order: the dot prefers attributes (methods), the
// brackets prefer items. What is missing is undefined; anything asked of an undefined object is an
// error.
absl::StatusOr<Value> GetAttribute(Runtime& runtime, const Value& object, std::string_view name);
absl::StatusOr<Value> GetItem(Runtime& runtime, const Value& object, const Value& key);
// A dotted path as the filters' `attribute` arguments have it: "function.name" or 0.
absl::StatusOr<Value> GetPath(Runtime& runtime, const Value& object, const Value& path);

}  // namespace layercake::model::jinja
