// The tests behind `is`.
#include "base/status_macros.h"
#include "model/jinja/error.h"
#include "model/jinja/operators.h"
#include "model/jinja/runtime.h"
#include "model/jinja/unicode.h"

namespace layercake::model::jinja {
namespace {

using Result = absl::StatusOr<bool>;

absl::StatusOr<Value> OneArgument(std::string_view test, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(Bound bound, Bind(test, arguments, {"other"}, 1));
  return *std::move(bound[0]);
}

Result IsRemainder(Runtime& runtime, const Value& value, const Value& divisor, Int remainder) {
  LC_ASSIGN_OR_RETURN(const Value rest,
                      ApplyBinary(runtime, BinaryOperator::kModulo, value, divisor));
  return Equals(runtime.budget, rest, Value::Integer(remainder));
}

Result IsOdd(Runtime& runtime, const Value& value, const Arguments&) {
  return IsRemainder(runtime, value, Value::Integer(2), 1);
}
Result IsEven(Runtime& runtime, const Value& value, const Arguments&) {
  return IsRemainder(runtime, value, Value::Integer(2), 0);
}
Result IsDivisibleBy(Runtime& runtime, const Value& value, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Value divisor, OneArgument("divisibleby", arguments));
  return IsRemainder(runtime, value, divisor, 0);
}

Result IsDefined(Runtime&, const Value& value, const Arguments&) { return !value.is_undefined(); }
Result IsUndefined(Runtime&, const Value& value, const Arguments&) { return value.is_undefined(); }
Result IsNone(Runtime&, const Value& value, const Arguments&) { return value.is_none(); }
Result IsBoolean(Runtime&, const Value& value, const Arguments&) { return value.is_bool(); }
Result IsTrue(Runtime&, const Value& value, const Arguments&) {
  return value.is_bool() && value.boolean();
}
Result IsFalse(Runtime&, const Value& value, const Arguments&) {
  return value.is_bool() && !value.boolean();
}
Result IsInteger(Runtime&, const Value& value, const Arguments&) { return value.is_int(); }
Result IsFloat(Runtime&, const Value& value, const Arguments&) { return value.is_float(); }
Result IsNumber(Runtime&, const Value& value, const Arguments&) { return value.is_number(); }
Result IsString(Runtime&, const Value& value, const Arguments&) { return value.is_string(); }
Result IsMapping(Runtime&, const Value& value, const Arguments&) { return value.is_dict(); }
Result IsIterableTest(Runtime&, const Value& value, const Arguments&) { return IsIterable(value); }
// Python asks for a length and for subscripts; undefined values have both.
Result IsSequence(Runtime&, const Value& value, const Arguments&) {
  return value.is_string() || value.is_dict() || value.is_undefined() ||
         (value.is_sequence() && value.sequence()->is_indexable());
}
Result IsCallable(Runtime&, const Value& value, const Arguments&) {
  return value.kind() == Kind::kFunction || value.kind() == Kind::kLoop || value.is_undefined();
}
Result IsEscaped(Runtime&, const Value& value, const Arguments&) {
  return value.is_string() && value.string().markup();
}

Result HasCase(Runtime& runtime, const Value& value, bool (*wanted)(char32_t),
               bool (*other)(char32_t)) {
  LC_ASSIGN_OR_RETURN(const StringPtr text, Str(runtime.budget, value));
  LC_RETURN_IF_ERROR(runtime.budget.ChargeText(text->size()));
  bool found = false;
  for (size_t at = 0; at < text->size();) {
    const CodePoint c = DecodeAt(text->text(), at);
    if (other(c.value)) return false;
    found |= wanted(c.value);
    at += c.size;
  }
  return found;
}
Result IsLowerTest(Runtime& runtime, const Value& value, const Arguments&) {
  return HasCase(runtime, value, &IsLower, [](char32_t c) { return IsCased(c) && !IsLower(c); });
}
Result IsUpperTest(Runtime& runtime, const Value& value, const Arguments&) {
  return HasCase(runtime, value, &IsUpper, [](char32_t c) { return IsCased(c) && !IsUpper(c); });
}

Result IsSameAs(Runtime&, const Value& value, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Value other, OneArgument("sameas", arguments));
  if (value.kind() != other.kind()) return false;
  switch (value.kind()) {
    case Kind::kNone:
      return true;
    case Kind::kBool:
      return value.boolean() == other.boolean();
    case Kind::kInt:
      return value.integer() == other.integer();
    case Kind::kString:
      return value.text() == other.text();
    case Kind::kSequence:
      return value.sequence() == other.sequence();
    case Kind::kDict:
      return value.dict() == other.dict();
    case Kind::kNamespace:
      return value.ns() == other.ns();
    default:
      return false;
  }
}

