#include "coordinator/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "base/check.h"

namespace layercake::coordinator {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    LC_CHECK(!stop.empty(), "an empty stop string");
    longest_ = std::max(longest_, stop.size());
  }
}

std::optional<StopMatcher::Match> StopMatcher::Find(absl::string_view text, size_t from) const {
  std::optional<Match> best;
  for (const std::string& stop : stops_) {
    const size_t begin = text.find(stop, from);
    if (begin == absl::string_view::npos) continue;
    const bool better =
        !best || begin < best->begin || (begin == best->begin && stop.size() > best->stop->size());
    if (better) best = Match{.begin = begin, .stop = &stop};
  }
  return best;
}

size_t StopMatcher::HeldSuffix(absl::string_view text) const {
  size_t held = 0;
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, text.size()); length > held; --length) {
      if (absl::EndsWith(text, absl::string_view(stop).substr(0, length))) {
        held = length;
        break;
      }
    }
  }
  return held;
}

}  // namespace layercake::coordinator
