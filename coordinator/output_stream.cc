#include "coordinator/output_stream.h"

#include <utility>

#include "base/status_macros.h"

namespace layercake::coordinator {

OutputStream::OutputStream(const model::Tokenizer& tokenizer, std::vector<std::string> stops,
                           int index)
    : tokenizer_(tokenizer),
      stops_(std::move(stops)),
      index_(index),
      detokenizer_(tokenizer, model::DecodeOptions{.show_control = false, .at_start = false}) {}

absl::StatusOr<OutputStream::Update> OutputStream::Add(int32_t token,
                                                       std::optional<v1::TokenLogprob> logprob) {
  LC_ASSIGN_OR_RETURN(const std::string piece, detokenizer_.Feed(token));
  if (logprob) FillText(*logprob);
  const size_t searched = text_.size();
  text_ += piece;
  held_.push_back({.token = token, .logprob = std::move(logprob), .end = std::nullopt});
  if (!detokenizer_.holds_text()) ResolveEnds();

  Update update;
  // A match may have begun in the text before the new piece.
  const size_t from = searched + 1 > stops_.longest() ? searched + 1 - stops_.longest() : 0;
  if (const auto match = stops_.Find(text_, from)) {
    update.matched_stop = *match->stop;
    text_.resize(match->begin);
    // Tokens that begin before the match belong to the text shown, also one that the match cuts.
    size_t begin = 0;
    size_t kept = 0;
    for (const Held& held : held_) {
      if (begin >= match->begin) break;
      ++kept;
      begin = held.end.value_or(match->begin);
    }
    held_.resize(kept);
    for (Held& held : held_) held.end = std::min(held.end.value_or(text_.size()), text_.size());
    update.delta = Take(text_.size());
    return update;
  }
  update.delta = Take(text_.size() - stops_.HeldSuffix(text_));
  return update;
}

std::optional<v1::Delta> OutputStream::Finish() {
  text_ += detokenizer_.Finish();
  ResolveEnds();
  return Take(text_.size());
}

void OutputStream::FillText(v1::TokenLogprob& logprob) const {
  const auto set_text = [this](v1::TokenLogprob& entry) {
    const auto piece = tokenizer_.TokenToPiece(entry.token(), /*show_control=*/true);
    if (piece.ok()) entry.set_text(std::string(*piece));
  };
  set_text(logprob);
  for (v1::TokenLogprob& entry : *logprob.mutable_top()) set_text(entry);
}

void OutputStream::ResolveEnds() {
  for (auto held = held_.rbegin(); held != held_.rend() && !held->end; ++held) {
    held->end = text_.size();
  }
}

std::optional<v1::Delta> OutputStream::Take(size_t limit) {
  v1::Delta delta;
  size_t shown = 0;
  while (!held_.empty() && held_.front().end && *held_.front().end <= limit) {
    Held& held = held_.front();
    shown = *held.end;
    delta.add_token_ids(held.token);
    if (held.logprob) *delta.add_logprobs() = std::move(*held.logprob);
    held_.pop_front();
  }
  if (delta.token_ids().empty()) return std::nullopt;
  delta.set_index(index_);
  delta.set_text(text_.substr(0, shown));
  text_.erase(0, shown);
  for (Held& held : held_) {
    if (held.end) *held.end -= shown;
  }
  return delta;
}

}  // namespace layercake::coordinator
