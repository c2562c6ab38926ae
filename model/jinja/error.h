// Messages from pieces of std::string_view and numbers. (absl::StrCat takes std::string_view only
// where Abseil was built with C++17, which Debian's was not.)
#pragma once

#include <concepts>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace layercake::model::jinja {

inline void AppendPiece(std::string& out, std::string_view piece) { out += piece; }
inline void AppendPiece(std::string& out, std::integral auto number) {
  out += std::to_string(number);
}

template <typename... Pieces>
std::string Cat(const Pieces&... pieces) {
  std::string out;
  (AppendPiece(out, pieces), ...);
  return out;
}

// InvalidArgument: every fault of a template or of its input is one.
template <typename... Pieces>
absl::Status Invalid(const Pieces&... pieces) {
  return absl::InvalidArgumentError(Cat(pieces...));
}

}  // namespace layercake::model::jinja
