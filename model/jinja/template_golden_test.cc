// Renders what tests/reference/make_template_goldens.py and make_jinja_snippet_goldens.py rendered
// with Python's Jinja2, and wants the same bytes (or an error where Jinja2 had one).
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "model/jinja/template.h"

namespace layercake::model::jinja {
namespace {

using Json = nlohmann::ordered_json;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

Json ReadGoldens(const std::string& name) {
  const std::string text = ReadFile(LAYERCAKE_SOURCE_DIR "/model/jinja/testdata/" + name);
  EXPECT_FALSE(text.empty()) << name;
  return Json::parse(text);
}

// Renders `source`; null stands for any error, as in the goldens.
Json Outcome(const std::string& source, const Json& variables, int64_t now_seconds,
             std::string& error) {
  error.clear();
  const absl::StatusOr<Template> parsed = Template::Parse(source);
  if (!parsed.ok()) {
    error = std::string(parsed.status().message());
    return nullptr;
  }
  RenderOptions options;
  options.now = absl::FromUnixSeconds(now_seconds);
  const auto spans = parsed->Render(variables, options);
  if (!spans.ok()) {
    error = std::string(spans.status().message());
    EXPECT_EQ(spans.status().code(), absl::StatusCode::kInvalidArgument);
    return nullptr;
  }
  return JoinSpans(*spans);
}

// Every conversation through one template of the goldens; the number that was compared.
int CheckTemplate(const Json& goldens, const std::string& name, const std::string& source) {
  const Json& entry = goldens["templates"][name];
  int compared = 0;
  for (size_t i = 0; i < goldens["conversations"].size(); ++i) {
    const Json& conversation = goldens["conversations"][i];
    Json variables = conversation["variables"];
    variables["bos_token"] = entry["bos_token"];
    variables["eos_token"] = entry["eos_token"];
    std::string error;
    const Json outcome =
        Outcome(source, variables, goldens["now_unix_seconds"].get<int64_t>(), error);
    EXPECT_EQ(outcome, entry["goldens"][i])
        << name << ", " << conversation["name"] << ": " << error;
    ++compared;
  }
  return compared;
}

TEST(TemplateGolden, EverySnippetRendersAsInJinja2) {
  const Json goldens = ReadGoldens("snippet_goldens.json");
  ASSERT_GT(goldens["snippets"].size(), 600U);
  for (const Json& snippet : goldens["snippets"]) {
    std::string error;
    const Json outcome = Outcome(snippet[0].get<std::string>(), goldens["variables"],
                                 goldens["now_unix_seconds"].get<int64_t>(), error);
    EXPECT_EQ(outcome, snippet[1]) << snippet[0] << ": " << error;
  }
}

TEST(TemplateGolden, SmolLm2RendersAsInJinja2) {
  const Json goldens = ReadGoldens("template_goldens.json");
  const auto source = goldens["templates"]["SmolLM2"]["source"].get<std::string>();
  EXPECT_GE(CheckTemplate(goldens, "SmolLM2", source), 30);
}

TEST(TemplateGolden, RealTemplatesRenderAsInJinja2) {
  const Json goldens = ReadGoldens("template_goldens.json");
  int templates = 0;
  for (const auto& [name, entry] : goldens["templates"].items()) {
    if (entry.contains("source")) continue;
    const std::string source =
        ReadFile(LAYERCAKE_SOURCE_DIR "/../shared/data/templates/" + name + ".jinja");
    if (source.empty()) continue;
    EXPECT_GE(CheckTemplate(goldens, name, source), 30);
    ++templates;
  }
  if (templates == 0) GTEST_SKIP() << "no templates in ../shared/data/templates";
}

}  // namespace
}  // namespace layercake::model::jinja
