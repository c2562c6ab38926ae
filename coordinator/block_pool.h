// Which KV blocks are free. The same id names a block on every stage.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/ids.h"

namespace layercake::coordinator {

// Pure. Lowest free id first is not promised; the order is deterministic.
class BlockPool {
 public:
  explicit BlockPool(int block_count);

  std::optional<BlockId> Allocate();
  // CHECKs that the block is owned: a double free is a programmer's error that would hand one block
  // to two sequences.
  void Free(BlockId block);

  int total() const { return static_cast<int>(owned_.size()); }
  int free_count() const { return static_cast<int>(free_.size()); }

 private:
  std::vector<BlockId> free_;  // a stack
  std::vector<bool> owned_;
};

}  // namespace layercake::coordinator
