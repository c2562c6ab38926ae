// KV blocks: who owns them, and which full ones are kept for sequences that begin alike. The same
// id names a block on every stage.
//
// A block is owned by one or more sequences, or free, or cached: owned by nobody, its content
// known. Cached blocks count as free; they are given out when no other is left, the least recently
// used first. Known contents form chains: a block's content is named by the chain before it and its
// own tokens, compared in full, so a hit is never a collision of hashes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "coordinator/ids.h"

namespace layercake::coordinator {

// Names the content of full blocks from position 0 on. Never reused.
enum class PrefixId : uint64_t { kEmpty = 0 };

// Pure; every operation takes constant time, or time in the tokens of one block. Deterministic.
class BlockPool {
 public:
  explicit BlockPool(int block_count);

  // One owner. nullopt when every block is owned.
  std::optional<BlockId> Allocate();
  // One more owner, of an owned or a cached block.
  void Share(BlockId block);
  // One owner less. CHECKs that there was one: a double release would hand one block to two
  // sequences.
  void Release(BlockId block);

  struct Hit {
    BlockId block{};
    PrefixId prefix{};  // with this block
  };
  // The block that holds `tokens` after the content `before`.
  std::optional<Hit> Find(PrefixId before, absl::Span<const int32_t> tokens) const;
  // `block`, which is owned, holds `tokens` after `before` and will not change. Returns the chain's
  // name; the one that an equal block has already, if there is such a block.
  PrefixId Publish(BlockId block, PrefixId before, absl::Span<const int32_t> tokens);
  // Nobody shall find this block any more: its content is in doubt.
  void Unpublish(BlockId block);
  // A chain that nobody else's begins with: for sequences that share with each other only.
  PrefixId NewRoot() { return static_cast<PrefixId>(next_prefix_++); }

  int total() const { return static_cast<int>(blocks_.size()); }
  int free_count() const { return static_cast<int>(free_.size()) + cached_count_; }
  int cached_count() const { return cached_count_; }
  int owners(BlockId block) const { return At(block).owners; }

 private:
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  struct Block {
    int owners = 0;
    PrefixId before{};
    PrefixId prefix{};            // kEmpty: not published
    uint64_t key = 0;             // in by_content_
    std::vector<int32_t> tokens;  // of a published block
    // Neighbours in the list of cached blocks, kNone at the ends.
    uint32_t older = kNone;
    uint32_t newer = kNone;
  };

  static uint64_t KeyOf(PrefixId before, absl::Span<const int32_t> tokens);
  Block& At(BlockId block) { return blocks_[static_cast<size_t>(block)]; }
  const Block& At(BlockId block) const { return blocks_[static_cast<size_t>(block)]; }
  void AppendToCached(uint32_t index);
  void RemoveFromCached(uint32_t index);

  std::vector<Block> blocks_;
  std::vector<BlockId> free_;  // a stack
  // Never iterated: its order depends on a seed of the process. A key that two contents share
  // keeps the first of them.
  absl::flat_hash_map<uint64_t, BlockId> by_content_;
  uint32_t oldest_ = kNone;
  uint32_t newest_ = kNone;
  int cached_count_ = 0;
  uint64_t next_prefix_ = 1;
};

}  // namespace layercake::coordinator
