// Expressions, from the loosest binding to the tightest: a if b else c; or; and; not; comparisons;
// + -;
// ~; * / // %; **; unary signs; subscripts and calls; filters and tests.
#include <algorithm>
#include <optional>

#include "base/status_macros.h"
#include "model/jinja/error.h"
#include "model/jinja/parser.h"
#include "model/jinja/parser_nesting.h"

namespace layercake::model::jinja {
namespace {

int HeightOf(const ExpressionPtr& expression) { return expression ? expression->height : 0; }

struct BinaryRule {
  std::string_view token;
  BinaryOperator op;
  int precedence;
};
// All associate to the left, ** too (as in Jinja, not as in Python).
constexpr BinaryRule kBinaryRules[] = {
    {"+", BinaryOperator::kAdd, 1},    {"-", BinaryOperator::kSubtract, 1},
    {"~", BinaryOperator::kConcat, 2}, {"*", BinaryOperator::kMultiply, 3},
    {"/", BinaryOperator::kDivide, 3}, {"//", BinaryOperator::kFloorDivide, 3},
    {"%", BinaryOperator::kModulo, 3}, {"**", BinaryOperator::kPower, 4},
};

struct ComparisonRule {
  std::string_view token;
  ComparisonOperator op;
};
constexpr ComparisonRule kComparisonRules[] = {
    {"==", ComparisonOperator::kEqual},  {"!=", ComparisonOperator::kNotEqual},
    {"<", ComparisonOperator::kLess},    {"<=", ComparisonOperator::kLessEqual},
    {">", ComparisonOperator::kGreater}, {">=", ComparisonOperator::kGreaterEqual},
};

}  // namespace

absl::Status Parser::NestingError() const {
  return Error(Cat("expressions or blocks nest deeper than max_nesting=", max_nesting_));
}

absl::Status Parser::SetHeight(Expression& node, int child_height) const {
  node.height = std::max(node.height, child_height + 1);
  return node.height > max_nesting_ ? NestingError() : absl::OkStatus();
}

Parser::ExpressionOr Parser::ParseExpression() {
  const Nesting nesting(*this);
  LC_RETURN_IF_ERROR(nesting.Check());
  LC_ASSIGN_OR_RETURN(ExpressionPtr value, ParseLogical(true));
  while (IsWord("if")) {
    auto node = std::make_unique<Conditional>(Current().line);
    Next();
    node->then = std::move(value);
    ++condition_depth_;
    LC_ASSIGN_OR_RETURN(node->condition, ParseLogical(true));
    if (SkipWord("else")) {
      LC_ASSIGN_OR_RETURN(node->otherwise, ParseExpression());
    }
    --condition_depth_;
    LC_RETURN_IF_ERROR(SetHeight(*node, std::max({HeightOf(node->then), HeightOf(node->condition),
                                                  HeightOf(node->otherwise)})));
    value = std::move(node);
  }
  return value;
}

bool Parser::AtTupleEnd(std::string_view end_word) const {
  const Token::Type type = Current().type;
  return type == Token::Type::kVariableEnd || type == Token::Type::kBlockEnd || IsOperator(")") ||
         (!end_word.empty() && IsWord(end_word));
}

// One expression, or several with commas, which make a tuple. `end_word` ends it too.
Parser::ExpressionOr Parser::ParseTuple(bool with_conditional, bool in_parentheses,
                                        std::string_view end_word) {
  const Nesting nesting(*this);
  LC_RETURN_IF_ERROR(nesting.Check());
  auto tuple = std::make_unique<SequenceLiteral>(Current().line, true);
  bool is_tuple = false;
  while (!AtTupleEnd(end_word)) {
    LC_ASSIGN_OR_RETURN(ExpressionPtr item,
                        with_conditional ? ParseExpression() : ParseLogical(true));
    LC_RETURN_IF_ERROR(SetHeight(*tuple, item->height));
    tuple->items.push_back(std::move(item));
    if (!SkipOperator(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return tuple;
  if (!tuple->items.empty()) return std::move(tuple->items.front());
  if (in_parentheses) return tuple;
  return Error(Cat("expected an expression, found ", Describe(Current())));
}

Parser::ExpressionOr Parser::ParseLogical(bool is_or) {
  LC_ASSIGN_OR_RETURN(ExpressionPtr left, is_or ? ParseLogical(false) : ParseNot());
  while (IsWord(is_or ? "or" : "and")) {
    auto node = std::make_unique<Logical>(Current().line);
    Next();
    node->is_and = !is_or;
    node->left = std::move(left);
    LC_ASSIGN_OR_RETURN(node->right, is_or ? ParseLogical(false) : ParseNot());
    LC_RETURN_IF_ERROR(SetHeight(*node, std::max(HeightOf(node->left), HeightOf(node->right))));
    left = std::move(node);
  }
  return left;
}

Parser::ExpressionOr Parser::ParseNot() {
  if (!IsWord("not")) return ParseComparison();
  const Nesting nesting(*this);
  LC_RETURN_IF_ERROR(nesting.Check());
  auto node = std::make_unique<Unary>(Current().line);
  Next();
  node->op = UnaryOperator::kNot;
  LC_ASSIGN_OR_RETURN(node->operand, ParseNot());
  LC_RETURN_IF_ERROR(SetHeight(*node, HeightOf(node->operand)));
  return node;
}

Parser::ExpressionOr Parser::ParseComparison() {
  const size_t line = Current().line;
  LC_ASSIGN_OR_RETURN(ExpressionPtr first, ParseBinary(1));
  std::unique_ptr<Comparison> node;
  while (true) {
    std::optional<ComparisonOperator> op;
    for (const ComparisonRule& rule : kComparisonRules) {
      if (SkipOperator(rule.token)) op = rule.op;
      if (op) break;
    }
    if (!op && SkipWord("in")) op = ComparisonOperator::kIn;
    if (!op && IsWord("not") && Ahead().type == Token::Type::kName && Ahead().text == "in") {
      Next();
      Next();
      op = ComparisonOperator::kNotIn;
    }
    if (!op) break;
    if (node == nullptr) {
      node = std::make_unique<Comparison>(line);
      LC_RETURN_IF_ERROR(SetHeight(*node, HeightOf(first)));
      node->first = std::move(first);
    }
    LC_ASSIGN_OR_RETURN(ExpressionPtr operand, ParseBinary(1));
    LC_RETURN_IF_ERROR(SetHeight(*node, HeightOf(operand)));
    node->rest.emplace_back(*op, std::move(operand));
  }
  if (node == nullptr) return first;
  return node;
}

Parser::ExpressionOr Parser::ParseBinary(int min_precedence) {
  LC_ASSIGN_OR_RETURN(ExpressionPtr left, ParseUnary(true));
  while (Current().type == Token::Type::kOperator) {
    const BinaryRule* rule =
        std::find_if(std::begin(kBinaryRules), std::end(kBinaryRules),
                     [this](const BinaryRule& r) { return r.token == Current().text; });
    if (rule == std::end(kBinaryRules) || rule->precedence < min_precedence) break;
    auto node = std::make_unique<Binary>(Current().line);
    Next();
    node->op = rule->op;
    node->left = std::move(left);
    LC_ASSIGN_OR_RETURN(node->right, ParseBinary(rule->precedence + 1));
    LC_RETURN_IF_ERROR(SetHeight(*node, std::max(HeightOf(node->left), HeightOf(node->right))));
    left = std::move(node);
  }
  return left;
}

// A sign binds tighter than a filter: -1|abs is (-1)|abs.
Parser::ExpressionOr Parser::ParseUnary(bool with_filters) {
  ExpressionPtr value;
  if (IsOperator("-") || IsOperator("+")) {
    const Nesting nesting(*this);
    LC_RETURN_IF_ERROR(nesting.Check());
    auto node = std::make_unique<Unary>(Current().line);
    node->op = IsOperator("-") ? UnaryOperator::kMinus : UnaryOperator::kPlus;
    Next();
    LC_ASSIGN_OR_RETURN(node->operand, ParseUnary(false));
    LC_RETURN_IF_ERROR(SetHeight(*node, HeightOf(node->operand)));
    value = std::move(node);
  } else {
    LC_ASSIGN_OR_RETURN(value, ParsePrimary());
  }
  LC_ASSIGN_OR_RETURN(value, ParsePostfix(std::move(value)));
  if (with_filters) return ParseFilters(std::move(value));
  return value;
}

Parser::ExpressionOr Parser::ParsePrimary() {
  const Token& token = Current();
  switch (token.type) {
    case Token::Type::kName: {
      Next();
      if (token.text == "true" || token.text == "True") {
        return std::make_unique<Constant>(token.line, Value::Bool(true));
      }
      if (token.text == "false" || token.text == "False") {
        return std::make_unique<Constant>(token.line, Value::Bool(false));
      }
      if (token.text == "none" || token.text == "None") {
        return std::make_unique<Constant>(token.line, Value::None());
      }
      for (MacroDefinition* macro : open_macros_) {
        macro->uses_caller |= token.text == "caller";
        macro->uses_varargs |= token.text == "varargs";
        macro->uses_kwargs |= token.text == "kwargs";
      }
      return std::make_unique<Name>(token.line, token.text);
    }
    case Token::Type::kString: {
      std::string text;
      while (Current().type == Token::Type::kString) {
        text += Current().text;
        Next();
      }
      return std::make_unique<Constant>(token.line, Value::String(MarkedString(text, true)));
    }
    case Token::Type::kInteger:
      Next();
      return std::make_unique<Constant>(token.line, Value::Integer(token.integer));
    case Token::Type::kFloat:
      Next();
      return std::make_unique<Constant>(token.line, Value::Float(token.number));
    default:
      break;
  }
  if (IsOperator("[")) return ParseListLiteral();
  if (IsOperator("{")) return ParseDictLiteral();
  if (!SkipOperator("(")) {
    return Error(Cat("expected an expression, found ", Describe(token)));
  }
  LC_ASSIGN_OR_RETURN(ExpressionPtr value, ParseTuple(true, true, ""));
  LC_RETURN_IF_ERROR(ExpectOperator(")"));
  return value;
}

Parser::ExpressionOr Parser::ParseListLiteral() {
  auto list = std::make_unique<SequenceLiteral>(Current().line, false);
  Next();
  while (!IsOperator("]")) {
    LC_ASSIGN_OR_RETURN(ExpressionPtr item, ParseExpression());
    LC_RETURN_IF_ERROR(SetHeight(*list, item->height));
    list->items.push_back(std::move(item));
    if (!SkipOperator(",")) break;
  }
  LC_RETURN_IF_ERROR(ExpectOperator("]"));
  return list;
}

Parser::ExpressionOr Parser::ParseDictLiteral() {
  auto dict = std::make_unique<DictLiteral>(Current().line);
  Next();
  while (!IsOperator("}")) {
    LC_ASSIGN_OR_RETURN(ExpressionPtr key, ParseExpression());
    LC_RETURN_IF_ERROR(ExpectOperator(":"));
    LC_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
    LC_RETURN_IF_ERROR(SetHeight(*dict, std::max(key->height, value->height)));
    dict->entries.emplace_back(std::move(key), std::move(value));
    if (!SkipOperator(",")) break;
  }
  LC_RETURN_IF_ERROR(ExpectOperator("}"));
  return dict;
}

Parser::ExpressionOr Parser::ParsePostfix(ExpressionPtr operand) {
  while (true) {
    if (IsOperator(".") || IsOperator("[")) {
      LC_ASSIGN_OR_RETURN(operand, ParseSubscript(std::move(operand)));
    } else if (IsOperator("(")) {
      LC_ASSIGN_OR_RETURN(operand, ParseCall(std::move(operand)));
    } else {
      return operand;
    }
  }
}

Parser::ExpressionOr Parser::ParseFilters(ExpressionPtr operand) {
  while (true) {
    if (SkipOperator("|")) {
      LC_ASSIGN_OR_RETURN(operand, ParseFilter(std::move(operand)));
    } else if (IsWord("is")) {
      LC_ASSIGN_OR_RETURN(operand, ParseTest(std::move(operand)));
    } else if (IsOperator("(")) {
      LC_ASSIGN_OR_RETURN(operand, ParseCall(std::move(operand)));
    } else {
      return operand;
    }
  }
}

Parser::ExpressionOr Parser::ParseSubscript(ExpressionPtr object) {
  const size_t line = Current().line;
  if (SkipOperator(".")) {
    if (Current().type == Token::Type::kInteger) {
      auto node = std::make_unique<Item>(line);
      node->key = std::make_unique<Constant>(line, Value::Integer(Current().integer));
      Next();
      LC_RETURN_IF_ERROR(SetHeight(*node, HeightOf(object)));
      node->object = std::move(object);
      return node;
    }
    auto node = std::make_unique<Attribute>(line);
    LC_ASSIGN_OR_RETURN(node->name, ExpectName());
    LC_RETURN_IF_ERROR(SetHeight(*node, HeightOf(object)));
    node->object = std::move(object);
    return node;
  }
  Next();  // [
  ExpressionPtr first;
  if (!IsOperator(":")) {
    LC_ASSIGN_OR_RETURN(first, ParseExpression());
  }
  if (!SkipOperator(":")) {
    auto node = std::make_unique<Item>(line);
    LC_RETURN_IF_ERROR(ExpectOperator("]"));
    LC_RETURN_IF_ERROR(SetHeight(*node, std::max(HeightOf(object), HeightOf(first))));
    node->object = std::move(object);
    node->key = std::move(first);
    return node;
  }
  auto node = std::make_unique<Slice>(line);
  node->start = std::move(first);
  if (!IsOperator(":") && !IsOperator("]")) {
    LC_ASSIGN_OR_RETURN(node->stop, ParseExpression());
  }
  if (SkipOperator(":") && !IsOperator("]")) {
    LC_ASSIGN_OR_RETURN(node->step, ParseExpression());
  }
  LC_RETURN_IF_ERROR(ExpectOperator("]"));
  node->object = std::move(object);
  LC_RETURN_IF_ERROR(SetHeight(*node, std::max({HeightOf(node->object), HeightOf(node->start),
                                                HeightOf(node->stop), HeightOf(node->step)})));
  return node;
}

Parser::ExpressionOr Parser::ParseCall(ExpressionPtr callee) {
  auto node = std::make_unique<Call>(Current().line);
  LC_ASSIGN_OR_RETURN(const int height, ParseArguments(node->arguments));
  LC_RETURN_IF_ERROR(SetHeight(*node, std::max(height, HeightOf(callee))));
  node->callee = std::move(callee);
  return node;
}

// (a, b, name=c, *list, **dict); returns the height of the tallest argument.
absl::StatusOr<int> Parser::ParseArguments(CallArguments& arguments) {
  LC_RETURN_IF_ERROR(ExpectOperator("("));
  int height = 0;
  while (!IsOperator(")")) {
    const bool is_named = Current().type == Token::Type::kName &&
                          Ahead().type == Token::Type::kOperator && Ahead().text == "=";
    ExpressionPtr* slot = nullptr;
    if (SkipOperator("*")) {
      if (arguments.star || arguments.double_star) return Error("a second *argument list");
      slot = &arguments.star;
    } else if (SkipOperator("**")) {
      if (arguments.double_star) return Error("a second **argument list");
      slot = &arguments.double_star;
    } else if (is_named) {
      if (arguments.double_star) return Error("a named argument after **arguments");
      arguments.named.emplace_back(Current().text, nullptr);
      slot = &arguments.named.back().second;
      Next();
      Next();
    } else {
      if (arguments.star || arguments.double_star || !arguments.named.empty()) {
        return Error("a positional argument after named ones");
      }
      slot = &arguments.positional.emplace_back();
    }
    LC_ASSIGN_OR_RETURN(*slot, ParseExpression());
    height = std::max(height, HeightOf(*slot));
    if (!SkipOperator(",")) break;
  }
  LC_RETURN_IF_ERROR(ExpectOperator(")"));
  return height;
}

absl::StatusOr<std::string> Parser::ParseDottedName() {
  LC_ASSIGN_OR_RETURN(std::string name, ExpectName());
  while (SkipOperator(".")) {
    LC_ASSIGN_OR_RETURN(const std::string part, ExpectName());
    name += "." + part;
  }
  return name;
}

Parser::ExpressionOr Parser::ParseFilter(ExpressionPtr operand) {
  const Token& token = Current();
  auto node = std::make_unique<Filter>(token.line);
  LC_ASSIGN_OR_RETURN(node->name, ParseDottedName());
  node->native = FindFilter(node->name);
  if (node->native == nullptr && condition_depth_ == 0) {
    return ErrorAt(token, Cat("there is no filter '", node->name, "'"));
  }
  int height = HeightOf(operand);
  if (IsOperator("(")) {
    LC_ASSIGN_OR_RETURN(const int argument_height, ParseArguments(node->arguments));
    height = std::max(height, argument_height);
  }
  LC_RETURN_IF_ERROR(SetHeight(*node, height));
  node->operand = std::move(operand);
  return node;
}

Parser::ExpressionOr Parser::ParseTest(ExpressionPtr operand) {
  Next();  // is
  auto node = std::make_unique<TestExpression>(Current().line);
  node->negated = SkipWord("not");
  const Token& token = Current();
  LC_ASSIGN_OR_RETURN(node->name, ParseDottedName());
  node->test = FindTest(node->name);
  if (node->test == nullptr && condition_depth_ == 0) {
    return ErrorAt(token, Cat("there is no test '", node->name, "'"));
  }
  int height = HeightOf(operand);
  const Token::Type type = Current().type;
  if (IsOperator("(")) {
    LC_ASSIGN_OR_RETURN(const int argument_height, ParseArguments(node->arguments));
    height = std::max(height, argument_height);
  } else if ((type == Token::Type::kName && !IsWord("else") && !IsWord("or") && !IsWord("and")) ||
             type == Token::Type::kString || type == Token::Type::kInteger ||
             type == Token::Type::kFloat || IsOperator("[") || IsOperator("{")) {
    // `x is divisibleby 3`: one argument without parentheses.
    if (IsWord("is")) return Error("tests cannot be chained with 'is'");
    LC_ASSIGN_OR_RETURN(ExpressionPtr argument, ParsePrimary());
    LC_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    height = std::max(height, HeightOf(argument));
    node->arguments.positional.push_back(std::move(argument));
  }
  LC_RETURN_IF_ERROR(SetHeight(*node, height));
  node->operand = std::move(operand);
  return node;
}

}  // namespace layercake::model::jinja
