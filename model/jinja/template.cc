#include "model/jinja/template.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "model/jinja/error.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/lexer.h"
#include "model/jinja/parser.h"

namespace layercake::model::jinja {

struct Template::Parsed {
  Block block;
};

std::string JoinSpans(const std::vector<RenderedSpan>& spans) {
  std::string text;
  for (const RenderedSpan& span : spans) text += span.text;
  return text;
}

Template::Template(std::unique_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

absl::StatusOr<Template> Template::Parse(std::string_view source, const ParseOptions& options) {
  if (source.size() > options.max_template_bytes) {
    return Invalid("the chat template has ", source.size(),
                   " bytes, more than max_template_bytes=", options.max_template_bytes);
  }
  LC_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  auto parsed = std::make_unique<Parsed>();
  LC_ASSIGN_OR_RETURN(parsed->block,
                      Parser(std::move(tokens), options.max_nesting).ParseTemplate());
  return Template(std::move(parsed));
}

absl::StatusOr<std::vector<RenderedSpan>> Template::Render(const nlohmann::ordered_json& variables,
                                                           const RenderOptions& options) const {
  if (!variables.is_object()) return Invalid("the template's variables must be a JSON object");
  Budget budget(options.max_operations, options.max_output_bytes);
  Arena arena(budget);
  std::vector<std::pair<std::string_view, Value>> values;
  for (const auto& [name, json] : variables.items()) {
    const bool trusted =
        std::find(options.trusted_variables.begin(), options.trusted_variables.end(), name) !=
        options.trusted_variables.end();
    LC_ASSIGN_OR_RETURN(Value value, FromJson(budget, arena, json, trusted));
    values.emplace_back(name, std::move(value));
  }
  Interpreter interpreter(options, budget, arena);
  LC_ASSIGN_OR_RETURN(const MarkedString text, interpreter.Run(parsed_->block, std::move(values)));
  std::vector<RenderedSpan> spans;
  size_t begin = 0;
  for (const MarkedString::Run& run : text.runs()) {
    spans.push_back({text.text().substr(begin, run.end - begin), run.trusted});
    begin = run.end;
  }
  return spans;
}

}  // namespace layercake::model::jinja
