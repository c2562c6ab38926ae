#include "model/jinja/marked_string.h"

#include <algorithm>

namespace layercake::model::jinja {

void MarkedString::Append(std::string_view text, bool trusted) {
  if (text.empty()) return;
  text_.append(text);
  if (!runs_.empty() && runs_.back().trusted == trusted) {
    runs_.back().end = text_.size();
  } else {
    runs_.push_back({text_.size(), trusted});
  }
}

size_t MarkedString::RunIndexAt(size_t offset) const {
  const auto run = std::upper_bound(runs_.begin(), runs_.end(), offset,
                                    [](size_t value, const Run& r) { return value < r.end; });
  return static_cast<size_t>(run - runs_.begin());
}

void MarkedString::AppendRange(const MarkedString& other, size_t begin, size_t end) {
  const std::string_view text = other.text_;
  for (size_t index = other.RunIndexAt(begin); begin < end; ++index) {
    const Run& run = other.runs_[index];
    const size_t stop = std::min(run.end, end);
    Append(text.substr(begin, stop - begin), run.trusted);
    begin = stop;
  }
}

MarkedString MarkedString::Slice(size_t begin, size_t end) const {
  MarkedString result;
  result.AppendRange(*this, begin, end);
  result.markup_ = markup_;
  return result;
}

bool MarkedString::TrustedAt(size_t offset) const { return runs_[RunIndexAt(offset)].trusted; }

}  // namespace layercake::model::jinja
