// String operations that both methods (text.strip()) and filters (text|trim) need.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "model/jinja/runtime.h"

namespace layercake::model::jinja {

// `text` without leading and trailing characters of `characters` (white space when it is null).
absl::StatusOr<Value> StripText(Runtime& runtime, const MarkedString& text,
                                const MarkedString* characters, bool left, bool right);
// `count` < 0: all.
absl::StatusOr<Value> ReplaceText(Runtime& runtime, const MarkedString& text,
                                  const MarkedString& old_text, const MarkedString& new_text,
                                  int64_t count);
// The lines without their ends, split where str.splitlines does.
std::vector<MarkedString> SplitLines(const MarkedString& text, bool keep_ends);
// A method of str, or null.
Native FindStringMethod(std::string_view name);
// Items as str() with `separator` between them.
absl::StatusOr<Value> JoinTexts(Runtime& runtime, const MarkedString& separator,
                                const std::vector<Value>& items);

}  // namespace layercake::model::jinja
