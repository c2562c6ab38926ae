// From what a chat client sent to the prompt that the model was trained on: the model's own
// template (model/jinja) over a normalised copy of the messages.
//
// Clients send `content` as text, null, nothing at all or a list of parts, and tool arguments as a
// JSON string or as an object; templates take some of these and print "None", "[{'type'" or doubly
// escaped JSON for the others. Create() renders a few short conversations to learn what this
// template takes; Render() then gives every message the shape it needs. What the client sent is
// never changed.
//
// Thread rule: immutable after Create; any number of threads may Render at once.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "model/jinja/template.h"
#include "nlohmann/json.hpp"

namespace layercake::model {

struct ChatInput {
  nlohmann::ordered_json messages;   // array of objects, as the client sent them
  nlohmann::ordered_json tools;      // array, or null: none
  nlohmann::ordered_json documents;  // array, or null: none
  bool add_generation_prompt = true;
  // Further variables for the template, for example {"enable_thinking": false}. May override none
  // of messages, tools, documents, add_generation_prompt, bos_token, eos_token.
  nlohmann::ordered_json extra = nlohmann::ordered_json::object();
  // For templates that print the date.
  absl::Time now = absl::UnixEpoch();
  absl::TimeZone timezone = absl::UTCTimeZone();
};

struct ChatTemplateOptions {
  jinja::ParseOptions parse;
  jinja::RenderOptions render;  // its now, timezone and trusted_variables are set by the class
};

// What the probes found out about a template.
struct ChatTemplateTraits {
  // Content as text reaches the prompt. False for templates that only walk lists of parts.
  bool takes_string_content = true;
  // Roles whose content may reach the template as a list of parts; for the others the texts are
  // joined.
  std::vector<std::string> roles_with_parts;
  // Whether tool_calls[].function.arguments goes in as an object (the template writes the JSON) or
  // as JSON text (the template copies it).
  bool wants_argument_objects = true;
};

class ChatTemplate {
 public:
  // `bos_text` and `eos_text` are the texts of the model's special tokens ("" where it has none).
  // InvalidArgument when the template cannot be parsed, with line and column.
  static absl::StatusOr<ChatTemplate> Create(std::string_view source, std::string bos_text,
                                             std::string eos_text,
                                             const ChatTemplateOptions& options = {});

  // The prompt. InvalidArgument names the message (`messages[3].content`) whose shape is wrong, or
  // carries the template's own refusal (for example that roles must alternate).
  absl::StatusOr<std::vector<jinja::RenderedSpan>> Render(const ChatInput& input) const;

  const ChatTemplateTraits& traits() const { return traits_; }

 private:
  ChatTemplate(jinja::Template parsed, std::string bos_text, std::string eos_text,
               const ChatTemplateOptions& options);

  absl::StatusOr<std::vector<jinja::RenderedSpan>> RenderNormalised(
      const ChatInput& input, nlohmann::ordered_json messages) const;
  // The text for these messages as they are, or nothing when the template fails.
  std::optional<std::string> ProbeText(nlohmann::ordered_json messages) const;
  void Probe();

  jinja::Template template_;
  std::string bos_text_;
  std::string eos_text_;
  ChatTemplateOptions options_;
  ChatTemplateTraits traits_;
};

}  // namespace layercake::model
