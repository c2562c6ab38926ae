// Gives chat messages the one shape that a template understands (ChatTemplateTraits). Pure
// functions.
#pragma once

#include "absl/status/statusor.h"
#include "model/chat/chat_template.h"
#include "nlohmann/json.hpp"

namespace layercake::model {

// JSON from a client may nest this deep.
inline constexpr int kMaxChatJsonDepth = 128;

// InvalidArgument naming `what` when `json` nests deeper than kMaxChatJsonDepth. Without recursion,
// so that it may be asked before anything that recurses.
absl::Status CheckJsonDepth(std::string_view what, const nlohmann::ordered_json& json);

// A normalised copy of `messages`: members that are null are left out, `content` is always there,
// lists of parts and tool arguments are as `traits` wants them. InvalidArgument names the member
// that has a wrong shape, for example `messages[2].content`.
absl::StatusOr<nlohmann::ordered_json> NormaliseMessages(const nlohmann::ordered_json& messages,
                                                         const ChatTemplateTraits& traits);

}  // namespace layercake::model
