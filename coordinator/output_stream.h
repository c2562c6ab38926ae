// From sampled tokens to what the client sees: text that never cuts a character, never shows a part
// of a stop string, and always comes with the ids (and log-probabilities) that made it.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/stop_matcher.h"
#include "layercake/v1/inference.pb.h"
#include "model/tokenizer/detokenizer.h"
#include "model/tokenizer/tokenizer.h"

namespace layercake::coordinator {

// One choice of one request. Pure. The tokenizer outlives it.
class OutputStream {
 public:
  OutputStream(const model::Tokenizer& tokenizer, std::vector<std::string> stops, int index);

  struct Update {
    std::optional<v1::Delta> delta;  // what can be shown now, if anything
    std::string matched_stop;        // set: the output ends here, `delta` was the last of it
  };
  // A token that is part of the text (not an end-of-generation token). `logprob` has its text set
  // here. Fails only for a token outside the vocabulary.
  absl::StatusOr<Update> Add(int32_t token, std::optional<v1::TokenLogprob> logprob);

  // The output ends without a stop string: everything held back. A stop string cannot complete
  // here; an unfinished character becomes U+FFFD.
  std::optional<v1::Delta> Finish();

 private:
  struct Held {
    int32_t token = 0;
    std::optional<v1::TokenLogprob> logprob;
    // Where the token's text ends in text_; nullopt while its character is unfinished.
    std::optional<size_t> end;
  };

  void FillText(v1::TokenLogprob& logprob) const;
  void ResolveEnds();
  // Moves the tokens whose text ends at or before `limit` into a delta, with that text.
  std::optional<v1::Delta> Take(size_t limit);

  const model::Tokenizer& tokenizer_;
  const StopMatcher stops_;
  const int index_;
  model::StreamingDetokenizer detokenizer_;
  std::string text_;       // not shown yet
  std::deque<Held> held_;  // not shown yet
};

}  // namespace layercake::coordinator
