// Runs a parsed template. One Interpreter is one rendering: made, run once, thrown away, by one
// thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/jinja/ast.h"
#include "model/jinja/runtime.h"

namespace layercake::model::jinja {

// Variables of one template, loop step, macro call or block; names not found here are looked up in
// the scope around it. Names point into the parsed template or the input, which outlive the
// rendering.
class Scope : public Object {
 public:
  explicit Scope(Scope* parent) : parent_(parent) {}

  void Set(std::string_view name, Value value);
  // Null when neither this scope nor one around it has the name. Adds the names looked at to
  // `steps`.
  const Value* Find(std::string_view name, size_t& steps) const;
  size_t size() const { return variables_.size(); }

 private:
  Scope* parent_;
  std::vector<std::pair<std::string_view, Value>> variables_;
};

class Interpreter;

// The state behind `loop`. Items are pulled one by one, so that a loop's filter sees what its body
// did; asking for what lies ahead (last, length, nextitem) pulls early.
struct LoopState : Object {
  Interpreter* interpreter = nullptr;
  const ForStatement* statement = nullptr;
  Scope* outer = nullptr;
  Value iterable;
  size_t position = 0;
  std::vector<Value> pulled;  // ahead of the current step, from next_pulled on
  size_t next_pulled = 0;
  bool exhausted = false;
  Int index0 = -1;
  Value current;
  Value previous;
  std::optional<Value> last_changed;

  size_t ahead() const { return pulled.size() - next_pulled; }
};

// loop.index, loop.first and the others.
absl::StatusOr<Value> LoopAttribute(Runtime& runtime, LoopState& loop, std::string_view name);

class Interpreter {
 public:
  Interpreter(const RenderOptions& options, Budget& budget, Arena& arena)
      : options_(options), runtime_{budget, arena, options} {}

  // Runs `block` with `variables` and returns the text. Errors name the line.
  absl::StatusOr<MarkedString> Run(const Block& block,
                                   std::vector<std::pair<std::string_view, Value>> variables);

  // The next item that passes the loop's filter, or nothing.
  absl::StatusOr<std::optional<Value>> PullLoopItem(LoopState& loop);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class Level;

  absl::Status EnterLevel();

  // Statements (interpreter.cc).
  absl::StatusOr<Flow> RunBlock(const Block& block, Scope& scope);
  absl::StatusOr<Flow> RunStatement(const Statement& statement, Scope& scope);
  absl::StatusOr<Flow> RunIf(const IfStatement& statement, Scope& scope);
  absl::StatusOr<Flow> RunFor(const ForStatement& statement, Scope& scope);
  absl::StatusOr<Flow> RunScope(const ScopeStatement& statement, Scope& scope);
  absl::Status RunOutput(const OutputStatement& statement, Scope& scope);
  absl::Status RunSetBlock(const SetBlockStatement& statement, Scope& scope);
  absl::Status RunCallBlock(const CallBlockStatement& statement, Scope& scope);
  absl::Status RunFilterBlock(const FilterBlockStatement& statement, Scope& scope);
  void DefineMacro(const MacroDefinition& macro, Scope& scope, Value& function);
  absl::Status Write(const Value& value);
  // The text that `block` makes, in a scope of its own.
  absl::StatusOr<Value> Capture(const Block& block, Scope& scope);
  absl::Status Assign(const Expression& target, Value value, Scope& scope);

  // Expressions (interpreter_expressions.cc).
  absl::StatusOr<Value> Evaluate(const Expression& expression, Scope& scope);
  absl::StatusOr<Value> EvaluateKind(const Expression& expression, Scope& scope);
  absl::StatusOr<Value> EvaluateName(const Name& name, Scope& scope);
  absl::StatusOr<Value> EvaluateSequence(const SequenceLiteral& literal, Scope& scope);
  absl::StatusOr<Value> EvaluateDict(const DictLiteral& literal, Scope& scope);
  absl::StatusOr<Value> EvaluateUnary(const Unary& unary, Scope& scope);
  absl::StatusOr<Value> EvaluateBinary(const Binary& binary, Scope& scope);
  absl::StatusOr<Value> EvaluateLogical(const Logical& logical, Scope& scope);
  absl::StatusOr<Value> EvaluateComparison(const Comparison& comparison, Scope& scope);
  absl::StatusOr<Value> EvaluateConditional(const Conditional& conditional, Scope& scope);
  absl::StatusOr<Value> EvaluateAttribute(const Attribute& attribute, Scope& scope);
  absl::StatusOr<Value> EvaluateItem(const Item& item, Scope& scope);
  absl::StatusOr<Value> EvaluateSlice(const Slice& slice, Scope& scope);
  absl::StatusOr<Value> EvaluateCall(const Call& call, Scope& scope);
  absl::StatusOr<Value> EvaluateTest(const TestExpression& test, Scope& scope);
  // `input` is what the innermost filter of a filter block works on.
  absl::StatusOr<Value> EvaluateFilter(const Filter& filter, Scope& scope, const Value* input);
  absl::StatusOr<Arguments> EvaluateArguments(const CallArguments& arguments, Scope& scope);
  absl::StatusOr<Value> CallWithCaller(const Call& call, const Value* caller, Scope& scope);
  absl::StatusOr<Value> CallValue(const Value& callee, const Call& call, const Value* caller,
                                  Scope& scope);
  absl::StatusOr<Value> CallMacro(const Function& function, Arguments arguments);
  absl::Status BindMacro(const MacroDefinition& macro, Arguments& arguments, Scope& scope);

  const RenderOptions& options_;
  Runtime runtime_;
  MarkedString* out_ = nullptr;
  int depth_ = 0;
  size_t error_line_ = 0;  // of the innermost failure
};

// Counts one nested evaluation while it is alive.
class Interpreter::Level {
 public:
  explicit Level(Interpreter& interpreter) : interpreter_(interpreter) { ++interpreter_.depth_; }
  ~Level() { --interpreter_.depth_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  Interpreter& interpreter_;
};

}  // namespace layercake::model::jinja
