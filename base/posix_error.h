// The one place where errno becomes an absl::Status.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace layercake::base {

// "<attempt>: <strerror> (errno N)". `attempt` says what was tried, with its values.
absl::Status PosixError(absl::string_view attempt, int error_number);

}  // namespace layercake::base
