#include "model/chat/message_normaliser.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace layercake::model {
namespace {

using Json = nlohmann::ordered_json;

absl::Status WrongShape(const std::string& where, absl::string_view expected, const Json& found) {
  return absl::InvalidArgumentError(
      absl::StrCat(where, " must be ", expected, ", not ", found.type_name()));
}

bool TakesParts(const ChatTemplateTraits& traits, const std::string& role) {
  return std::find(traits.roles_with_parts.begin(), traits.roles_with_parts.end(), role) !=
         traits.roles_with_parts.end();
}

// Checks one part; text parts come back as {"type": "text", "text": …}, others as they are.
absl::StatusOr<Json> NormalisePart(const std::string& where, const Json& part) {
  if (!part.is_object()) return WrongShape(where, "an object with type and text", part);
  const auto type = part.find("type");
  if (type != part.end() && !type->is_string()) {
    return WrongShape(absl::StrCat(where, ".type"), "a string", *type);
  }
  const auto text = part.find("text");
  if (type == part.end() && text == part.end()) {
    return absl::InvalidArgumentError(absl::StrCat(where, " has neither type nor text"));
  }
  if (type != part.end() && *type != "text") return part;
  if (text == part.end()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ".text is missing"));
  }
  if (!text->is_string()) return WrongShape(absl::StrCat(where, ".text"), "a string", *text);
  return Json{{"type", "text"}, {"text", *text}};
}

absl::StatusOr<Json> NormaliseContent(const std::string& where, const Json* content,
                                      const std::string& role, const ChatTemplateTraits& traits) {
  Json parts = Json::array();
  if (content == nullptr || content->is_null()) {
    if (traits.takes_string_content || !TakesParts(traits, role)) return Json("");
    return parts;
  }
  if (content->is_string()) {
    if (traits.takes_string_content || !TakesParts(traits, role)) return *content;
    parts.push_back(Json{{"type", "text"}, {"text", *content}});
    return parts;
  }
  if (!content->is_array()) return WrongShape(where, "a string, null or a list of parts", *content);
  std::string joined;
  for (size_t i = 0; i < content->size(); ++i) {
    const std::string part_where = absl::StrCat(where, "[", i, "]");
    LC_ASSIGN_OR_RETURN(Json part, NormalisePart(part_where, (*content)[i]));
    if (part["type"] == "text") {
      joined += part["text"].get_ref<const std::string&>();
    } else if (!TakesParts(traits, role)) {
      return absl::InvalidArgumentError(
          absl::StrCat(part_where, " has the type '", part["type"].get_ref<const std::string&>(),
                       "', but this model's chat template takes only text there"));
    }
    parts.push_back(std::move(part));
  }
  if (TakesParts(traits, role)) return parts;
  return Json(std::move(joined));
}

// json.dumps with Python's separators, which is what templates and models have seen.
void AppendPythonJson(const Json& json, std::string& out) {
  if (json.is_object() && !json.empty()) {
    out += '{';
    bool first = true;
    for (const auto& [key, value] : json.items()) {
      if (!std::exchange(first, false)) out += ", ";
      out += Json(key).dump(-1, ' ', false, Json::error_handler_t::replace);
      out += ": ";
      AppendPythonJson(value, out);
    }
    out += '}';
  } else if (json.is_array() && !json.empty()) {
    out += '[';
    for (size_t i = 0; i < json.size(); ++i) {
      if (i > 0) out += ", ";
      AppendPythonJson(json[i], out);
    }
    out += ']';
  } else {
    out += json.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
}

void NormaliseArguments(Json& function, const ChatTemplateTraits& traits) {
  const auto arguments = function.find("arguments");
  if (arguments == function.end()) return;
  if (traits.wants_argument_objects && arguments->is_string()) {
    Json parsed = Json::parse(arguments->get_ref<const std::string&>(), nullptr,
                              /*allow_exceptions=*/false);
    // Text that is no JSON object is what the model once wrote: it stays as it was.
    if (parsed.is_object() && CheckJsonDepth("arguments", parsed).ok()) {
      *arguments = std::move(parsed);
    }
  } else if (!traits.wants_argument_objects && !arguments->is_string()) {
    std::string text;
    AppendPythonJson(*arguments, text);
    *arguments = std::move(text);
  }
}

absl::Status NormaliseToolCalls(const std::string& where, Json& message,
                                const ChatTemplateTraits& traits) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return absl::OkStatus();
  if (!calls->is_array()) return WrongShape(where, "a list", *calls);
  if (calls->empty()) {
    message.erase(calls);  // many templates ask only whether it is there
    return absl::OkStatus();
  }
  for (size_t i = 0; i < calls->size(); ++i) {
    Json& call = (*calls)[i];
    const std::string call_where = absl::StrCat(where, "[", i, "]");
    if (!call.is_object()) return WrongShape(call_where, "an object", call);
    const auto function = call.find("function");
    if (function == call.end()) {
      NormaliseArguments(call, traits);  // the flat form {name, arguments}
      continue;
    }
    if (!function->is_object()) {
      return WrongShape(absl::StrCat(call_where, ".function"), "an object", *function);
    }
    NormaliseArguments(*function, traits);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckJsonDepth(std::string_view what, const Json& json) {
  std::vector<std::pair<const Json*, int>> open = {{&json, 1}};
  while (!open.empty()) {
    const auto [value, depth] = open.back();
    open.pop_back();
    if (!value->is_structured()) continue;
    if (depth > kMaxChatJsonDepth) {
      return absl::InvalidArgumentError(
          absl::StrCat(std::string(what), " nests deeper than ", kMaxChatJsonDepth, " levels"));
    }
    for (const Json& child : *value) open.emplace_back(&child, depth + 1);
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> NormaliseMessages(const Json& messages, const ChatTemplateTraits& traits) {
  if (!messages.is_array()) return WrongShape("messages", "a list", messages);
  if (messages.empty()) {
    return absl::InvalidArgumentError("messages is empty: send at least one message");
  }
  LC_RETURN_IF_ERROR(CheckJsonDepth("messages", messages));
  Json normalised = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    const std::string where = absl::StrCat("messages[", i, "]");
    if (!message.is_object()) return WrongShape(where, "an object", message);
    const auto role = message.find("role");
    if (role == message.end()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ".role is missing"));
    }
    if (!role->is_string()) return WrongShape(absl::StrCat(where, ".role"), "a string", *role);
    const auto content = message.find("content");
    LC_ASSIGN_OR_RETURN(Json normal_content,
                        NormaliseContent(absl::StrCat(where, ".content"),
                                         content == message.end() ? nullptr : &*content,
                                         role->get_ref<const std::string&>(), traits));
    Json copy = Json::object();
    for (const auto& [key, value] : message.items()) {
      if (key == "content") {
        copy[key] = std::move(normal_content);
      } else if (!value.is_null()) {
        copy[key] = value;
      }
    }
    if (content == message.end()) copy["content"] = std::move(normal_content);
    LC_RETURN_IF_ERROR(NormaliseToolCalls(absl::StrCat(where, ".tool_calls"), copy, traits));
    normalised.push_back(std::move(copy));
  }
  return normalised;
}

}  // namespace layercake::model
