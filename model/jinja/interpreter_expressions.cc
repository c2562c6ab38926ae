// The evaluation of expressions and calls.
#include "base/status_macros.h"
#include "model/jinja/error.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/operators.h"

namespace layercake::model::jinja {

absl::StatusOr<Value> Interpreter::Evaluate(const Expression& expression, Scope& scope) {
  const Level level(*this);
  LC_RETURN_IF_ERROR(EnterLevel());
  absl::StatusOr<Value> value = EvaluateKind(expression, scope);
  if (!value.ok() && error_line_ == 0) error_line_ = expression.line;
  return value;
}

absl::StatusOr<Value> Interpreter::EvaluateKind(const Expression& expression, Scope& scope) {
  switch (expression.kind) {
    case ExpressionKind::kConstant:
      return static_cast<const Constant&>(expression).value;
    case ExpressionKind::kName:
      return EvaluateName(static_cast<const Name&>(expression), scope);
    case ExpressionKind::kSequence:
      return EvaluateSequence(static_cast<const SequenceLiteral&>(expression), scope);
    case ExpressionKind::kDict:
      return EvaluateDict(static_cast<const DictLiteral&>(expression), scope);
    case ExpressionKind::kUnary:
      return EvaluateUnary(static_cast<const Unary&>(expression), scope);
    case ExpressionKind::kBinary:
      return EvaluateBinary(static_cast<const Binary&>(expression), scope);
    case ExpressionKind::kLogical:
      return EvaluateLogical(static_cast<const Logical&>(expression), scope);
    case ExpressionKind::kComparison:
      return EvaluateComparison(static_cast<const Comparison&>(expression), scope);
    case ExpressionKind::kConditional:
      return EvaluateConditional(static_cast<const Conditional&>(expression), scope);
    case ExpressionKind::kAttribute:
      return EvaluateAttribute(static_cast<const Attribute&>(expression), scope);
    case ExpressionKind::kItem:
      return EvaluateItem(static_cast<const Item&>(expression), scope);
    case ExpressionKind::kSlice:
      return EvaluateSlice(static_cast<const Slice&>(expression), scope);
    case ExpressionKind::kCall:
      return EvaluateCall(static_cast<const Call&>(expression), scope);
    case ExpressionKind::kFilter:
      return EvaluateFilter(static_cast<const Filter&>(expression), scope, nullptr);
    case ExpressionKind::kTest:
      return EvaluateTest(static_cast<const TestExpression&>(expression), scope);
  }
  return absl::InternalError("an expression of no known kind");
}

absl::StatusOr<Value> Interpreter::EvaluateName(const Name& name, Scope& scope) {
  size_t steps = 0;
  const Value* found = scope.Find(name.name, steps);
  LC_RETURN_IF_ERROR(runtime_.budget.Charge(steps / 8));
  if (found != nullptr) return *found;
  const Native native = FindFunction(name.name);
  if (native == nullptr) return Value::Undefined(Cat("'", name.name, "' is undefined"));
  auto* function = runtime_.arena.New<Function>();
  function->name = name.name;
  function->native = native;
  return Value::Of(function);
}

absl::StatusOr<Value> Interpreter::EvaluateSequence(const SequenceLiteral& literal, Scope& scope) {
  std::vector<Value> items;
  items.reserve(literal.items.size());
  for (const ExpressionPtr& item : literal.items) {
    LC_ASSIGN_OR_RETURN(Value value, Evaluate(*item, scope));
    items.push_back(std::move(value));
  }
  return MakeSequence(runtime_, std::move(items),
                      literal.is_tuple ? Sequence::Form::kTuple : Sequence::Form::kList);
}

absl::StatusOr<Value> Interpreter::EvaluateDict(const DictLiteral& literal, Scope& scope) {
  auto* dict = runtime_.arena.New<Dict>();
  for (const auto& [key_expression, value_expression] : literal.entries) {
    LC_ASSIGN_OR_RETURN(Value key, Evaluate(*key_expression, scope));
    LC_ASSIGN_OR_RETURN(Value value, Evaluate(*value_expression, scope));
    LC_ASSIGN_OR_RETURN(std::string encoded, EncodeKey(key));
    LC_RETURN_IF_ERROR(runtime_.budget.ChargeText(encoded.size()));
    dict->Set(std::move(encoded), std::move(key), std::move(value));
  }
  return Value::Of(dict);
}

absl::StatusOr<Value> Interpreter::EvaluateUnary(const Unary& unary, Scope& scope) {
  LC_ASSIGN_OR_RETURN(const Value operand, Evaluate(*unary.operand, scope));
  return ApplyUnary(unary.op, operand);
}

absl::StatusOr<Value> Interpreter::EvaluateBinary(const Binary& binary, Scope& scope) {
  LC_ASSIGN_OR_RETURN(const Value left, Evaluate(*binary.left, scope));
  LC_ASSIGN_OR_RETURN(const Value right, Evaluate(*binary.right, scope));
  return ApplyBinary(runtime_, binary.op, left, right);
}

absl::StatusOr<Value> Interpreter::EvaluateLogical(const Logical& logical, Scope& scope) {
  LC_ASSIGN_OR_RETURN(Value left, Evaluate(*logical.left, scope));
  if (IsTruthy(left) != logical.is_and) return left;
  return Evaluate(*logical.right, scope);
}

absl::StatusOr<Value> Interpreter::EvaluateComparison(const Comparison& comparison, Scope& scope) {
  LC_ASSIGN_OR_RETURN(Value left, Evaluate(*comparison.first, scope));
  for (const auto& [op, expression] : comparison.rest) {
    LC_ASSIGN_OR_RETURN(Value right, Evaluate(*expression, scope));
    LC_ASSIGN_OR_RETURN(const bool holds, ApplyComparison(runtime_, op, left, right));
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

absl::StatusOr<Value> Interpreter::EvaluateConditional(const Conditional& conditional,
                                                       Scope& scope) {
  LC_ASSIGN_OR_RETURN(const Value condition, Evaluate(*conditional.condition, scope));
  if (IsTruthy(condition)) return Evaluate(*conditional.then, scope);
  if (conditional.otherwise != nullptr) return Evaluate(*conditional.otherwise, scope);
  return Value::Undefined("an inline 'if' without 'else' has no value when it does not hold");
}

absl::StatusOr<Value> Interpreter::EvaluateAttribute(const Attribute& attribute, Scope& scope) {
  LC_ASSIGN_OR_RETURN(const Value object, Evaluate(*attribute.object, scope));
  return GetAttribute(runtime_, object, attribute.name);
}

absl::StatusOr<Value> Interpreter::EvaluateItem(const Item& item, Scope& scope) {
  LC_ASSIGN_OR_RETURN(const Value object, Evaluate(*item.object, scope));
  LC_ASSIGN_OR_RETURN(const Value key, Evaluate(*item.key, scope));
  return GetItem(runtime_, object, key);
}

absl::StatusOr<Value> Interpreter::EvaluateSlice(const Slice& slice, Scope& scope) {
  LC_ASSIGN_OR_RETURN(const Value object, Evaluate(*slice.object, scope));
  Value bounds[3] = {Value::None(), Value::None(), Value::None()};
  const Expression* expressions[3] = {slice.start.get(), slice.stop.get(), slice.step.get()};
  for (size_t i = 0; i < 3; ++i) {
    if (expressions[i] == nullptr) continue;
    LC_ASSIGN_OR_RETURN(bounds[i], Evaluate(*expressions[i], scope));
  }
  return ApplySlice(runtime_, object, bounds[0], bounds[1], bounds[2]);
}

absl::StatusOr<Value> Interpreter::EvaluateFilter(const Filter& filter, Scope& scope,
                                                  const Value* input) {
  // Chains of filters nest to the left; each is one level.
  const Level level(*this);
  LC_RETURN_IF_ERROR(EnterLevel());
  Value operand;
  if (filter.operand == nullptr) {
    operand = *input;
  } else if (input != nullptr) {
    LC_ASSIGN_OR_RETURN(operand,
                        EvaluateFilter(static_cast<const Filter&>(*filter.operand), scope, input));
  } else {
    LC_ASSIGN_OR_RETURN(operand, Evaluate(*filter.operand, scope));
  }
  if (filter.native == nullptr) return Invalid("there is no filter '", filter.name, "'");
  LC_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(filter.arguments, scope));
  return filter.native(runtime_, operand, arguments);
}

absl::StatusOr<Value> Interpreter::EvaluateTest(const TestExpression& test, Scope& scope) {
  LC_ASSIGN_OR_RETURN(const Value operand, Evaluate(*test.operand, scope));
  if (test.test == nullptr) return Invalid("there is no test '", test.name, "'");
  LC_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(test.arguments, scope));
  LC_ASSIGN_OR_RETURN(const bool holds, test.test(runtime_, operand, arguments));
  return Value::Bool(holds != test.negated);
}

absl::StatusOr<Arguments> Interpreter::EvaluateArguments(const CallArguments& arguments,
                                                         Scope& scope) {
  Arguments evaluated;
  for (const ExpressionPtr& expression : arguments.positional) {
    LC_ASSIGN_OR_RETURN(Value value, Evaluate(*expression, scope));
    evaluated.positional.push_back(std::move(value));
  }
  if (arguments.star != nullptr) {
    LC_ASSIGN_OR_RETURN(const Value list, Evaluate(*arguments.star, scope));
    LC_ASSIGN_OR_RETURN(const std::vector<Value> items, AllItems(runtime_, list));
    evaluated.positional.insert(evaluated.positional.end(), items.begin(), items.end());
  }
  for (const auto& [name, expression] : arguments.named) {
    LC_ASSIGN_OR_RETURN(Value value, Evaluate(*expression, scope));
    evaluated.named.emplace_back(name, std::move(value));
  }
  if (arguments.double_star != nullptr) {
    LC_ASSIGN_OR_RETURN(const Value dict, Evaluate(*arguments.double_star, scope));
    if (!dict.is_dict()) return Invalid("** needs a mapping, not a ", TypeName(dict));
    for (const Dict::Entry& entry : dict.dict()->entries) {
      LC_ASSIGN_OR_RETURN(const StringPtr name, AsString("an argument name", entry.key));
      LC_RETURN_IF_ERROR(runtime_.budget.ChargeText(name->size()));
      evaluated.named.emplace_back(name->text(), entry.value);
    }
  }
  return evaluated;
}

absl::StatusOr<Value> Interpreter::EvaluateCall(const Call& call, Scope& scope) {
  return CallWithCaller(call, nullptr, scope);
}

absl::StatusOr<Value> Interpreter::CallWithCaller(const Call& call, const Value* caller,
                                                  Scope& scope) {
  if (call.callee->kind == ExpressionKind::kAttribute) {
    // A method that is called at once needs no object of its own.
    const auto& attribute = static_cast<const Attribute&>(*call.callee);
    LC_ASSIGN_OR_RETURN(const Value object, Evaluate(*attribute.object, scope));
    const Native native =
        IsHiddenMethod(object, attribute.name) ? nullptr : FindMethod(object, attribute.name);
    if (native != nullptr && caller == nullptr) {
      LC_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(call.arguments, scope));
      return native(runtime_, object, arguments);
    }
    LC_ASSIGN_OR_RETURN(const Value callee, GetAttribute(runtime_, object, attribute.name));
    return CallValue(callee, call, caller, scope);
  }
  LC_ASSIGN_OR_RETURN(const Value callee, Evaluate(*call.callee, scope));
  return CallValue(callee, call, caller, scope);
}

