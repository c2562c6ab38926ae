#include "model/jinja/lexer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace layercake::model::jinja {
namespace {

using ::testing::HasSubstr;

// The text tokens, with "|" where a tag stood.
std::string TextOf(std::string_view source) {
  const auto tokens = Tokenize(source);
  if (!tokens.ok()) return "error: " + std::string(tokens.status().message());
  std::string text;
  for (const Token& token : *tokens) {
    if (token.type == Token::Type::kText) text += token.text;
    if (token.type == Token::Type::kBlockBegin || token.type == Token::Type::kVariableBegin) {
      text += "|";
    }
  }
  return text;
}

TEST(Lexer, TakesAwayTheWhiteSpaceThatJinjaTakes) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n  {% x %}\nb", "a\n|b"},      // lstrip_blocks and trim_blocks
      {"a\n  {%+ x %}\nb", "a\n  |b"},   // + keeps what is before
      {"a\n  {% x +%}\nb", "a\n|\nb"},   // + keeps the newline behind
      {"a \n {%- x -%} \n b", "a|b"},    // - takes all of it
      {"a\n  {{ x }}\nb", "a\n  |\nb"},  // output tags take nothing
      {"a \n {{- x -}} \n b", "a|b"},
      {"a  {% x %}\n\nb", "a  |\nb"},  // text before it on the line: nothing to strip
      {"a\n  {# c #}\n  b", "a\n  b"},
      {"a {#- c -#} b", "ab"},
      {"  {% x %}  {% y %}  z", "|  |  z"},
      {"a\n", "a"},  // one newline at the end goes
      {"a\n\n", "a\n"},
      {"a\r\nb\rc", "a\nb\nc"},
      {"{% raw %}{{ x }}{% endraw %}y", "{{ x }}y"},
  };
  for (const auto& [source, expected] : cases) EXPECT_EQ(TextOf(source), expected) << source;
}

TEST(Lexer, KnowsNumbersStringsAndOperators) {
  const auto tokens = Tokenize("{{ 1_0 0x1f 2.5e1 x.1.2 'a\\n' // ** != }}");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  ASSERT_EQ(tokens->size(), 15U);
  EXPECT_EQ((*tokens)[1].integer, 10);
  EXPECT_EQ((*tokens)[2].integer, 31);
  EXPECT_EQ((*tokens)[3].number, 25.0);
  EXPECT_EQ((*tokens)[8].type, Token::Type::kInteger);
  EXPECT_EQ((*tokens)[9].text, "a\n");
  EXPECT_EQ((*tokens)[10].text, "//");
  EXPECT_EQ((*tokens)[11].text, "**");
}

TEST(Lexer, NamesLineAndColumnOfWhatItRefuses) {
  const std::pair<const char*, const char*> cases[] = {
      {"ab\n {{ $ }}", "line 2, column 5: unexpected character '$'"},
      {"é {{ 'x }}", "line 1, column 6: this string has no closing quote"},
      {"{# x", "line 1, column 1: this comment has no end"},
      {"{% raw %} x", "line 1, column 1: this raw block has no end"},
      {"{{ (1] }}", "line 1, column 6: unexpected ']', expected ')'"},
      {"{{ ) }}", "line 1, column 4: unexpected ')'"},
      {"{{ x", "this tag has no end: expected '}}'"},
      {"{{ 99999999999999999999 }}", "is not an integer of 64 bits"},
      {"{{ 007 }}", "is not an integer"},
      {"{{ '\\ud800' }}", "does not name a character"},
      {"{{ '\\x4' }}", "does not name a character"},
      {"{{ '\\N{DASH}' }}", "\\N{name} is not supported"},
  };
  for (const auto& [source, message] : cases) {
    EXPECT_THAT(TextOf(source), HasSubstr(message)) << source;
  }
}

}  // namespace
}  // namespace layercake::model::jinja
