#include "coordinator/block_pool.h"

#include "base/check.h"

namespace layercake::coordinator {

BlockPool::BlockPool(int block_count) : owned_(static_cast<size_t>(block_count), false) {
  free_.reserve(owned_.size());
  for (int i = block_count - 1; i >= 0; --i) free_.push_back(static_cast<BlockId>(i));
}

std::optional<BlockId> BlockPool::Allocate() {
  if (free_.empty()) return std::nullopt;
  const BlockId block = free_.back();
  free_.pop_back();
  owned_[static_cast<size_t>(block)] = true;
  return block;
}

void BlockPool::Free(BlockId block) {
  const auto index = static_cast<size_t>(block);
  LC_CHECK(index < owned_.size() && owned_[index], "free of block ", index, " that nobody owns");
  owned_[index] = false;
  free_.push_back(block);
}

}  // namespace layercake::coordinator