Result IsIn(Runtime& runtime, const Value& value, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Value container, OneArgument("in", arguments));
  return Contains(runtime, container, value);
}

Result IsFilterName(Runtime& runtime, const Value& value, const Arguments&) {
  LC_ASSIGN_OR_RETURN(const StringPtr name, Str(runtime.budget, value));
  return FindFilter(name->text()) != nullptr;
}
Result IsTestName(Runtime& runtime, const Value& value, const Arguments&) {
  LC_ASSIGN_OR_RETURN(const StringPtr name, Str(runtime.budget, value));
  return FindTest(name->text()) != nullptr;
}

template <ComparisonOperator kOperator>
Result Compares(Runtime& runtime, const Value& value, const Arguments& arguments) {
  LC_ASSIGN_OR_RETURN(const Value other, OneArgument("the comparison", arguments));
  return ApplyComparison(runtime, kOperator, value, other);
}

// A test that takes nothing beside the value.
template <Test kTest>
Result Plain(Runtime& runtime, const Value& value, const Arguments& arguments) {
  LC_RETURN_IF_ERROR(Bind("the test", arguments, {}).status());
  return kTest(runtime, value, arguments);
}

struct NamedTest {
  std::string_view name;
  Test test;
};
constexpr NamedTest kTests[] = {
    {"odd", &Plain<&IsOdd>},
    {"even", &Plain<&IsEven>},
    {"divisibleby", &IsDivisibleBy},
    {"defined", &Plain<&IsDefined>},
    {"undefined", &Plain<&IsUndefined>},
    {"filter", &Plain<&IsFilterName>},
    {"test", &Plain<&IsTestName>},
    {"none", &Plain<&IsNone>},
    {"boolean", &Plain<&IsBoolean>},
    {"true", &Plain<&IsTrue>},
    {"false", &Plain<&IsFalse>},
    {"integer", &Plain<&IsInteger>},
    {"float", &Plain<&IsFloat>},
    {"number", &Plain<&IsNumber>},
    {"string", &Plain<&IsString>},
    {"mapping", &Plain<&IsMapping>},
    {"iterable", &Plain<&IsIterableTest>},
    {"sequence", &Plain<&IsSequence>},
    {"callable", &Plain<&IsCallable>},
    {"escaped", &Plain<&IsEscaped>},
    {"lower", &Plain<&IsLowerTest>},
    {"upper", &Plain<&IsUpperTest>},
    {"sameas", &IsSameAs},
    {"in", &IsIn},
    {"==", &Compares<ComparisonOperator::kEqual>},
    {"eq", &Compares<ComparisonOperator::kEqual>},
    {"equalto", &Compares<ComparisonOperator::kEqual>},
    {"!=", &Compares<ComparisonOperator::kNotEqual>},
    {"ne", &Compares<ComparisonOperator::kNotEqual>},
    {">", &Compares<ComparisonOperator::kGreater>},
    {"gt", &Compares<ComparisonOperator::kGreater>},
    {"greaterthan", &Compares<ComparisonOperator::kGreater>},
    {">=", &Compares<ComparisonOperator::kGreaterEqual>},
    {"ge", &Compares<ComparisonOperator::kGreaterEqual>},
    {"<", &Compares<ComparisonOperator::kLess>},
    {"lt", &Compares<ComparisonOperator::kLess>},
    {"lessthan", &Compares<ComparisonOperator::kLess>},
    {"<=", &Compares<ComparisonOperator::kLessEqual>},
    {"le", &Compares<ComparisonOperator::kLessEqual>},
};

}  // namespace

Test FindTest(std::string_view name) {
  for (const NamedTest& entry : kTests) {
    if (entry.name == name) return entry.test;
  }
  return nullptr;
}

}  // namespace layercake::model::jinja
