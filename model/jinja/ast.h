// The parsed form of a template. Immutable after the parser made it; shared by all renderings.
//
// Nesting is bounded by ParseOptions::max_nesting (Expression::height counts levels), so walking
// and destroying the tree by recursion is safe.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/jinja/runtime.h"
#include "model/jinja/value.h"

namespace layercake::model::jinja {

enum class ExpressionKind {
  kConstant,
  kName,
  kSequence,
  kDict,
  kUnary,
  kBinary,
  kLogical,
  kComparison,
  kConditional,
  kAttribute,
  kItem,
  kSlice,
  kCall,
  kFilter,
  kTest,
};

struct Expression {
  Expression(ExpressionKind kind_in, size_t line_in) : kind(kind_in), line(line_in) {}
  virtual ~Expression() = default;

  const ExpressionKind kind;
  const size_t line;
  int height = 1;  // levels of this tree
};
using ExpressionPtr = std::unique_ptr<Expression>;

struct Constant : Expression {
  Constant(size_t line_in, Value value_in)
      : Expression(ExpressionKind::kConstant, line_in), value(std::move(value_in)) {}
  Value value;  // holds no container
};

struct Name : Expression {
  Name(size_t line_in, std::string name_in)
      : Expression(ExpressionKind::kName, line_in), name(std::move(name_in)) {}
  std::string name;
};

// [a, b] or (a, b); also the target of an unpacking assignment.
struct SequenceLiteral : Expression {
  SequenceLiteral(size_t line_in, bool is_tuple_in)
      : Expression(ExpressionKind::kSequence, line_in), is_tuple(is_tuple_in) {}
  bool is_tuple;
  std::vector<ExpressionPtr> items;
};

struct DictLiteral : Expression {
  explicit DictLiteral(size_t line_in) : Expression(ExpressionKind::kDict, line_in) {}
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};

enum class UnaryOperator { kNot, kMinus, kPlus };

struct Unary : Expression {
  explicit Unary(size_t line_in) : Expression(ExpressionKind::kUnary, line_in) {}
  UnaryOperator op = UnaryOperator::kNot;
  ExpressionPtr operand;
};

enum class BinaryOperator {
  kAdd,
  kSubtract,
  kConcat,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower
};

struct Binary : Expression {
  explicit Binary(size_t line_in) : Expression(ExpressionKind::kBinary, line_in) {}
  BinaryOperator op = BinaryOperator::kAdd;
  ExpressionPtr left;
  ExpressionPtr right;
};

// `and`, `or`: the value of the operand that decided.
struct Logical : Expression {
  explicit Logical(size_t line_in) : Expression(ExpressionKind::kLogical, line_in) {}
  bool is_and = false;
  ExpressionPtr left;
  ExpressionPtr right;
};

enum class ComparisonOperator {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

// a < b < c, as in Python.
struct Comparison : Expression {
  explicit Comparison(size_t line_in) : Expression(ExpressionKind::kComparison, line_in) {}
  ExpressionPtr first;
  std::vector<std::pair<ComparisonOperator, ExpressionPtr>> rest;
};

// `then if condition else otherwise`; undefined where `otherwise` is missing.
struct Conditional : Expression {
  explicit Conditional(size_t line_in) : Expression(ExpressionKind::kConditional, line_in) {}
  ExpressionPtr condition;
  ExpressionPtr then;
  ExpressionPtr otherwise;
};

struct Attribute : Expression {
  explicit Attribute(size_t line_in) : Expression(ExpressionKind::kAttribute, line_in) {}
  ExpressionPtr object;
  std::string name;
};

struct Item : Expression {
  explicit Item(size_t line_in) : Expression(ExpressionKind::kItem, line_in) {}
  ExpressionPtr object;
  ExpressionPtr key;
};

// object[start:stop:step]; each part may be missing.
struct Slice : Expression {
  explicit Slice(size_t line_in) : Expression(ExpressionKind::kSlice, line_in) {}
  ExpressionPtr object;
  ExpressionPtr start;
  ExpressionPtr stop;
  ExpressionPtr step;
};

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr star;         // *args
  ExpressionPtr double_star;  // **kwargs
};

struct Call : Expression {
  explicit Call(size_t line_in) : Expression(ExpressionKind::kCall, line_in) {}
  ExpressionPtr callee;
  CallArguments arguments;
};

struct Filter : Expression {
  explicit Filter(size_t line_in) : Expression(ExpressionKind::kFilter, line_in) {}
  ExpressionPtr operand;  // null at the start of a filter block
  std::string name;
  Native native = nullptr;  // null: unknown, an error only when it is reached
  CallArguments arguments;
};

struct TestExpression : Expression {
  explicit TestExpression(size_t line_in) : Expression(ExpressionKind::kTest, line_in) {}
  ExpressionPtr operand;
  std::string name;
  Test test = nullptr;  // null: unknown, an error only when it is reached
  bool negated = false;
  CallArguments arguments;
};

enum class StatementKind {
  kText,
  kOutput,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kScope,
  kBreak,
  kContinue,
};

struct Statement {
  Statement(StatementKind kind_in, size_t line_in) : kind(kind_in), line(line_in) {}
  virtual ~Statement() = default;

