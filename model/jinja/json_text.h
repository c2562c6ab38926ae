// Python's json.dumps as Hugging Face's `tojson` filter calls it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "model/jinja/runtime.h"

namespace layercake::model::jinja {

struct JsonTextOptions {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // one level's white space; empty: one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

// Strings keep their origin, the punctuation between them counts as foreign. InvalidArgument for
// values that JSON cannot say (undefined, generators, functions).
absl::StatusOr<MarkedString> ToJsonText(Runtime& runtime, const Value& value,
                                        const JsonTextOptions& options);

}  // namespace layercake::model::jinja
