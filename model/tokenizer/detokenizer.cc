#include "model/tokenizer/detokenizer.h"

#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "model/tokenizer/utf8.h"

namespace layercake::model {

StreamingDetokenizer::StreamingDetokenizer(const Tokenizer& tokenizer, const DecodeOptions& options)
    : tokenizer_(tokenizer),
      options_(options),
      drop_space_(options.at_start && tokenizer.add_space_prefix()) {}

absl::StatusOr<std::string> StreamingDetokenizer::Feed(TokenId id) {
  LC_ASSIGN_OR_RETURN(std::string_view piece, tokenizer_.TokenToPiece(id, options_.show_control));
  if (tokenizer_.IsSpecial(id)) {
    // Encode puts a space after each special token too.
    drop_space_ = tokenizer_.add_space_prefix();
  } else if (!piece.empty()) {
    if (drop_space_ && piece[0] == ' ') piece.remove_prefix(1);
    drop_space_ = false;
  }
  held_.append(piece);
  return TakeWhole();
}

std::string StreamingDetokenizer::Finish() {
  std::string rest = ReplaceInvalidUtf8(held_);
  held_.clear();
  drop_space_ = options_.at_start && tokenizer_.add_space_prefix();
  return rest;
}

std::string StreamingDetokenizer::TakeWhole() {
  const size_t tail = IncompleteUtf8Tail(held_);
  std::string whole = ReplaceInvalidUtf8(std::string_view(held_).substr(0, held_.size() - tail));
  held_.erase(0, held_.size() - tail);
  return whole;
}

}  // namespace layercake::model
