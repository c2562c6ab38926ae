// Text that remembers which of its bytes come from the template and which from the outside.
// Value type; a MarkedString that is no longer changed may be read by several threads.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace layercake::model::jinja {

class MarkedString {
 public:
  // Bytes up to `end` (from the previous run's end) share one origin.
  struct Run {
    size_t end = 0;
    bool trusted = false;
  };

  MarkedString() = default;
  MarkedString(std::string_view text, bool trusted) { Append(text, trusted); }

  const std::string& text() const { return text_; }
  size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }
  const std::vector<Run>& runs() const { return runs_; }

  // Jinja's Markup: `+` with such a string escapes the other side for HTML.
  bool markup() const { return markup_; }
  void set_markup(bool markup) { markup_ = markup; }

  void Append(std::string_view text, bool trusted);
  void Append(const MarkedString& other) { AppendRange(other, 0, other.size()); }
  // The bytes [begin, end) of `other`, which is not this string.
  void AppendRange(const MarkedString& other, size_t begin, size_t end);
  // The bytes [begin, end); keeps the markup flag.
  MarkedString Slice(size_t begin, size_t end) const;
  // Origin of the byte at `offset` < size().
  bool TrustedAt(size_t offset) const;

 private:
  size_t RunIndexAt(size_t offset) const;

  std::string text_;
  std::vector<Run> runs_;  // ends ascend, the last one is text_.size(); neighbours differ in origin
  bool markup_ = false;
};

using StringPtr = std::shared_ptr<const MarkedString>;

}  // namespace layercake::model::jinja
