// From the chat of a request to the JSON that chat templates take. Pure functions; any thread.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "layercake/v1/inference.pb.h"
#include "model/chat/chat_template.h"
#include "nlohmann/json.hpp"

namespace layercake::coordinator {

// A JSON object that a client sent as text. MakeError(kInvalidParameter) with `param` when it is
// not one, nests deeper than `max_depth`, or names a key twice.
absl::StatusOr<nlohmann::ordered_json> ParseJsonObject(absl::string_view text, int max_depth,
                                                       absl::string_view param);

// Checks shapes, counts and UTF-8, naming what is at fault ("messages[3].role"). `now` and
// `timezone` of the result are left alone. Total bytes are the caller's to bound.
absl::StatusOr<model::ChatInput> ToChatInput(const v1::Chat& chat);

}  // namespace layercake::coordinator
