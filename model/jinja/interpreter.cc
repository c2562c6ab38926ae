#include "model/jinja/interpreter.h"

#include "base/status_macros.h"
#include "model/jinja/error.h"

namespace layercake::model::jinja {

void Scope::Set(std::string_view name, Value value) {
  for (auto& [key, present] : variables_) {
    if (key == name) {
      present = std::move(value);
      return;
    }
  }
  variables_.emplace_back(name, std::move(value));
}

const Value* Scope::Find(std::string_view name, size_t& steps) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent_) {
    steps += 1 + scope->variables_.size();
    for (const auto& [key, value] : scope->variables_) {
      if (key == name) return &value;
    }
  }
  return nullptr;
}

absl::StatusOr<MarkedString> Interpreter::Run(
    const Block& block, std::vector<std::pair<std::string_view, Value>> variables) {
  constexpr size_t kMaxVariables = 256;
  if (variables.size() > kMaxVariables) {
    return Invalid("the chat template got ", variables.size(), " variables, more than ",
                   kMaxVariables);
  }
  auto* globals = runtime_.arena.New<Scope>(nullptr);
  for (auto& [name, value] : variables) globals->Set(name, std::move(value));
  auto* scope = runtime_.arena.New<Scope>(globals);
  MarkedString out;
  out_ = &out;
  const absl::StatusOr<Flow> flow = RunBlock(block, *scope);
  if (flow.ok()) return out;
  return Invalid("chat template, line ", error_line_, ": ", std::string(flow.status().message()));
}

