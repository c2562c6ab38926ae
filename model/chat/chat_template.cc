#include "model/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/chat/message_normaliser.h"

namespace layercake::model {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, 6> kOwnVariables = {
    "messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"};

Json Message(const char* role, Json content) {
  return Json{{"role", role}, {"content", std::move(content)}};
}

Json TextPart(const char* text) { return Json{{"type", "text"}, {"text", text}}; }

// A conversation in which one message of `role` has `content`, as legal as templates want it. The
// call id has the nine letters that Mistral's templates insist on.
Json Conversation(const std::string& role, Json content) {
  Json messages = Json::array();
  if (role == "system") {
    messages.push_back(Message("system", std::move(content)));
    messages.push_back(Message("user", "x"));
    return messages;
  }
  if (role == "user") {
    messages.push_back(Message("user", std::move(content)));
    return messages;
  }
  messages.push_back(Message("user", "x"));
  if (role == "assistant") {
    messages.push_back(Message("assistant", std::move(content)));
    messages.push_back(Message("user", "x"));
    return messages;
  }
  Json call = {{"id", "lcprobe01"},
               {"type", "function"},
               {"function", {{"name", "f"}, {"arguments", Json::object()}}}};
  Json caller = Message("assistant", "");
  caller["tool_calls"] = Json::array({std::move(call)});
  messages.push_back(std::move(caller));
  Json result = Message("tool", std::move(content));
  result["tool_call_id"] = "lcprobe01";
  result["name"] = "f";
  messages.push_back(std::move(result));
  return messages;
}

Json CallConversation(Json arguments) {
  Json messages = Conversation("tool", "x");
  messages[1]["tool_calls"][0]["function"]["arguments"] = std::move(arguments);
  return messages;
}

bool Has(const std::string& text, const char* piece) {
  return text.find(piece) != std::string::npos;
}

// Both texts are there, in order, and the parts were not printed as a Python or JSON object.
bool ShowsParts(const std::optional<std::string>& text) {
  if (!text) return false;
  const size_t first = text->find("lcprobe-first");
  const size_t second = text->find("lcprobe-second");
  return first != std::string::npos && second != std::string::npos && first < second &&
         !Has(*text, "'type'") && !Has(*text, "\"type\": \"text\"");
}

}  // namespace

ChatTemplate::ChatTemplate(jinja::Template parsed, std::string bos_text, std::string eos_text,
                           const ChatTemplateOptions& options)
    : template_(std::move(parsed)),
      bos_text_(std::move(bos_text)),
      eos_text_(std::move(eos_text)),
      options_(options) {
  options_.render.trusted_variables = {"bos_token", "eos_token"};
}

absl::StatusOr<ChatTemplate> ChatTemplate::Create(std::string_view source, std::string bos_text,
                                                  std::string eos_text,
                                                  const ChatTemplateOptions& options) {
  LC_ASSIGN_OR_RETURN(jinja::Template parsed, jinja::Template::Parse(source, options.parse));
  ChatTemplate result(std::move(parsed), std::move(bos_text), std::move(eos_text), options);
  result.Probe();
  return result;
}

std::optional<std::string> ChatTemplate::ProbeText(Json messages) const {
  const auto spans = RenderNormalised(ChatInput{}, std::move(messages));
  if (!spans.ok()) return std::nullopt;
  return jinja::JoinSpans(*spans);
}

void ChatTemplate::Probe() {
  const Json parts = Json::array({TextPart("lcprobe-first"), TextPart("lcprobe-second")});
  for (const char* role : {"system", "user", "assistant", "tool"}) {
    if (ShowsParts(ProbeText(Conversation(role, parts)))) traits_.roles_with_parts.push_back(role);
  }
  const auto plain = ProbeText(Conversation("user", "lcprobe-first"));
  traits_.takes_string_content =
      traits_.roles_with_parts.empty() || (plain && Has(*plain, "lcprobe-first"));

  const auto from_object = ProbeText(CallConversation({{"lcprobe", "v"}}));
  const auto from_text = ProbeText(CallConversation("{\"lcprobe\": \"v\"}"));
  const auto shows_json = [](const std::optional<std::string>& text) {
    return text && Has(*text, "{\"lcprobe\"") && !Has(*text, "\"{\"lcprobe\"");
  };
  // Templates that walk the arguments themselves show neither form as JSON; they want the object.
  traits_.wants_argument_objects = shows_json(from_object) || !shows_json(from_text);
}

absl::StatusOr<std::vector<jinja::RenderedSpan>> ChatTemplate::RenderNormalised(
    const ChatInput& input, Json messages) const {
  Json variables = Json::object();
  variables["messages"] = std::move(messages);
  // No tools are no tools, however the client said so.
  variables["tools"] = input.tools.empty() ? Json() : input.tools;
  variables["documents"] = input.documents.empty() ? Json() : input.documents;
  variables["add_generation_prompt"] = input.add_generation_prompt;
  variables["bos_token"] = bos_text_;
  variables["eos_token"] = eos_text_;
  for (const auto& [name, value] : input.extra.items()) variables[name] = value;
  jinja::RenderOptions options = options_.render;
  options.now = input.now;
  options.timezone = input.timezone;
  return template_.Render(variables, options);
}

absl::StatusOr<std::vector<jinja::RenderedSpan>> ChatTemplate::Render(
    const ChatInput& input) const {
  const std::pair<const char*, const Json*> lists[] = {{"tools", &input.tools},
                                                       {"documents", &input.documents}};
  for (const auto& [name, list] : lists) {
    if (!list->is_null() && !list->is_array()) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " must be a list, not ", list->type_name()));
    }
    LC_RETURN_IF_ERROR(CheckJsonDepth(name, *list));
  }
  if (!input.extra.is_object() && !input.extra.is_null()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the template's extra variables must be an object, not ", input.extra.type_name()));
  }
  LC_RETURN_IF_ERROR(CheckJsonDepth("the template's extra variables", input.extra));
  for (const char* name : kOwnVariables) {
    if (input.extra.contains(name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", name, "' cannot be given as an extra template variable: it has its own field"));
    }
  }
  LC_ASSIGN_OR_RETURN(Json messages, NormaliseMessages(input.messages, traits_));
  return RenderNormalised(input, std::move(messages));
}

}  // namespace layercake::model
