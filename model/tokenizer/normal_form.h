// Unicode normal form C, in near-linear time for every text. Pure function; any thread.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace layercake::model {

// `text` must be valid UTF-8; InvalidArgument otherwise.
absl::StatusOr<std::string> NormalizeNfc(std::string_view text);

// True when `text` has no character that NFC could change (all are below U+0300): the cheap test
// that lets most text skip NormalizeNfc.
bool IsTriviallyNfc(std::string_view text);

}  // namespace layercake::model
