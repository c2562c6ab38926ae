#include "base/posix_error.h"

#include <system_error>

#include "absl/strings/str_cat.h"

namespace layercake::base {

absl::Status PosixError(absl::string_view attempt, int error_number) {
  return absl::Status(absl::ErrnoToStatusCode(error_number),
                      absl::StrCat(attempt, ": ", std::generic_category().message(error_number),
                                   " (errno ", error_number, ")"));
}

}  // namespace layercake::base
