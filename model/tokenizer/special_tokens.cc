#include "model/tokenizer/special_tokens.h"

#include "absl/strings/str_cat.h"

namespace layercake::model {
namespace {

uint64_t EdgeKey(uint32_t node, char byte) {
  return (uint64_t{node} << 8) | static_cast<uint8_t>(byte);
}

}  // namespace

absl::Status SpecialTokenMatcher::Add(std::string_view text, TokenId id, bool control) {
  if (text.empty()) return absl::OkStatus();
  if (text.size() > kMaxSpecialTokenBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.ggml.tokens[", id, "] is a special token of ", text.size(),
                     " bytes; at most ", kMaxSpecialTokenBytes, " are supported"));
  }
  starts_[static_cast<uint8_t>(text[0])] = true;
  uint32_t node = 0;
  for (const char byte : text) {
    const auto [edge, inserted] = edges_.try_emplace(EdgeKey(node, byte), node_count_);
    if (inserted) ++node_count_;
    node = edge->second;
  }
  terminals_.try_emplace(node, Terminal{id, control});
  return absl::OkStatus();
}

std::optional<SpecialTokenMatcher::Match> SpecialTokenMatcher::MatchFront(
    std::string_view text, size_t control_bytes) const {
  std::optional<Match> longest;
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto edge = edges_.find(EdgeKey(node, text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    const auto terminal = terminals_.find(node);
    if (terminal == terminals_.end()) continue;
    if (terminal->second.control && i + 1 > control_bytes) continue;
    longest = Match{terminal->second.id, i + 1};
  }
  return longest;
}

}  // namespace layercake::model
