#include "model/jinja/parser.h"

#include "base/status_macros.h"
#include "model/jinja/error.h"
#include "model/jinja/parser_nesting.h"

namespace layercake::model::jinja {

absl::Status Parser::ErrorAt(const Token& token, std::string_view message) {
  return SyntaxError(token.line, token.column, message);
}

std::string Parser::Describe(const Token& token) {
  switch (token.type) {
    case Token::Type::kText:
      return "text";
    case Token::Type::kBlockBegin:
      return "'{%'";
    case Token::Type::kBlockEnd:
      return "'%}'";
    case Token::Type::kVariableBegin:
      return "'{{'";
    case Token::Type::kVariableEnd:
      return "'}}'";
    case Token::Type::kString:
      return "a string";
    case Token::Type::kInteger:
    case Token::Type::kFloat:
      return "a number";
    case Token::Type::kName:
    case Token::Type::kOperator:
      return Cat("'", token.text, "'");
    case Token::Type::kEnd:
      return "the end of the template";
  }
  return "a token";
}

bool Parser::IsOperator(std::string_view op) const {
  return Current().type == Token::Type::kOperator && Current().text == op;
}

bool Parser::IsWord(std::string_view word) const {
  return Current().type == Token::Type::kName && Current().text == word;
}

bool Parser::SkipOperator(std::string_view op) {
  if (!IsOperator(op)) return false;
  Next();
  return true;
}

bool Parser::SkipWord(std::string_view word) {
  if (!IsWord(word)) return false;
  Next();
  return true;
}

absl::Status Parser::ExpectOperator(std::string_view op) {
  if (SkipOperator(op)) return absl::OkStatus();
  return Error(Cat("expected '", op, "', found ", Describe(Current())));
}

absl::Status Parser::ExpectWord(std::string_view word) {
  if (SkipWord(word)) return absl::OkStatus();
  return Error(Cat("expected '", word, "', found ", Describe(Current())));
}

absl::Status Parser::Expect(Token::Type type) {
  if (Current().type == type) {
    Next();
    return absl::OkStatus();
  }
  Token expected;
  expected.type = type;
  return Error(Cat("expected ", Describe(expected), ", found ", Describe(Current())));
}

absl::StatusOr<std::string> Parser::ExpectName() {
  if (Current().type != Token::Type::kName) {
    return Error(Cat("expected a name, found ", Describe(Current())));
  }
  std::string name = Current().text;
  Next();
  return name;
}

absl::StatusOr<Block> Parser::ParseTemplate() {
  LC_ASSIGN_OR_RETURN(Block block, ParseBlock({}));
  if (Current().type != Token::Type::kEnd) {
    return Error(Cat("expected the end of the template, found ", Describe(Current())));
  }
  return block;
}

// Statements up to a tag that starts with one of `end_words` (which stays the current token), or up
// to the end of the template when there are none.
absl::StatusOr<Block> Parser::ParseBlock(std::initializer_list<std::string_view> end_words) {
  const Nesting nesting(*this);
  LC_RETURN_IF_ERROR(nesting.Check());
  const size_t first_line = Current().line;
  Block block;
  while (Current().type != Token::Type::kEnd) {
    if (Current().type == Token::Type::kText) {
      auto text = std::make_unique<TextStatement>(Current().line);
      text->text = Current().text;
      block.push_back(std::move(text));
      Next();
    } else if (Current().type == Token::Type::kVariableBegin) {
      auto output = std::make_unique<OutputStatement>(Current().line);
      Next();
      LC_ASSIGN_OR_RETURN(output->value, ParseTuple(true, false, ""));
      LC_RETURN_IF_ERROR(Expect(Token::Type::kVariableEnd));
      block.push_back(std::move(output));
    } else {
      LC_RETURN_IF_ERROR(Expect(Token::Type::kBlockBegin));
      for (const std::string_view word : end_words) {
        if (IsWord(word)) return block;
      }
      LC_ASSIGN_OR_RETURN(std::unique_ptr<Statement> statement, ParseStatement());
      if (statement != nullptr) block.push_back(std::move(statement));
      LC_RETURN_IF_ERROR(Expect(Token::Type::kBlockEnd));
    }
  }
  if (end_words.size() == 0) return block;
  return Error(Cat("the block that starts in line ", first_line, " has no end: expected '{% ",
                   *(end_words.end() - 1), " %}'"));
}

// The rest of an opening tag and the block behind it.
absl::StatusOr<Block> Parser::ParseBody(std::initializer_list<std::string_view> end_words) {
  LC_RETURN_IF_ERROR(Expect(Token::Type::kBlockEnd));
  return ParseBlock(end_words);
}

Parser::StatementOr Parser::ParseStatement() {
  if (IsWord("if")) return ParseIf();
  if (IsWord("for")) return ParseFor();
  if (IsWord("set")) return ParseSet();
  if (IsWord("macro")) return ParseMacro();
  if (IsWord("call")) return ParseCallBlock();
  if (IsWord("filter")) return ParseFilterBlock();
  if (IsWord("with")) return ParseWith();
  if (IsWord("generation")) return ParseGeneration();
  if (IsWord("print")) return ParsePrint();
  if (IsWord("break") || IsWord("continue")) return ParseJump();
  for (const std::string_view tag :
       {"include", "import", "from", "extends", "block", "autoescape", "do", "trans"}) {
    if (IsWord(tag)) {
      return Error(Cat("the tag '", tag, "' is not supported in a chat template"));
    }
  }
  return Error(Cat("unknown tag ", Describe(Current())));
}

Parser::StatementOr Parser::ParseIf() {
  auto node = std::make_unique<IfStatement>(Current().line);
  ++condition_depth_;
  while (true) {
    Next();  // if, elif
    auto& [condition, body] = node->branches.emplace_back();
    LC_ASSIGN_OR_RETURN(condition, ParseTuple(false, false, ""));
    LC_ASSIGN_OR_RETURN(body, ParseBody({"elif", "else", "endif"}));
    if (!IsWord("elif")) break;
  }
  if (SkipWord("else")) {
    LC_ASSIGN_OR_RETURN(node->otherwise, ParseBody({"endif"}));
  }
  --condition_depth_;
  Next();  // endif
  return node;
}

Parser::StatementOr Parser::ParseFor() {
  auto node = std::make_unique<ForStatement>(Current().line);
  Next();
  LC_ASSIGN_OR_RETURN(node->target, ParseTarget(false, "in"));
  LC_RETURN_IF_ERROR(ExpectWord("in"));
  LC_ASSIGN_OR_RETURN(node->iterable, ParseTuple(false, false, "recursive"));
  if (SkipWord("if")) {
    LC_ASSIGN_OR_RETURN(node->condition, ParseExpression());
  }
  if (IsWord("recursive")) return Error("recursive loops are not supported: use a macro");
  ++loop_depth_;
  LC_ASSIGN_OR_RETURN(node->body, ParseBody({"else", "endfor"}));
  --loop_depth_;
  if (SkipWord("else")) {
    LC_ASSIGN_OR_RETURN(node->otherwise, ParseBody({"endfor"}));
  }
  Next();  // endfor
  return node;
}

Parser::StatementOr Parser::ParseJump() {
  auto node = std::make_unique<JumpStatement>(Current().line, IsWord("break"));
  if (loop_depth_ == 0) return Error(Cat(Describe(Current()), " outside of a loop"));
  Next();
  return node;
}

// A name, namespace.attribute (with `with_namespace`), or (nested) targets with commas.
Parser::ExpressionOr Parser::ParseTarget(bool with_namespace, std::string_view end_word) {
  const Nesting nesting(*this);
  LC_RETURN_IF_ERROR(nesting.Check());
  auto targets = std::make_unique<SequenceLiteral>(Current().line, true);
  bool is_tuple = false;
  while (!AtTupleEnd(end_word) && !IsOperator("=")) {
    LC_ASSIGN_OR_RETURN(ExpressionPtr target, ParseSingleTarget(with_namespace));
    LC_RETURN_IF_ERROR(SetHeight(*targets, target->height));
    targets->items.push_back(std::move(target));
    if (!SkipOperator(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return targets;
  if (targets->items.empty()) {
    return Error(Cat("expected a name to assign to, found ", Describe(Current())));
  }
  return std::move(targets->items.front());
}

Parser::ExpressionOr Parser::ParseSingleTarget(bool with_namespace) {
  if (SkipOperator("(")) {
    LC_ASSIGN_OR_RETURN(ExpressionPtr target, ParseTarget(with_namespace, ""));
    LC_RETURN_IF_ERROR(ExpectOperator(")"));
    return target;
  }
  const Token& token = Current();
  LC_ASSIGN_OR_RETURN(std::string name, ExpectName());
  for (const std::string_view word : {"true", "false", "none", "True", "False", "None", "loop"}) {
    if (word == "loop" && with_namespace) continue;  // {% set loop = … %} is legal, if odd
    if (name == word) return ErrorAt(token, Cat("cannot assign to '", word, "'"));
  }
  auto target = std::make_unique<Name>(token.line, std::move(name));
  if (!with_namespace || !SkipOperator(".")) return target;
  auto attribute = std::make_unique<Attribute>(token.line);
  LC_ASSIGN_OR_RETURN(attribute->name, ExpectName());
  attribute->object = std::move(target);
  return attribute;
}

Parser::StatementOr Parser::ParseSet() {
  const size_t line = Current().line;
  Next();
  LC_ASSIGN_OR_RETURN(ExpressionPtr target, ParseTarget(true, ""));
  if (SkipOperator("=")) {
    auto node = std::make_unique<SetStatement>(line);
    node->target = std::move(target);
    LC_ASSIGN_OR_RETURN(node->value, ParseTuple(true, false, ""));
    return node;
  }
  auto node = std::make_unique<SetBlockStatement>(line);
  node->target = std::move(target);
  while (SkipOperator("|")) {
    LC_ASSIGN_OR_RETURN(node->filter, ParseFilter(std::move(node->filter)));
  }
  const int outer_loops = std::exchange(loop_depth_, 0);
  LC_ASSIGN_OR_RETURN(node->body, ParseBody({"endset"}));
  loop_depth_ = outer_loops;
  Next();  // endset
  return node;
}

absl::Status Parser::ParseSignature(MacroDefinition& macro) {
  LC_RETURN_IF_ERROR(ExpectOperator("("));
  while (!IsOperator(")")) {
    MacroDefinition::Parameter parameter;
    LC_ASSIGN_OR_RETURN(parameter.name, ExpectName());
    if (SkipOperator("=")) {
      LC_ASSIGN_OR_RETURN(parameter.default_value, ParseExpression());
    } else if (!macro.parameters.empty() && macro.parameters.back().default_value) {
      return Error("a parameter without a default follows one with a default");
    }
    macro.parameters.push_back(std::move(parameter));
    if (!SkipOperator(",")) break;
  }
  return ExpectOperator(")");
}

// The body of a macro or call block, its end tag included.
absl::Status Parser::ParseMacroBody(MacroDefinition& macro, std::string_view end_word) {
  open_macros_.push_back(&macro);
  const int outer_loops = std::exchange(loop_depth_, 0);
  absl::StatusOr<Block> body = ParseBody({end_word});
  loop_depth_ = outer_loops;
  open_macros_.pop_back();
  if (!body.ok()) return body.status();
  macro.body = *std::move(body);
  Next();  // the end word
  return absl::OkStatus();
}

Parser::StatementOr Parser::ParseMacro() {
  auto node = std::make_unique<MacroStatement>(Current().line);
  Next();
  LC_ASSIGN_OR_RETURN(node->macro.name, ExpectName());
  LC_RETURN_IF_ERROR(ParseSignature(node->macro));
  LC_RETURN_IF_ERROR(ParseMacroBody(node->macro, "endmacro"));
  return node;
}

Parser::StatementOr Parser::ParseCallBlock() {
  auto node = std::make_unique<CallBlockStatement>(Current().line);
  Next();
  node->caller.name = "caller";
  if (IsOperator("(")) LC_RETURN_IF_ERROR(ParseSignature(node->caller));
  LC_ASSIGN_OR_RETURN(node->call, ParseExpression());
  if (node->call->kind != ExpressionKind::kCall) {
    return Error("a call block needs a macro call");
  }
  LC_RETURN_IF_ERROR(ParseMacroBody(node->caller, "endcall"));
  return node;
}

Parser::StatementOr Parser::ParseFilterBlock() {
  auto node = std::make_unique<FilterBlockStatement>(Current().line);
  Next();
  LC_ASSIGN_OR_RETURN(node->filter, ParseFilter(nullptr));
  while (SkipOperator("|")) {
    LC_ASSIGN_OR_RETURN(node->filter, ParseFilter(std::move(node->filter)));
  }
  const int outer_loops = std::exchange(loop_depth_, 0);
  LC_ASSIGN_OR_RETURN(node->body, ParseBody({"endfilter"}));
  loop_depth_ = outer_loops;
  Next();  // endfilter
  return node;
}

Parser::StatementOr Parser::ParseWith() {
  auto node = std::make_unique<ScopeStatement>(Current().line);
  Next();
  while (Current().type != Token::Type::kBlockEnd) {
    LC_ASSIGN_OR_RETURN(ExpressionPtr target, ParseTarget(false, ""));
    LC_RETURN_IF_ERROR(ExpectOperator("="));
    LC_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
    node->assignments.emplace_back(std::move(target), std::move(value));
    if (!SkipOperator(",")) break;
  }
  LC_ASSIGN_OR_RETURN(node->body, ParseBody({"endwith"}));
  Next();  // endwith
  return node;
}

// Marks what the model itself said, for training: here its content only.
Parser::StatementOr Parser::ParseGeneration() {
  auto node = std::make_unique<ScopeStatement>(Current().line);
  Next();
  const int outer_loops = std::exchange(loop_depth_, 0);
  LC_ASSIGN_OR_RETURN(node->body, ParseBody({"endgeneration"}));
  loop_depth_ = outer_loops;
  Next();  // endgeneration
  return node;
}

Parser::StatementOr Parser::ParsePrint() {
  auto node = std::make_unique<OutputStatement>(Current().line);
  Next();
  LC_ASSIGN_OR_RETURN(node->value, ParseExpression());
  return node;
}

}  // namespace layercake::model::jinja
