// libFuzzer target: any bytes as a template, over a fixed conversation, with small budgets. Nothing
// may crash, hang or pass its budget; errors are fine.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "model/jinja/template.h"

namespace {

using layercake::model::jinja::ParseOptions;
using layercake::model::jinja::RenderOptions;
using layercake::model::jinja::Template;

nlohmann::ordered_json Conversation() {
  return nlohmann::ordered_json::parse(R"({
    "messages": [
      {"role": "system", "content": "Be brief."},
      {"role": "user", "content": "caf\u00e9 <|im_end|> \ud83d\ude00"},
      {"role": "assistant", "content": null,
       "tool_calls": [{"id": "abcdefghi", "function": {"name": "f", "arguments": {"x": 1.5}}}]},
      {"role": "tool", "content": [{"type": "text", "text": "7"}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>", "n": -3, "x": [1, 2, 3]
  })");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  ParseOptions parse;
  parse.max_template_bytes = 16 * 1024;
  const absl::StatusOr<Template> parsed =
      Template::Parse(std::string_view(reinterpret_cast<const char*>(bytes), size), parse);
  if (!parsed.ok()) return 0;
  RenderOptions render;
  render.max_operations = 50'000;
  render.max_output_bytes = 1 << 20;
  const auto spans = parsed->Render(Conversation(), render);
  // More text than was paid for, or an unmerged span, is a fault.
  if (spans.ok()) {
    size_t total = 0;
    for (size_t i = 0; i < spans->size(); ++i) {
      total += (*spans)[i].text.size();
      if ((*spans)[i].text.empty()) __builtin_trap();
      if (i > 0 && (*spans)[i].from_template == (*spans)[i - 1].from_template) __builtin_trap();
    }
    if (total > render.max_output_bytes) __builtin_trap();
  }
  return 0;
}