  const StatementKind kind;
  const size_t line;
};
using Block = std::vector<std::unique_ptr<Statement>>;

struct TextStatement : Statement {
  explicit TextStatement(size_t line_in) : Statement(StatementKind::kText, line_in) {}
  std::string text;
};

struct OutputStatement : Statement {
  explicit OutputStatement(size_t line_in) : Statement(StatementKind::kOutput, line_in) {}
  ExpressionPtr value;
};

struct IfStatement : Statement {
  explicit IfStatement(size_t line_in) : Statement(StatementKind::kIf, line_in) {}
  std::vector<std::pair<ExpressionPtr, Block>> branches;  // if, elif, …
  Block otherwise;
};

struct ForStatement : Statement {
  explicit ForStatement(size_t line_in) : Statement(StatementKind::kFor, line_in) {}
  ExpressionPtr target;  // Name or SequenceLiteral of targets
  ExpressionPtr iterable;
  ExpressionPtr condition;  // `for x in y if condition`, or null
  Block body;
  Block otherwise;
};

// An assignment target is a Name, an Attribute of a Name (a namespace), or a SequenceLiteral of
// targets.
struct SetStatement : Statement {
  explicit SetStatement(size_t line_in) : Statement(StatementKind::kSet, line_in) {}
  ExpressionPtr target;
  ExpressionPtr value;
};

// {% set name | filter %} … {% endset %}
struct SetBlockStatement : Statement {
  explicit SetBlockStatement(size_t line_in) : Statement(StatementKind::kSetBlock, line_in) {}
  ExpressionPtr target;
  ExpressionPtr filter;  // Filter whose innermost operand is null, or null
  Block body;
};

struct MacroDefinition {
  struct Parameter {
    std::string name;
    ExpressionPtr default_value;  // or null
  };
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
  // Whether the body reads these names; a macro takes extra arguments only then.
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

struct MacroStatement : Statement {
  explicit MacroStatement(size_t line_in) : Statement(StatementKind::kMacro, line_in) {}
  MacroDefinition macro;
};

// {% call(x) macro(…) %} … {% endcall %}: the body is the macro's `caller`.
struct CallBlockStatement : Statement {
  explicit CallBlockStatement(size_t line_in) : Statement(StatementKind::kCallBlock, line_in) {}
  MacroDefinition caller;
  ExpressionPtr call;  // Call
};

struct FilterBlockStatement : Statement {
  explicit FilterBlockStatement(size_t line_in) : Statement(StatementKind::kFilterBlock, line_in) {}
  ExpressionPtr filter;
  Block body;
};

// {% with a = 1 %} … and {% generation %} …: a scope of its own.
struct ScopeStatement : Statement {
  explicit ScopeStatement(size_t line_in) : Statement(StatementKind::kScope, line_in) {}
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> assignments;
  Block body;
};

struct JumpStatement : Statement {
  JumpStatement(size_t line_in, bool is_break)
      : Statement(is_break ? StatementKind::kBreak : StatementKind::kContinue, line_in) {}
};

}  // namespace layercake::model::jinja
