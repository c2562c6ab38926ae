// Finds the earliest stop string in a growing text, and how much of the text can be shown before a
// match can still begin.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace layercake::coordinator {

// Pure.
class StopMatcher {
 public:
  // None of `stops` is empty.
  explicit StopMatcher(std::vector<std::string> stops);

  struct Match {
    size_t begin = 0;  // of the earliest match; among those at one place, the longest stop
    const std::string* stop = nullptr;
  };
  // In `text` from offset `from` on, which is not after the begin of any possible match.
  std::optional<Match> Find(absl::string_view text, size_t from) const;

  // Length of the longest suffix of `text` that is a proper prefix of a stop string.
  size_t HeldSuffix(absl::string_view text) const;

  size_t longest() const { return longest_; }

 private:
  const std::vector<std::string> stops_;
  size_t longest_ = 0;
};

}  // namespace layercake::coordinator
