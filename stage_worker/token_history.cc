#include "stage_worker/token_history.h"

#include <algorithm>

namespace layercake::stage_worker {

size_t TokenHistory::IndexOf(int32_t token) const {
  const auto it = std::lower_bound(
      seen_.begin(), seen_.end(), token,
      [](const kernels::SeenToken& seen, int32_t wanted) { return seen.token < wanted; });
  return static_cast<size_t>(it - seen_.begin());
}

void TokenHistory::Append(int32_t token) {
  const size_t index = IndexOf(token);
  const auto offset = static_cast<std::ptrdiff_t>(index);
  if (index == seen_.size() || seen_[index].token != token) {
    seen_.insert(seen_.begin() + offset, {.token = token, .output_count = 0});
    counts_.insert(counts_.begin() + offset, 0);
  }
  counts_[index] += 1;
  if (tokens_.size() >= prompt_tokens_) seen_[index].output_count += 1;
  tokens_.push_back(token);
}

void TokenHistory::Truncate(size_t length) {
  while (tokens_.size() > length) {
    const size_t index = IndexOf(tokens_.back());
    const auto offset = static_cast<std::ptrdiff_t>(index);
    tokens_.pop_back();
    if (tokens_.size() >= prompt_tokens_) seen_[index].output_count -= 1;
    if (--counts_[index] != 0) continue;
    seen_.erase(seen_.begin() + offset);
    counts_.erase(counts_.begin() + offset);
  }
}

}  // namespace layercake::stage_worker
