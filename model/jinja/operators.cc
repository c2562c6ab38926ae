#include "model/jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/status_macros.h"
#include "model/jinja/error.h"
#include "model/jinja/format.h"
#include "model/jinja/unicode.h"

namespace layercake::model::jinja {
namespace {

std::string_view Symbol(BinaryOperator op) {
  switch (op) {
    case BinaryOperator::kAdd:
      return "+";
    case BinaryOperator::kSubtract:
      return "-";
    case BinaryOperator::kConcat:
      return "~";
    case BinaryOperator::kMultiply:
      return "*";
    case BinaryOperator::kDivide:
      return "/";
    case BinaryOperator::kFloorDivide:
      return "//";
    case BinaryOperator::kModulo:
      return "%";
    case BinaryOperator::kPower:
      return "**";
  }
  return "?";
}

absl::Status Unsupported(BinaryOperator op, const Value& left, const Value& right) {
  for (const Value* side : {&left, &right}) {
    if (side->is_undefined()) return Invalid(side->undefined_reason());
  }
  return Invalid("cannot compute ", TypeName(left), " ", Symbol(op), " ", TypeName(right));
}

absl::Status Overflow(BinaryOperator op) {
  return Invalid("the result of '", Symbol(op), "' does not fit in 127 bits");
}

absl::StatusOr<Value> IntegerPower(Int base, Int exponent) {
  if (exponent < 0) {
    if (base == 0) return Invalid("zero cannot be raised to a negative power");
    return Value::Float(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  Int result = 1;
  bool overflow = false;
  while (exponent > 0) {
    if ((exponent & 1) != 0) overflow |= __builtin_mul_overflow(result, base, &result);
    exponent >>= 1;
    if (exponent > 0) overflow |= __builtin_mul_overflow(base, base, &base);
    if (overflow) return Overflow(BinaryOperator::kPower);
  }
  return Value::Integer(result);
}

absl::StatusOr<Value> IntegerArithmetic(BinaryOperator op, Int left, Int right) {
  Int result = 0;
  switch (op) {
    case BinaryOperator::kAdd:
      if (__builtin_add_overflow(left, right, &result)) return Overflow(op);
      return Value::Integer(result);
    case BinaryOperator::kSubtract:
      if (__builtin_sub_overflow(left, right, &result)) return Overflow(op);
      return Value::Integer(result);
    case BinaryOperator::kMultiply:
      if (__builtin_mul_overflow(left, right, &result)) return Overflow(op);
      return Value::Integer(result);
    case BinaryOperator::kPower:
      return IntegerPower(left, right);
    default:
      break;
  }
  if (right == 0) return Invalid("division by zero");
  if (op == BinaryOperator::kDivide) {
    return Value::Float(static_cast<double>(left) / static_cast<double>(right));
  }
  // The one quotient that does not fit: the smallest integer by -1.
  if (right == -1) {
    if (op == BinaryOperator::kModulo) return Value::Integer(0);
    if (__builtin_sub_overflow(Int{0}, left, &result)) return Overflow(op);
    return Value::Integer(result);
  }
  // Python rounds down, C++ towards zero.
  const Int remainder = left % right;
  const bool adjust = remainder != 0 && (remainder < 0) != (right < 0);
  if (op == BinaryOperator::kModulo) return Value::Integer(adjust ? remainder + right : remainder);
  return Value::Integer(left / right - (adjust ? 1 : 0));
}

absl::StatusOr<Value> FloatArithmetic(BinaryOperator op, double left, double right) {
  switch (op) {
    case BinaryOperator::kAdd:
      return Value::Float(left + right);
    case BinaryOperator::kSubtract:
      return Value::Float(left - right);
    case BinaryOperator::kMultiply:
      return Value::Float(left * right);
    case BinaryOperator::kPower:
      if (left < 0 && std::trunc(right) != right) {
        return Invalid("a negative number cannot be raised to a fraction");
      }
      if (left == 0 && right < 0) return Invalid("zero cannot be raised to a negative power");
      return Value::Float(std::pow(left, right));
    default:
      break;
  }
  if (right == 0) return Invalid("division by zero");
  if (op == BinaryOperator::kDivide) return Value::Float(left / right);
  double remainder = std::fmod(left, right);
  if (remainder != 0 && (remainder < 0) != (right < 0)) remainder += right;
  if (op == BinaryOperator::kModulo) {
    return Value::Float(remainder == 0 ? std::copysign(0.0, right) : remainder);
  }
  const double quotient = (left - remainder) / right;
  const double floor = std::floor(quotient);
  return Value::Float(quotient - floor > 0.5 ? floor + 1 : floor);
}

absl::StatusOr<Value> Concatenate(Runtime& runtime, const Value& left, const Value& right) {
  const MarkedString* a = &left.string();
  const MarkedString* b = &right.string();
  MarkedString escaped;
  const bool markup = a->markup() || b->markup();
  if (a->markup() != b->markup()) {
    const MarkedString*& plain = a->markup() ? b : a;
    LC_RETURN_IF_ERROR(runtime.budget.ChargeString(plain->size()));
    escaped = EscapeHtml(*plain);
    plain = &escaped;
  }
  LC_RETURN_IF_ERROR(runtime.budget.ChargeString(a->size() + b->size()));
  LC_RETURN_IF_ERROR(runtime.budget.Charge(kStringOperations));
  MarkedString result = *a;
  result.Append(*b);
  result.set_markup(markup);
  return Value::String(std::move(result));
}

absl::StatusOr<Value> AddSequences(Runtime& runtime, const Value& left, const Value& right) {
  std::vector<Value> items = left.sequence()->items;
  const std::vector<Value>& more = right.sequence()->items;
  items.insert(items.end(), more.begin(), more.end());
  return MakeSequence(runtime, std::move(items), left.sequence()->form);
}

absl::StatusOr<Value> Repeat(Runtime& runtime, const Value& value, Int count) {
  const size_t unit = value.is_string() ? value.text().size() : value.sequence()->items.size();
  if (count < 0 || unit == 0) count = 0;
  // A unit costs at least one operation, so a count that does not fit is beyond any budget.
  const uint64_t times = static_cast<uint64_t>(std::min<Int>(count, INT64_MAX / 2));
  LC_RETURN_IF_ERROR(runtime.budget.Charge(times));
  if (value.is_string()) {
    size_t total = 0;
    if (__builtin_mul_overflow(unit, times, &total))
      return Invalid("the repeated text is too long");
    LC_RETURN_IF_ERROR(runtime.budget.ChargeString(total));
    MarkedString result;
    for (uint64_t i = 0; i < times; ++i) result.Append(value.string());
    result.set_markup(value.string().markup());
    return Value::String(std::move(result));
  }
  size_t total = 0;
  if (__builtin_mul_overflow(unit, times, &total)) return Invalid("the repeated list is too long");
  LC_RETURN_IF_ERROR(runtime.budget.Charge(std::min<uint64_t>(total, INT64_MAX) * 2));
  std::vector<Value> items;
  items.reserve(total);
  for (uint64_t i = 0; i < times; ++i) {
    items.insert(items.end(), value.sequence()->items.begin(), value.sequence()->items.end());
  }
  return runtime.arena.NewSequence(std::move(items), value.sequence()->form);
}

bool IsListOrTuple(const Value& value) {
  return value.is_sequence() && (value.sequence()->form == Sequence::Form::kList ||
                                 value.sequence()->form == Sequence::Form::kTuple);
}

absl::StatusOr<std::optional<Int>> SliceIndex(const Value& value) {
  if (value.is_none()) return std::nullopt;
  if (value.is_undefined()) return Invalid(value.undefined_reason());
  if (!value.is_integral())
    return Invalid("a slice index must be an integer, not a ", TypeName(value));
  return std::clamp<Int>(value.integer(), -INT64_MAX, INT64_MAX);
}

}  // namespace

MarkedString EscapeHtml(const MarkedString& text) {
  MarkedString out;
  size_t copied = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text.text()[i];
    const std::string_view entity = c == '&'    ? "&amp;"
                                    : c == '<'  ? "&lt;"
                                    : c == '>'  ? "&gt;"
                                    : c == '\'' ? "&#39;"
                                    : c == '"'  ? "&#34;"
                                                : "";
    if (entity.empty()) continue;
    out.AppendRange(text, copied, i);
    out.Append(entity, text.TrustedAt(i));
    copied = i + 1;
  }
  out.AppendRange(text, copied, text.size());
  out.set_markup(true);
  return out;
}

size_t FindText(std::string_view text, std::string_view needle, size_t offset) {
  if (offset > text.size()) return std::string_view::npos;
  // memmem is linear in the worst case (two-way search); string_view::find is not.
  const void* found =
      memmem(text.data() + offset, text.size() - offset, needle.data(), needle.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

absl::StatusOr<Value> ApplyBinary(Runtime& runtime, BinaryOperator op, const Value& left,
                                  const Value& right) {
  if (op == BinaryOperator::kConcat) {
    MarkedString text;
    LC_RETURN_IF_ERROR(AppendStr(runtime.budget, left, text));
    LC_RETURN_IF_ERROR(AppendStr(runtime.budget, right, text));
    text.set_markup(false);
    LC_RETURN_IF_ERROR(runtime.budget.Charge(kStringOperations));
    return Value::String(std::move(text));
  }
  if (left.is_number() && right.is_number()) {
    if (left.is_float() || right.is_float()) {
      return FloatArithmetic(op, left.number(), right.number());
    }
    return IntegerArithmetic(op, left.integer(), right.integer());
  }
  if (op == BinaryOperator::kAdd) {
    if (left.is_string() && right.is_string()) return Concatenate(runtime, left, right);
    if (IsListOrTuple(left) && IsListOrTuple(right) &&
        left.sequence()->form == right.sequence()->form) {
      return AddSequences(runtime, left, right);
    }
  }
  if (op == BinaryOperator::kMultiply) {
    if ((left.is_string() || IsListOrTuple(left)) && right.is_integral()) {
      return Repeat(runtime, left, right.integer());
    }
    if ((right.is_string() || IsListOrTuple(right)) && left.is_integral()) {
      return Repeat(runtime, right, left.integer());
    }
  }
  if (op == BinaryOperator::kModulo && left.is_string()) {
    return PercentFormat(runtime, left.string(), right);
  }
  return Unsupported(op, left, right);
}

absl::StatusOr<Value> ApplyUnary(UnaryOperator op, const Value& operand) {
  if (op == UnaryOperator::kNot) return Value::Bool(!IsTruthy(operand));
  if (operand.is_undefined()) return Invalid(operand.undefined_reason());
  if (operand.is_float()) {
    return Value::Float(op == UnaryOperator::kMinus ? -operand.number() : operand.number());
  }
  if (!operand.is_integral()) return Invalid("a ", TypeName(operand), " takes no sign");
  Int result = operand.integer();
  if (op == UnaryOperator::kMinus && __builtin_sub_overflow(Int{0}, result, &result)) {
    return Overflow(BinaryOperator::kSubtract);
  }
  return Value::Integer(result);
}

absl::StatusOr<bool> Contains(Runtime& runtime, const Value& container, const Value& item) {
  if (container.is_string()) {
    LC_ASSIGN_OR_RETURN(const StringPtr needle, AsString("what is looked for in a string", item));
    LC_RETURN_IF_ERROR(runtime.budget.ChargeText(container.text().size() + needle->size()));
    return FindText(container.text(), needle->text(), 0) != std::string_view::npos;
  }
  if (container.is_dict()) {
    LC_ASSIGN_OR_RETURN(const std::string key, EncodeKey(item));
    LC_RETURN_IF_ERROR(runtime.budget.ChargeText(key.size()));
    return container.dict()->Find(key) != nullptr;
  }
  size_t position = 0;
  while (true) {
    LC_ASSIGN_OR_RETURN(const std::optional<Value> next, NextItem(runtime, container, position));
    if (!next) return false;
    LC_ASSIGN_OR_RETURN(const bool equal, Equals(runtime.budget, *next, item));
    if (equal) return true;
  }
}

absl::StatusOr<bool> ApplyComparison(Runtime& runtime, ComparisonOperator op, const Value& left,
                                     const Value& right) {
  switch (op) {
    case ComparisonOperator::kEqual:
      return Equals(runtime.budget, left, right);
    case ComparisonOperator::kNotEqual: {
      LC_ASSIGN_OR_RETURN(const bool equal, Equals(runtime.budget, left, right));
      return !equal;
    }
    case ComparisonOperator::kIn:
      return Contains(runtime, right, left);
    case ComparisonOperator::kNotIn: {
      LC_ASSIGN_OR_RETURN(const bool contains, Contains(runtime, right, left));
      return !contains;
    }
    default:
      break;
  }
  LC_ASSIGN_OR_RETURN(const std::partial_ordering order, Compare(runtime.budget, left, right));
  switch (op) {
    case ComparisonOperator::kLess:
      return order < 0;
    case ComparisonOperator::kLessEqual:
      return order <= 0;
    case ComparisonOperator::kGreater:
      return order > 0;
    default:
      return order >= 0;
  }
}

absl::StatusOr<Value> ApplySlice(Runtime& runtime, const Value& object, const Value& start,
                                 const Value& stop, const Value& step) {
  if (object.is_undefined()) return Invalid(object.undefined_reason());
  if (!object.is_string() && !(object.is_sequence() && object.sequence()->is_indexable())) {
    return Invalid("a ", TypeName(object), " cannot be sliced");
  }
  LC_ASSIGN_OR_RETURN(const std::optional<Int> step_index, SliceIndex(step));
  LC_ASSIGN_OR_RETURN(const std::optional<Int> start_index, SliceIndex(start));
  LC_ASSIGN_OR_RETURN(const std::optional<Int> stop_index, SliceIndex(stop));
  const Int stride = step_index.value_or(1);
  if (stride == 0) return Invalid("a slice step cannot be zero");

  // Characters of a string by their byte offsets, the end included.
  std::vector<size_t> offsets;
  size_t length = 0;
  if (object.is_string()) {
    const std::string& text = object.text();
    LC_RETURN_IF_ERROR(runtime.budget.ChargeText(text.size()));
    for (size_t at = 0; at < text.size(); at += DecodeAt(text, at).size) offsets.push_back(at);
    length = offsets.size();
    offsets.push_back(text.size());
  } else {
    length = object.sequence()->items.size();
  }
  const Int size = static_cast<Int>(length);
  const Int lowest = stride > 0 ? 0 : -1;
  const Int highest = stride > 0 ? size : size - 1;
  const auto resolve = [&](const std::optional<Int>& index, Int missing) {
    if (!index) return missing;
    return std::clamp(*index < 0 ? *index + size : *index, lowest, highest);
  };
  const Int first = resolve(start_index, stride > 0 ? lowest : highest);
  const Int end = resolve(stop_index, stride > 0 ? highest : lowest);

  if (object.is_string()) {
    const MarkedString& text = object.string();
    MarkedString result;
    if (stride == 1) {
      if (first < end) {
        result.AppendRange(text, offsets[static_cast<size_t>(first)],
                           offsets[static_cast<size_t>(end)]);
      }
    } else {
      for (Int i = first; stride > 0 ? i < end : i > end; i += stride) {
        const auto at = static_cast<size_t>(i);
        result.AppendRange(text, offsets[at], offsets[at + 1]);
      }
    }
    result.set_markup(text.markup());
    return MakeString(runtime, std::move(result));
  }
  std::vector<Value> items;
  for (Int i = first; stride > 0 ? i < end : i > end; i += stride) {
    items.push_back(object.sequence()->items[static_cast<size_t>(i)]);
  }
  return MakeSequence(runtime, std::move(items), object.sequence()->form);
}

}  // namespace layercake::model::jinja
