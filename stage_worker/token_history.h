// Which tokens a prefix of a sequence holds, and how often its output does: what penalties need.
// Pure; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/sampling.h"

namespace layercake::stage_worker {

// A token at position >= prompt_tokens is output.
class TokenHistory {
 public:
  explicit TokenHistory(uint32_t prompt_tokens) : prompt_tokens_(prompt_tokens) {}

  void Append(int32_t token);
  // Forgets the tokens at `length` and after (drafts that did not stand).
  void Truncate(size_t length);

  size_t length() const { return tokens_.size(); }
  // Each token once, ascending: what leaves here must not depend on the order of the past.
  const std::vector<kernels::SeenToken>& seen() const { return seen_; }

 private:
  size_t IndexOf(int32_t token) const;  // in seen_, or where it would stand

  uint32_t prompt_tokens_;
  std::vector<int32_t> tokens_;  // by position
  // Kept ready, since a step waits for it: a token more is a short move, not a walk over all.
  std::vector<kernels::SeenToken> seen_;
  std::vector<int32_t> counts_;  // of each seen token, prompt and output
};

}  // namespace layercake::stage_worker
