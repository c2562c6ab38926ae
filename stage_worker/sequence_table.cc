#include "stage_worker/sequence_table.h"

#include <utility>

namespace layercake::stage_worker {

void TokenHistory::Append(int32_t token) {
  Count& count = counts_[token];
  count.all += 1;
  if (tokens_.size() >= prompt_tokens_) count.output += 1;
  tokens_.push_back(token);
}

void TokenHistory::Truncate(size_t length) {
  while (tokens_.size() > length) {
    const auto it = counts_.find(tokens_.back());
    tokens_.pop_back();
    if (tokens_.size() >= prompt_tokens_) it->second.output -= 1;
    if (--it->second.all == 0) counts_.erase(it);
  }
}

std::vector<kernels::SeenToken> TokenHistory::Seen() const {
  std::vector<kernels::SeenToken> seen;
  seen.reserve(counts_.size());
  for (const auto& [token, count] : counts_) {
    seen.push_back({.token = token, .output_count = count.output});
  }
  return seen;
}

const Sequence* SequenceTable::Find(uint64_t id) const {
  const auto it = sequences_.find(id);
  return it == sequences_.end() ? nullptr : &it->second;
}

Sequence* SequenceTable::Find(uint64_t id) {
  const auto it = sequences_.find(id);
  return it == sequences_.end() ? nullptr : &it->second;
}

Sequence& SequenceTable::Begin(uint64_t id, Sequence sequence) {
  return sequences_.insert_or_assign(id, std::move(sequence)).first->second;
}

}  // namespace layercake::stage_worker
