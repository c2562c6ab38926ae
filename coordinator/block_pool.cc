#include "coordinator/block_pool.h"

#include <algorithm>

#include "base/check.h"

namespace layercake::coordinator {

BlockPool::BlockPool(int block_count) : blocks_(static_cast<size_t>(block_count)) {
  free_.reserve(blocks_.size());
  for (int i = block_count - 1; i >= 0; --i) free_.push_back(static_cast<BlockId>(i));
}

std::optional<BlockId> BlockPool::Allocate() {
  BlockId block{};
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else if (oldest_ != kNone) {
    block = static_cast<BlockId>(oldest_);
    RemoveFromCached(oldest_);
    Unpublish(block);
  } else {
    return std::nullopt;
  }
  At(block).owners = 1;
  return block;
}

void BlockPool::Share(BlockId block) {
  Block& shared = At(block);
  if (shared.owners == 0) {
    LC_CHECK(shared.prefix != PrefixId::kEmpty, "block ", static_cast<uint32_t>(block),
             " is free and cannot be shared");
    RemoveFromCached(static_cast<uint32_t>(block));
  }
  ++shared.owners;
}

void BlockPool::Release(BlockId block) {
  const auto index = static_cast<uint32_t>(block);
  LC_CHECK(index < blocks_.size() && blocks_[index].owners > 0, "release of block ", index,
           " that nobody owns");
  if (--blocks_[index].owners > 0) return;
  if (blocks_[index].prefix != PrefixId::kEmpty) {
    AppendToCached(index);
  } else {
    free_.push_back(block);
  }
}

std::optional<BlockPool::Hit> BlockPool::Find(PrefixId before,
                                              absl::Span<const int32_t> tokens) const {
  const auto found = by_content_.find(KeyOf(before, tokens));
  if (found == by_content_.end()) return std::nullopt;
  const Block& block = At(found->second);
  if (block.before != before ||
      !std::equal(tokens.begin(), tokens.end(), block.tokens.begin(), block.tokens.end())) {
    return std::nullopt;
  }
  return Hit{.block = found->second, .prefix = block.prefix};
}

PrefixId BlockPool::Publish(BlockId block, PrefixId before, absl::Span<const int32_t> tokens) {
  Block& published = At(block);
  LC_CHECK(published.owners > 0, "nobody owns block ", static_cast<uint32_t>(block));
  if (published.prefix != PrefixId::kEmpty) return published.prefix;
  const uint64_t key = KeyOf(before, tokens);
  const auto [slot, inserted] = by_content_.emplace(key, block);
  if (!inserted) {
    const std::optional<Hit> equal = Find(before, tokens);
    // Two contents with one key: this one cannot be found, and what follows it neither.
    return equal ? equal->prefix : NewRoot();
  }
  published.before = before;
  published.prefix = NewRoot();
  published.key = key;
  published.tokens.assign(tokens.begin(), tokens.end());
  return published.prefix;
}

void BlockPool::Unpublish(BlockId block) {
  Block& hidden = At(block);
  if (hidden.prefix == PrefixId::kEmpty) return;
  by_content_.erase(hidden.key);
  hidden.prefix = PrefixId::kEmpty;
  hidden.tokens.clear();
}

uint64_t BlockPool::KeyOf(PrefixId before, absl::Span<const int32_t> tokens) {
  uint64_t key = static_cast<uint64_t>(before) * 0x9E3779B97F4A7C15u;
  for (const int32_t token : tokens) {
    key = (key ^ static_cast<uint32_t>(token)) * 0xFF51AFD7ED558CCDu;
    key ^= key >> 32;
  }
  return key;
}

void BlockPool::AppendToCached(uint32_t index) {
  blocks_[index].older = newest_;
  blocks_[index].newer = kNone;
  (newest_ == kNone ? oldest_ : blocks_[newest_].newer) = index;
  newest_ = index;
  ++cached_count_;
}

void BlockPool::RemoveFromCached(uint32_t index) {
  const Block& block = blocks_[index];
  (block.older == kNone ? oldest_ : blocks_[block.older].newer) = block.newer;
  (block.newer == kNone ? newest_ : blocks_[block.newer].older) = block.older;
  --cached_count_;
}

}  // namespace layercake::coordinator
