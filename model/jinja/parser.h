// From tokens to the parsed template: recursive descent for statements, precedence climbing for
// expressions. Nesting is bounded, so hostile templates cannot overflow the stack.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "model/jinja/ast.h"
#include "model/jinja/lexer.h"
#include "model/jinja/template.h"

namespace layercake::model::jinja {

class Parser {
 public:
  Parser(std::vector<Token> tokens, int max_nesting)
      : tokens_(std::move(tokens)), max_nesting_(max_nesting) {}

  // The whole template. InvalidArgument names line and column.
  absl::StatusOr<Block> ParseTemplate();

 private:
  using StatementOr = absl::StatusOr<std::unique_ptr<Statement>>;
  using ExpressionOr = absl::StatusOr<ExpressionPtr>;

  // Tokens.
  const Token& Current() const { return tokens_[position_]; }
  const Token& Ahead() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  void Next() { position_ = std::min(position_ + 1, tokens_.size() - 1); }
  bool IsOperator(std::string_view op) const;
  bool IsWord(std::string_view word) const;
  bool SkipOperator(std::string_view op);
  bool SkipWord(std::string_view word);
  absl::Status ExpectOperator(std::string_view op);
  absl::Status ExpectWord(std::string_view word);
  absl::Status Expect(Token::Type type);
  absl::StatusOr<std::string> ExpectName();
  absl::Status Error(std::string_view message) const { return ErrorAt(Current(), message); }
  static absl::Status ErrorAt(const Token& token, std::string_view message);
  static std::string Describe(const Token& token);

  // Statements (parser.cc).
  absl::StatusOr<Block> ParseBlock(std::initializer_list<std::string_view> end_words);
  absl::StatusOr<Block> ParseBody(std::initializer_list<std::string_view> end_words);
  StatementOr ParseStatement();
  StatementOr ParseIf();
  StatementOr ParseFor();
  StatementOr ParseSet();
  StatementOr ParseMacro();
  StatementOr ParseCallBlock();
  StatementOr ParseFilterBlock();
  StatementOr ParseWith();
  StatementOr ParseGeneration();
  StatementOr ParsePrint();
  StatementOr ParseJump();
  absl::Status ParseSignature(MacroDefinition& macro);
  absl::Status ParseMacroBody(MacroDefinition& macro, std::string_view end_word);
  ExpressionOr ParseTarget(bool with_namespace, std::string_view end_word);
  ExpressionOr ParseSingleTarget(bool with_namespace);

  // Expressions (parser_expressions.cc).
  ExpressionOr ParseExpression();
  ExpressionOr ParseTuple(bool with_conditional, bool in_parentheses, std::string_view end_word);
  ExpressionOr ParseLogical(bool is_or);
  ExpressionOr ParseNot();
  ExpressionOr ParseComparison();
  ExpressionOr ParseBinary(int min_precedence);
  ExpressionOr ParseUnary(bool with_filters);
  ExpressionOr ParsePrimary();
  ExpressionOr ParseListLiteral();
  ExpressionOr ParseDictLiteral();
  ExpressionOr ParsePostfix(ExpressionPtr operand);
  ExpressionOr ParseFilters(ExpressionPtr operand);
  ExpressionOr ParseSubscript(ExpressionPtr object);
  ExpressionOr ParseCall(ExpressionPtr callee);
  ExpressionOr ParseFilter(ExpressionPtr operand);
  ExpressionOr ParseTest(ExpressionPtr operand);
  absl::StatusOr<int> ParseArguments(CallArguments& arguments);
  absl::StatusOr<std::string> ParseDottedName();
  bool AtTupleEnd(std::string_view end_word) const;
  // Sets the height of a node above children of height `child_height`.
  absl::Status SetHeight(Expression& node, int child_height) const;
  absl::Status NestingError() const;

  class Nesting;

  std::vector<Token> tokens_;
  size_t position_ = 0;
  const int max_nesting_;
  int nesting_ = 0;
  int loop_depth_ = 0;
  // Inside an `if`, an unknown filter or test is an error only when it is reached: templates guard
  // them.
  int condition_depth_ = 0;
  std::vector<MacroDefinition*> open_macros_;
};

}  // namespace layercake::model::jinja
