// Metadata values as short printable text, for messages and `layercake inspect`. Pure; any thread.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "model/gguf/metadata.h"

namespace layercake::model {

// At most `max_items` elements of an array ("[1, 2, ... 40 more]") and `max_bytes` of each string.
// Strings are quoted and escaped, so that a hostile file cannot steer a terminal.
std::string FormatMetadataValue(const MetadataEntry& entry, size_t max_items, size_t max_bytes);

// Without quotes: control characters and broken UTF-8 escaped, cut to `max_bytes`.
std::string PrintableText(absl::string_view text, size_t max_bytes);

}  // namespace layercake::model