absl::StatusOr<Value> Interpreter::CallValue(const Value& callee, const Call& call,
                                             const Value* caller, Scope& scope) {
  LC_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(call.arguments, scope));
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  if (callee.is_undefined()) return Invalid(callee.undefined_reason());
  if (callee.kind() != Kind::kFunction) return Invalid("a ", TypeName(callee), " cannot be called");
  const Function& function = *callee.function();
  if (function.macro != nullptr) return CallMacro(function, std::move(arguments));
  return function.native(runtime_, function.self, arguments);
}

absl::StatusOr<Value> Interpreter::CallMacro(const Function& function, Arguments arguments) {
  auto* scope = runtime_.arena.New<Scope>(function.scope);
  LC_RETURN_IF_ERROR(BindMacro(*function.macro, arguments, *scope));
  return Capture(function.macro->body, *scope);
}

absl::Status Interpreter::BindMacro(const MacroDefinition& macro, Arguments& arguments,
                                    Scope& scope) {
  std::vector<std::pair<std::string, Value>>& named = arguments.named;
  const auto take = [&named](std::string_view name) -> std::optional<Value> {
    for (auto it = named.begin(); it != named.end(); ++it) {
      if (it->first != name) continue;
      Value value = std::move(it->second);
      named.erase(it);
      return value;
    }
    return std::nullopt;
  };
  const size_t given = std::min(arguments.positional.size(), macro.parameters.size());
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const MacroDefinition::Parameter& parameter = macro.parameters[i];
    std::optional<Value> value = take(parameter.name);
    if (i < given) {
      if (value) return Invalid("the macro '", macro.name, "' got '", parameter.name, "' twice");
      value = arguments.positional[i];
    } else if (!value && parameter.default_value != nullptr) {
      // Defaults see the parameters before them.
      LC_ASSIGN_OR_RETURN(value, Evaluate(*parameter.default_value, scope));
    } else if (!value) {
      value = Value::Undefined(Cat("parameter '", parameter.name, "' was not provided"));
    }
    scope.Set(parameter.name, *std::move(value));
  }
  if (macro.uses_caller) {
    scope.Set("caller", take("caller").value_or(Value::Undefined("no caller defined")));
  }
  if (macro.uses_varargs) {
    LC_ASSIGN_OR_RETURN(Value rest,
                        MakeSequence(runtime_,
                                     {arguments.positional.begin() + static_cast<ptrdiff_t>(given),
                                      arguments.positional.end()},
                                     Sequence::Form::kTuple));
    scope.Set("varargs", std::move(rest));
  } else if (arguments.positional.size() > given) {
    return Invalid("the macro '", macro.name, "' takes at most ", macro.parameters.size(),
                   " arguments, got ", arguments.positional.size());
  }
  if (macro.uses_kwargs) {
    auto* rest = runtime_.arena.New<Dict>();
    for (auto& [name, value] : named) {
      rest->Set(EncodeStringKey(name), Value::String(MarkedString(name, true)), std::move(value));
    }
    scope.Set("kwargs", Value::Of(rest));
  } else if (!named.empty()) {
    return Invalid("the macro '", macro.name, "' takes no argument '", named.front().first, "'");
  }
  return absl::OkStatus();
}