absl::Status Interpreter::EnterLevel() {
  if (depth_ <= options_.max_depth) return runtime_.budget.Charge(1);
  return Invalid("evaluation nests deeper than max_depth=", options_.max_depth,
                 ": does a macro call itself without end?");
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunBlock(const Block& block, Scope& scope) {
  const Level level(*this);
  LC_RETURN_IF_ERROR(EnterLevel());
  for (const auto& statement : block) {
    absl::StatusOr<Flow> flow = RunStatement(*statement, scope);
    if (!flow.ok() && error_line_ == 0) error_line_ = statement->line;
    if (!flow.ok() || *flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunStatement(const Statement& statement,
                                                            Scope& scope) {
  LC_RETURN_IF_ERROR(runtime_.budget.Charge(1));
  switch (statement.kind) {
    case StatementKind::kText: {
      const std::string& text = static_cast<const TextStatement&>(statement).text;
      LC_RETURN_IF_ERROR(runtime_.budget.ChargeText(text.size()));
      LC_RETURN_IF_ERROR(runtime_.budget.CheckSize(out_->size() + text.size()));
      out_->Append(text, true);
      return Flow::kNext;
    }
    case StatementKind::kOutput:
      LC_RETURN_IF_ERROR(RunOutput(static_cast<const OutputStatement&>(statement), scope));
      return Flow::kNext;
    case StatementKind::kIf:
      return RunIf(static_cast<const IfStatement&>(statement), scope);
    case StatementKind::kFor:
      return RunFor(static_cast<const ForStatement&>(statement), scope);
    case StatementKind::kSet: {
      const auto& set = static_cast<const SetStatement&>(statement);
      LC_ASSIGN_OR_RETURN(Value value, Evaluate(*set.value, scope));
      LC_RETURN_IF_ERROR(Assign(*set.target, std::move(value), scope));
      return Flow::kNext;
    }
    case StatementKind::kSetBlock:
      LC_RETURN_IF_ERROR(RunSetBlock(static_cast<const SetBlockStatement&>(statement), scope));
      return Flow::kNext;
    case StatementKind::kMacro: {
      const MacroDefinition& macro = static_cast<const MacroStatement&>(statement).macro;
      Value function;
      DefineMacro(macro, scope, function);
      scope.Set(macro.name, std::move(function));
      return Flow::kNext;
    }
    case StatementKind::kCallBlock:
      LC_RETURN_IF_ERROR(RunCallBlock(static_cast<const CallBlockStatement&>(statement), scope));
      return Flow::kNext;
    case StatementKind::kFilterBlock:
      LC_RETURN_IF_ERROR(
          RunFilterBlock(static_cast<const FilterBlockStatement&>(statement), scope));
      return Flow::kNext;
    case StatementKind::kScope:
      return RunScope(static_cast<const ScopeStatement&>(statement), scope);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return absl::InternalError("a statement of no known kind");
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunIf(const IfStatement& statement, Scope& scope) {
  for (const auto& [condition, body] : statement.branches) {
    LC_ASSIGN_OR_RETURN(const Value value, Evaluate(*condition, scope));
    if (IsTruthy(value)) return RunBlock(body, scope);
  }
  return RunBlock(statement.otherwise, scope);
}

absl::StatusOr<std::optional<Value>> Interpreter::PullLoopItem(LoopState& loop) {
  while (true) {
    LC_ASSIGN_OR_RETURN(std::optional<Value> item,
                        NextItem(runtime_, loop.iterable, loop.position));
    if (!item || loop.statement->condition == nullptr) return item;
    auto* scope = runtime_.arena.New<Scope>(loop.outer);
    LC_RETURN_IF_ERROR(Assign(*loop.statement->target, *item, *scope));
    LC_ASSIGN_OR_RETURN(const Value keeps, Evaluate(*loop.statement->condition, *scope));
    if (IsTruthy(keeps)) return item;
  }
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunFor(const ForStatement& statement, Scope& scope) {
  auto* loop = runtime_.arena.New<LoopState>();
  loop->interpreter = this;
  loop->statement = &statement;
  loop->outer = &scope;
  LC_ASSIGN_OR_RETURN(loop->iterable, Evaluate(*statement.iterable, scope));
  while (true) {
    std::optional<Value> item;
    if (loop->ahead() > 0) {
      item = std::move(loop->pulled[loop->next_pulled++]);
      if (loop->ahead() == 0) {
        loop->pulled.clear();
        loop->next_pulled = 0;
      }
    } else if (!loop->exhausted) {
      LC_ASSIGN_OR_RETURN(item, PullLoopItem(*loop));
    }
    if (!item) break;
    ++loop->index0;
    loop->previous = std::exchange(loop->current, *item);
    auto* step = runtime_.arena.New<Scope>(&scope);
    step->Set("loop", Value::Of(loop));
    LC_RETURN_IF_ERROR(Assign(*statement.target, *std::move(item), *step));
    LC_ASSIGN_OR_RETURN(const Flow flow, RunBlock(statement.body, *step));
    if (flow == Flow::kBreak) return Flow::kNext;
  }
  if (loop->index0 >= 0 || statement.otherwise.empty()) return Flow::kNext;
  return RunBlock(statement.otherwise, *runtime_.arena.New<Scope>(&scope));
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunScope(const ScopeStatement& statement,
                                                        Scope& scope) {
  auto* inner = runtime_.arena.New<Scope>(&scope);
  for (const auto& [target, expression] : statement.assignments) {
    // The values are those of the scope around the block.
    LC_ASSIGN_OR_RETURN(Value value, Evaluate(*expression, scope));
    LC_RETURN_IF_ERROR(Assign(*target, std::move(value), *inner));
  }
  return RunBlock(statement.body, *inner);
}

absl::Status Interpreter::Write(const Value& value) {
  LC_RETURN_IF_ERROR(AppendStr(runtime_.budget, value, *out_));
  return runtime_.budget.CheckSize(out_->size());
}

absl::Status Interpreter::RunOutput(const OutputStatement& statement, Scope& scope) {
  LC_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.value, scope));
  return Write(value);
}

absl::StatusOr<Value> Interpreter::Capture(const Block& block, Scope& scope) {
  MarkedString captured;
  MarkedString* const outer = std::exchange(out_, &captured);
  const absl::StatusOr<Flow> flow = RunBlock(block, scope);
  out_ = outer;
  if (!flow.ok()) return flow.status();
  return Value::String(std::move(captured));
}

absl::Status Interpreter::RunSetBlock(const SetBlockStatement& statement, Scope& scope) {
  LC_ASSIGN_OR_RETURN(Value text, Capture(statement.body, *runtime_.arena.New<Scope>(&scope)));
  if (statement.filter != nullptr) {
    LC_ASSIGN_OR_RETURN(
        text, EvaluateFilter(static_cast<const Filter&>(*statement.filter), scope, &text));
  }
  return Assign(*statement.target, std::move(text), scope);
}

absl::Status Interpreter::RunFilterBlock(const FilterBlockStatement& statement, Scope& scope) {
  LC_ASSIGN_OR_RETURN(const Value text,
                      Capture(statement.body, *runtime_.arena.New<Scope>(&scope)));
  LC_ASSIGN_OR_RETURN(const Value filtered,
                      EvaluateFilter(static_cast<const Filter&>(*statement.filter), scope, &text));
  return Write(filtered);
}

void Interpreter::DefineMacro(const MacroDefinition& macro, Scope& scope, Value& function) {
  auto* object = runtime_.arena.New<Function>();
  object->name = macro.name;
  object->macro = &macro;
  object->scope = &scope;
  function = Value::Of(object);
}

absl::Status Interpreter::RunCallBlock(const CallBlockStatement& statement, Scope& scope) {
  Value caller;
  DefineMacro(statement.caller, scope, caller);
  LC_ASSIGN_OR_RETURN(const Value text,
                      CallWithCaller(static_cast<const Call&>(*statement.call), &caller, scope));
  return Write(text);
}

absl::Status Interpreter::Assign(const Expression& target, Value value, Scope& scope) {
  switch (target.kind) {
    case ExpressionKind::kName:
      LC_RETURN_IF_ERROR(runtime_.budget.Charge(3 + scope.size() / 8));
      scope.Set(static_cast<const Name&>(target).name, std::move(value));
      return absl::OkStatus();
    case ExpressionKind::kAttribute: {
      const auto& attribute = static_cast<const Attribute&>(target);
      LC_ASSIGN_OR_RETURN(const Value object, Evaluate(*attribute.object, scope));
      if (object.kind() != Kind::kNamespace) {
        return Invalid("cannot set '", attribute.name, "' on a ", TypeName(object),
                       ": only a namespace takes attributes");
      }
      LC_RETURN_IF_ERROR(runtime_.budget.Charge(object.ns()->attributes.size() / 8));
      for (auto& [name, present] : object.ns()->attributes) {
        if (name == attribute.name) {
          present = std::move(value);
          return absl::OkStatus();
        }
      }
      object.ns()->attributes.emplace_back(attribute.name, std::move(value));
      return absl::OkStatus();
    }
    default:
      break;
  }
  const auto& targets = static_cast<const SequenceLiteral&>(target).items;
  LC_ASSIGN_OR_RETURN(std::vector<Value> items, AllItems(runtime_, value));
  if (items.size() != targets.size()) {
    return Invalid("cannot unpack ", items.size(), " values into ", targets.size(), " names");
  }
  for (size_t i = 0; i < items.size(); ++i) {
    LC_RETURN_IF_ERROR(Assign(*targets[i], std::move(items[i]), scope));
  }
  return absl::OkStatus();
}

}  // namespace layercake::model::jinja
