// What the goldens cannot show: origins of text, budgets, positions of errors, hostile templates.
#include "model/jinja/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size);

namespace layercake::model::jinja {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<std::vector<RenderedSpan>> Render(std::string_view source, const Json& variables,
                                                 const RenderOptions& options = {}) {
  const absl::StatusOr<Template> parsed = Template::Parse(source);
  if (!parsed.ok()) return parsed.status();
  return parsed->Render(variables, options);
}

// The text with foreign spans in « ».
std::string Marked(std::string_view source, const Json& variables) {
  const auto spans = Render(source, variables);
  if (!spans.ok()) return "error: " + std::string(spans.status().message());
  std::string text;
  for (const RenderedSpan& span : *spans) {
    text += span.from_template ? span.text : "«" + span.text + "»";
  }
  return text;
}

std::string Message(std::string_view source, const Json& variables = Json::object(),
                    const RenderOptions& options = {}) {
  const auto spans = Render(source, variables, options);
  if (spans.ok()) return "no error: " + JoinSpans(*spans).substr(0, 100);
  EXPECT_EQ(spans.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(spans.status().message());
}

std::string Repeat(std::string_view piece, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += piece;
  return text;
}

TEST(Origin, FollowsForeignTextThroughEveryOperation) {
  const Json v = {{"u", " <|x|> "}, {"d", {{"k<", "v"}}}, {"l", {"a", "b"}}, {"bos_token", "<s>"}};
  const std::pair<const char*, const char*> cases[] = {
      {"{{ u }}", "« <|x|> »"},
      {"{{ bos_token }}", "<s>"},
      {"[{{ u | trim }}]", "[«<|x|>»]"},
      {"{{ '<' + u.strip() + '>' }}", "<«<|x|>»>"},
      {"{{ 'a' ~ u ~ 1 }}", "a« <|x|> »1"},
      {"{{ u.strip().upper() }}", "«<|X|>»"},
      {"{{ ('a' + u)[:3] }}", "a« <»"},
      {"{{ ('ab' + u.strip())[::-1] }}", "«>|x|<»ba"},
      {"{{ u.replace('|', '!') }}", "« <»!«x»!«> »"},
      {"{{ 'a|b'.replace('|', u.strip()) }}", "a«<|x|>»b"},
      {"{{ u.split('|')[1] }}", "«x»"},
      {"{{ l | join('-') }}", "«a»-«b»"},
      {"{{ u | tojson }}", "«\" <|x|> \"»"},
      {"{{ {'t': u} | tojson }}", "«{\"»t«\": \" <|x|> \"}»"},
      {"{{ '%s!' % u.strip() }}", "«<|x|>»!"},
      {"{{ '{}!'.format(u.strip()) }}", "«<|x|>»!"},
      {"{{ 'x\ny' | indent(1) }}{{ u.strip() | indent }}", "x\n y«<|x|>»"},
      {"{% for k, x in d.items() %}{{ k }}={{ x }}{% endfor %}", "«k<»=«v»"},
      {"{% set a %}[{{ u.strip() }}]{% endset %}{{ a }}", "[«<|x|>»]"},
      {"{% macro m(a) %}({{ a }}){% endmacro %}{{ m(l[0]) }}", "(«a»)"},
      {"{% filter upper %}a{{ l[0] }}{% endfilter %}", "A«A»"},
      {"{{ l }}", "«['a', 'b']»"},
      {"{% for c in l[0] %}{{ c }}{% endfor %}{{ l | length }}", "«a»2"},
      {"{{ ('<' ~ l[0]) | e }}", "&lt;«a»"},
      {"{{ ('x' + u.strip()) | title }}", "X«<|x|>»"},
  };
  for (const auto& [source, expected] : cases) EXPECT_EQ(Marked(source, v), expected) << source;
}

TEST(Origin, MergesNeighboursAndMakesNoEmptySpan) {
  const auto spans = Render("a{{ 'b' }}{{ u }}{{ e }}{{ u }}c", {{"u", "x"}, {"e", ""}});
  ASSERT_TRUE(spans.ok()) << spans.status();
  EXPECT_THAT(*spans, ElementsAre(RenderedSpan{"ab", true}, RenderedSpan{"xx", false},
                                  RenderedSpan{"c", true}));
}

TEST(Errors, NameTheLineAndTheReason) {
  EXPECT_THAT(Message("a\nb {{ x.y }}"), HasSubstr("line 2: 'x' is undefined"));
  EXPECT_THAT(Message("\n\n{{ {'a': 1}.b.c }}"), HasSubstr("line 3: a dict has no 'b'"));
  EXPECT_THAT(Message("{{ raise_exception('System role not supported') }}"),
              HasSubstr("System role not supported"));
  EXPECT_THAT(Message("{% macro m() %}\n{{ 1 / 0 }}{% endmacro %}\n{{ m() }}"),
              HasSubstr("line 2: division by zero"));
  EXPECT_THAT(Message("x {{ y z }}"), HasSubstr("line 1, column 8: expected '}}', found 'z'"));
  EXPECT_THAT(Message("{% for a in b %}\n"), HasSubstr("has no end: expected '{% endfor %}'"));
  EXPECT_THAT(Message("{% include 'x' %}"), HasSubstr("'include' is not supported"));
  EXPECT_THAT(Message("{{ 1 | nope }}"), HasSubstr("column 8: there is no filter 'nope'"));
  EXPECT_THAT(Message("{{ m.append(1) }}", {{"m", Json::array()}}), HasSubstr("append"));
}

TEST(Budgets, StopLoopsAndNameTheLimit) {
  const std::string loop =
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
  EXPECT_THAT(Message(loop), HasSubstr("max_operations=10000000"));
  RenderOptions options;
  options.max_operations = 1000;
  EXPECT_THAT(Message(loop, Json::object(), options), HasSubstr("max_operations=1000"));
}

TEST(Budgets, StopTextAndNameTheLimit) {
  RenderOptions options;
  options.max_output_bytes = 1000;
  const char* const growing[] = {
      "{% for a in range(200) %}0123456789{% endfor %}",
      "{{ 'x' * 2000 }}",
      "{% set ns = namespace(s='x') %}{% for a in range(20) %}{% set ns.s = ns.s ~ ns.s %}{% "
      "endfor %}",
      "{% set ns = namespace(s='x') %}{% for a in range(20) %}{% set ns.s = ns.s + ns.s %}{% "
      "endfor %}",
      "{{ (['0123456789'] * 200) | join }}",
      "{{ ('a' * 900) | replace('a', 'bb') }}",
      "{{ (['0123456789'] * 200) | tojson }}",
      "{{ ['0123456789'] * 200 }}",
      "{{ '%s%s' % ('x' * 600, 'y' * 600) }}",
      "{% macro m() %}{{ 'x' * 900 }}{{ 'x' * 900 }}{% endmacro %}{{ m()|length }}",
  };
  for (const char* source : growing) {
    EXPECT_THAT(Message(source, Json::object(), options), HasSubstr("max_output_bytes=1000"))
        << source;
  }
}

TEST(Budgets, StopRecursionAndNameTheLimit) {
  EXPECT_THAT(Message("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
              HasSubstr("max_depth=500"));
  EXPECT_THAT(Message("{% macro m(n) %}{{ 1 + (2 * (n - m(n))) }}{% endmacro %}{{ m(1) }}"),
              HasSubstr("max_depth=500"));
}

TEST(Budgets, StopNestingInTheParserAndNameTheLimit) {
  const std::string deep[] = {
      "{{ " + Repeat("(", 100000) + "1" + Repeat(")", 100000) + " }}",
      "{{ " + Repeat("[", 100000) + Repeat("]", 100000) + " }}",
      "{{ " + Repeat("{1:", 50000) + "1" + Repeat("}", 50000) + " }}",
      "{{ " + Repeat("not ", 100000) + "1 }}",
      "{{ " + Repeat("-", 100000) + "1 }}",
      "{{ 1" + Repeat("+1", 100000) + " }}",
      "{{ 1" + Repeat(" or 1", 50000) + " }}",
      "{{ 1" + Repeat("|abs", 100000) + " }}",
      "{{ a" + Repeat(".a", 100000) + " }}",
      "{{ a" + Repeat("[0]", 100000) + " }}",
      "{{ a" + Repeat("()", 100000) + " }}",
      "{{ 1" + Repeat(" if 1 else 1", 30000) + " }}",
      "{{ 1 is " + Repeat("eq not ", 2) + " }}" + Repeat("{% if 1 %}", 50000),
      Repeat("{% if 1 %}", 50000),
      Repeat("{% for a in b %}", 30000),
      "{% set " + Repeat("(", 100000) + "a = 1 %}",
      "{% set a" + Repeat("|trim", 100000) + " %}",
      "{{ " + Repeat("f(", 100000) + " }}",
  };
  for (const std::string& source : deep) {
    const auto parsed = Template::Parse(source);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << source.substr(0, 40);
  }
  EXPECT_THAT(std::string(Template::Parse(deep[0]).status().message()),
              HasSubstr("max_nesting=200"));
  EXPECT_THAT(std::string(Template::Parse(deep[5]).status().message()),
              HasSubstr("max_nesting=200"));
}

TEST(Budgets, RefuseATemplateThatIsTooLong) {
  ParseOptions options;
  options.max_template_bytes = 10;
  EXPECT_THAT(std::string(Template::Parse("01234567890", options).status().message()),
              HasSubstr("max_template_bytes=10"));
}

TEST(Hostile, ValuesThatHoldThemselvesNeitherOverflowNorLeak) {
  const char* const sources[] = {
      "{% set l = [] %}{% set _ = l.append(l) %}{{ l }}",
      "{% set l = [] %}{% set _ = l.append(l) %}{{ l | tojson }}",
      "{% set l = [] %}{% set _ = l.append(l) %}{% set k = [] %}{% set _ = k.append(k) %}{{ l == k "
      "}}",
      "{% set l = [] %}{% set _ = l.append(l) %}{% set k = [] %}{% set _ = k.append(k) %}{{ l < k "
      "}}",
      "{% set ns = namespace(v=[]) %}{% for a in range(5000) %}{% set ns.v = [ns.v] %}{% endfor "
      "%}{{ ns.v }}",
      "{% set ns = namespace(v=()) %}{% for a in range(5000) %}{% set ns.v = (ns.v,) %}{% endfor %}"
      "{{ {ns.v: 1} }}",
      "{% set l = [1] %}{% for a in l %}{% set _ = l.append(a) %}{% endfor %}",
      "{{ 'a' | map('map', 'map', 'map', 'map', 'map', 'map', 'map', 'map', 'map', 'map', 'map', "
      "'map',"
      " 'map', 'map', 'map', 'map', 'map', 'upper') | list }}",
      "{{ '%99999999d' % 1 }}",
      "{{ '{:99999999}'.format(1) }}",
      "{{ strftime_now('%c' * 1000) }}",
      "{{ [0] * 9223372036854775807 }}",
      "{{ 'ab' * 9223372036854775807 }}",
      "{{ 2 ** 100000 }}",
      "{{ 9223372036854775807 * 9223372036854775807 * 9223372036854775807 }}",
      "{{ 'x' | indent(99999999) }}",
  };
  for (const char* source : sources) {
    EXPECT_THAT(Message(source), ::testing::Not(HasSubstr("no error"))) << source;
  }
}

TEST(Lists, OfTheTemplateGrowAndThoseOfTheInputDoNot) {
  EXPECT_EQ(Marked("{% set l = [1] %}{% set _ = l.append(2) %}{% set _ = l.insert(0, 3) %}"
                   "{% set _ = l.extend([4, 5]) %}{{ l.pop() }}{{ l.pop(0) }}{{ l | join }}",
                   Json::object()),
            "53124");
  EXPECT_EQ(Marked("{{ l.append is defined }}", {{"l", {1}}}), "False");
}

TEST(Template, RendersTheSameFromManyThreads) {
  const absl::StatusOr<Template> parsed = Template::Parse(
      "{% macro m(a) %}<{{ a }}>{% endmacro %}{% for x in l %}{{ m(x) }}{{ 'k' ~ x }}{% endfor %}");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (std::string& text : texts) {
    threads.emplace_back([&parsed, &text] {
      for (int i = 0; i < 50; ++i) {
        const auto spans = parsed->Render({{"l", {1, "a", 2.5}}});
        text = spans.ok() ? JoinSpans(*spans) : std::string(spans.status().message());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(texts, ::testing::Each("<1>k1<a>ka<2.5>k2.5"));
}

TEST(TemplateFuzz, TakesAnyBytes) {
  for (const std::string_view source :
       {"", "{{", "{% for m in messages %}{{ m }}{% endfor %}", "\xFF{{ '\xFF'|length }}"}) {
    EXPECT_EQ(
        LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(source.data()), source.size()), 0);
  }
}

}  // namespace
}  // namespace layercake::model::jinja