namespace {

absl::StatusOr<Value> Cycle(Runtime&, const Value& self, const Arguments& arguments) {
  if (arguments.positional.empty()) return Invalid("loop.cycle needs values");
  const auto count = static_cast<Int>(arguments.positional.size());
  return arguments.positional[static_cast<size_t>(self.loop()->index0 % count)];
}

absl::StatusOr<Value> Changed(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LoopState& loop = *self.loop();
  LC_ASSIGN_OR_RETURN(Value values,
                      MakeSequence(runtime, arguments.positional, Sequence::Form::kTuple));
  if (loop.last_changed) {
    LC_ASSIGN_OR_RETURN(const bool same, Equals(runtime.budget, *loop.last_changed, values));
    if (same) return Value::Bool(false);
  }
  loop.last_changed = std::move(values);
  return Value::Bool(true);
}

Value LoopMethod(Runtime& runtime, LoopState& loop, std::string_view name, Native native) {
  auto* method = runtime.arena.New<Function>();
  method->name = std::string(name);
  method->native = native;
  method->self = Value::Of(&loop);
  return Value::Of(method);
}

// Pulls until `count` items are ahead, or all.
absl::Status PullAhead(Runtime& runtime, LoopState& loop, size_t count) {
  while (!loop.exhausted && loop.ahead() < count) {
    LC_ASSIGN_OR_RETURN(std::optional<Value> item, loop.interpreter->PullLoopItem(loop));
    if (item) {
      runtime.budget.Spend(4);
      loop.pulled.push_back(*std::move(item));
    } else {
      loop.exhausted = true;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Value> LoopAttribute(Runtime& runtime, LoopState& loop, std::string_view name) {
  if (name == "index") return Value::Integer(loop.index0 + 1);
  if (name == "index0") return Value::Integer(loop.index0);
  if (name == "first") return Value::Bool(loop.index0 == 0);
  if (name == "depth") return Value::Integer(1);
  if (name == "depth0") return Value::Integer(0);
  if (name == "cycle") return LoopMethod(runtime, loop, name, &Cycle);
  if (name == "changed") return LoopMethod(runtime, loop, name, &Changed);
  if (name == "previtem") {
    return loop.index0 == 0 ? Value::Undefined("there is no previous item") : loop.previous;
  }
  if (name == "last" || name == "nextitem") {
    LC_RETURN_IF_ERROR(PullAhead(runtime, loop, 1));
    if (name == "last") return Value::Bool(loop.ahead() == 0);
    if (loop.ahead() == 0) return Value::Undefined("there is no next item");
    return loop.pulled[loop.next_pulled];
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    LC_RETURN_IF_ERROR(PullAhead(runtime, loop, SIZE_MAX));
    const auto ahead = static_cast<Int>(loop.ahead());
    if (name == "revindex0") return Value::Integer(ahead);
    if (name == "revindex") return Value::Integer(ahead + 1);
    return Value::Integer(loop.index0 + 1 + ahead);
  }
  return Value::Undefined(Cat("a loop has no '", name, "'"));
}

}  // namespace layercake::model::jinja
