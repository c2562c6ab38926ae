#include "coordinator/chat_input.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/request_preparer.h"
#include "model/tokenizer/utf8.h"
#include "proto/errors.h"

namespace layercake::coordinator {
namespace {

using Json = nlohmann::ordered_json;

absl::Status Invalid(absl::string_view message, absl::string_view param) {
  return MakeError(ErrorReason::kInvalidParameter, message, param);
}

absl::Status CheckText(const std::string& text, absl::string_view param) {
  const size_t bad = model::FirstInvalidUtf8(text);
  if (bad == std::string_view::npos) return absl::OkStatus();
  return Invalid(absl::StrCat(param, " is not valid UTF-8 at byte ", bad), param);
}

// How deep brackets nest outside of strings; needs no valid JSON.
int JsonDepth(absl::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

absl::StatusOr<Json> ToolCallJson(const v1::ToolCall& call, const std::string& param) {
  LC_RETURN_IF_ERROR(CheckText(call.id(), param + ".id"));
  LC_RETURN_IF_ERROR(CheckText(call.name(), param + ".name"));
  if (call.name().empty()) return Invalid(absl::StrCat(param, ".name is empty"), param + ".name");
  if (!call.arguments().empty()) {
    LC_RETURN_IF_ERROR(
        ParseJsonObject(call.arguments(), RequestLimits::kMaxJsonDepth, param + ".arguments")
            .status());
  }
  Json json = Json::object();
  if (!call.id().empty()) json["id"] = call.id();
  json["type"] = "function";
  json["function"]["name"] = call.name();
  json["function"]["arguments"] = call.arguments().empty() ? "{}" : call.arguments();
  return json;
}

absl::StatusOr<Json> ContentJson(const v1::ChatMessage& message, const std::string& param) {
  if (message.has_content() && message.parts_size() > 0) {
    return Invalid(absl::StrCat(param, " has both content and parts; send one of them"), param);
  }
  if (message.has_content()) {
    LC_RETURN_IF_ERROR(CheckText(message.content(), param));
    return Json(message.content());
  }
  if (message.parts_size() == 0) return Json(nullptr);
  Json parts = Json::array();
  for (const v1::ContentPart& part : message.parts()) {
    const std::string part_param = absl::StrCat(param, "[", parts.size(), "]");
    if (!part.has_text()) {
      return Invalid(absl::StrCat(part_param, " has no text, and only text is supported"),
                     part_param);
    }
    LC_RETURN_IF_ERROR(CheckText(part.text(), part_param));
    parts.push_back({{"type", "text"}, {"text", part.text()}});
  }
  return parts;
}

absl::StatusOr<Json> MessageJson(const v1::ChatMessage& message, const std::string& param) {
  if (message.role().empty()) {
    return Invalid(absl::StrCat(param, ".role is missing"), param + ".role");
  }
  LC_RETURN_IF_ERROR(CheckText(message.role(), param + ".role"));
  LC_RETURN_IF_ERROR(CheckText(message.name(), param + ".name"));
  LC_RETURN_IF_ERROR(CheckText(message.tool_call_id(), param + ".tool_call_id"));
  LC_RETURN_IF_ERROR(CheckText(message.reasoning_content(), param + ".reasoning_content"));
  Json json = Json::object();
  json["role"] = message.role();
  LC_ASSIGN_OR_RETURN(json["content"], ContentJson(message, param + ".content"));
  if (!message.name().empty()) json["name"] = message.name();
  if (!message.tool_call_id().empty()) json["tool_call_id"] = message.tool_call_id();
  if (message.has_reasoning_content()) json["reasoning_content"] = message.reasoning_content();
  for (const v1::ToolCall& call : message.tool_calls()) {
    const std::string call_param = absl::StrCat(
        param, ".tool_calls[", json.contains("tool_calls") ? json["tool_calls"].size() : 0, "]");
    LC_ASSIGN_OR_RETURN(Json call_json, ToolCallJson(call, call_param));
    json["tool_calls"].push_back(std::move(call_json));
  }
  return json;
}

}  // namespace

absl::StatusOr<Json> ParseJsonObject(absl::string_view text, int max_depth,
                                     absl::string_view param) {
  LC_RETURN_IF_ERROR(CheckText(std::string(text), param));
  if (JsonDepth(text) > max_depth) {
    return Invalid(absl::StrCat(param, " nests deeper than ", max_depth, " levels"), param);
  }
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::optional<std::string> repeated;
  const auto watch = [&](int /*depth*/, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const std::string& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) repeated = key;
    }
    return true;
  };
  Json json = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (repeated) {
    return Invalid(absl::StrCat(param, " has the key \"", *repeated, "\" twice"), param);
  }
  if (json.is_discarded() || !json.is_object()) {
    return Invalid(absl::StrCat(param, " must be a JSON object"), param);
  }
  return json;
}

absl::StatusOr<model::ChatInput> ToChatInput(const v1::Chat& chat) {
  if (chat.messages_size() == 0) return Invalid("messages is empty; send at least one", "messages");
  if (chat.messages_size() > RequestLimits::kMaxMessages) {
    return Invalid(absl::StrCat(chat.messages_size(), " messages are more than the limit of ",
                                RequestLimits::kMaxMessages),
                   "messages");
  }
  if (chat.tools_size() > RequestLimits::kMaxTools) {
    return Invalid(absl::StrCat(chat.tools_size(), " tools are more than the limit of ",
                                RequestLimits::kMaxTools),
                   "tools");
  }
  model::ChatInput input;
  input.messages = Json::array();
  for (const v1::ChatMessage& message : chat.messages()) {
    LC_ASSIGN_OR_RETURN(
        Json json, MessageJson(message, absl::StrCat("messages[", input.messages.size(), "]")));
    input.messages.push_back(std::move(json));
  }
  if (chat.tools_size() > 0) input.tools = Json::array();
  for (const std::string& tool : chat.tools()) {
    LC_ASSIGN_OR_RETURN(Json json,
                        ParseJsonObject(tool, RequestLimits::kMaxJsonDepth,
                                        absl::StrCat("tools[", input.tools.size(), "]")));
    input.tools.push_back(std::move(json));
  }
  if (!chat.template_variables().empty()) {
    LC_ASSIGN_OR_RETURN(input.extra,
                        ParseJsonObject(chat.template_variables(), RequestLimits::kMaxJsonDepth,
                                        "template_variables"));
  }
  if (chat.has_add_generation_prompt()) input.add_generation_prompt = chat.add_generation_prompt();
  return input;
}

}  // namespace layercake::coordinator
