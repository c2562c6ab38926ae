// Turns a stream of token ids into text deltas that never cut a UTF-8 character.
//
// Bytes that begin a character are held until it is whole; bytes that can be no character become
// U+FFFD at once; at the end an unfinished character becomes one U+FFFD. All deltas joined equal
// Tokenizer::Decode of all ids. Held state is at most three bytes.
// One stream, one thread at a time. The tokenizer must outlive it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "model/tokenizer/tokenizer.h"

namespace layercake::model {

class StreamingDetokenizer {
 public:
  explicit StreamingDetokenizer(const Tokenizer& tokenizer, const DecodeOptions& options = {});

  // Text that `id` completes; often empty. InvalidArgument names an id outside the vocabulary and
  // leaves the stream as it was.
  absl::StatusOr<std::string> Feed(TokenId id);

  // What is left to print: one U+FFFD when a character is unfinished, else nothing. The stream is
  // then as it was after construction.
  std::string Finish();

  // True while bytes of an unfinished character are held back.
  bool holds_text() const { return !held_.empty(); }

 private:
  std::string TakeWhole();

  const Tokenizer& tokenizer_;
  const DecodeOptions options_;
  bool drop_space_;   // the next piece of text loses one leading space (SPM)
  std::string held_;  // an unfinished character, at most 3 bytes between calls
};

}  // namespace layercake::model
