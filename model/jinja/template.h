// A chat template in the Jinja language, as models carry it in their metadata, rendered byte for
// byte like Python's Jinja2 3.1 in the environment that Hugging Face's tokenizers set up
// (ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks, loop controls, the generation tag,
// their tojson, raise_exception and strftime_now).
//
// Differences on purpose: integers beyond 127 bits are an error; `append`, `extend`, `insert` and
// `pop` work on lists that the template itself made (Python's sandbox refuses them; lists that came
// in stay immutable here too); inheritance, include, import, autoescape, recursive loops and the
// HTML-only filters are refused when the template is parsed.
//
// Thread rule: immutable after Parse; any number of threads may Render at once. Rendering is pure:
// no clock, no files, no network, and bounded by the budgets in RenderOptions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace layercake::model::jinja {

struct ParseOptions {
  size_t max_template_bytes = 512 * 1024;
  // How deep expressions and blocks may nest. Bounds the parser's and the interpreter's stack.
  int max_nesting = 200;
};

struct RenderOptions {
  // One operation per evaluated node, per loop step, and per 16 bytes of text or of anything else
  // that is produced or searched: a bound on time and on memory (about 160 MB with the default). A
  // message costs a few hundred, so the default is enough for conversations of many thousands.
  uint64_t max_operations = 10'000'000;
  // Nested evaluations: expressions, blocks and macro calls together.
  int max_depth = 500;
  // The rendered text, and any single string on the way to it.
  size_t max_output_bytes = 32 * 1024 * 1024;
  // What strftime_now() sees.
  absl::Time now = absl::UnixEpoch();
  absl::TimeZone timezone = absl::UTCTimeZone();
  // Top-level variables whose text counts as the template's own (RenderedSpan::from_template).
  std::vector<std::string> trusted_variables = {"bos_token", "eos_token"};
};

// A piece of the rendered text. `from_template` holds for text that stands in the template itself
// (or in a trusted variable): only there may a tokenizer recognise special tokens. Everything that
// came in with the messages stays plain text, whatever it looks like and whichever filters it went
// through. Word pieces may still reach over the border of two spans: tokenize the joined text, not
// span by span.
struct RenderedSpan {
  std::string text;
  bool from_template = false;

  friend bool operator==(const RenderedSpan&, const RenderedSpan&) = default;
};

// The whole text of `spans`.
std::string JoinSpans(const std::vector<RenderedSpan>& spans);

class Template {
 public:
  // InvalidArgument names line and column, what was found and what was expected.
  static absl::StatusOr<Template> Parse(std::string_view source, const ParseOptions& options = {});

  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  // Renders with the members of `variables` (a JSON object) as top-level variables. Neighbouring
  // spans of the same kind are merged, none is empty. InvalidArgument when the template itself
  // refused the input (raise_exception: its message), when it failed (with the line), or when a
  // budget ran out (with the budget's name).
  absl::StatusOr<std::vector<RenderedSpan>> Render(const nlohmann::ordered_json& variables,
                                                   const RenderOptions& options = {}) const;

 private:
  struct Parsed;
  explicit Template(std::unique_ptr<const Parsed> parsed);

  std::unique_ptr<const Parsed> parsed_;
};

}  // namespace layercake::model::jinja
