// Keys and values in host memory, and attention over them.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/ops.h"

namespace layercake::kernels {

// Layout: (layers, 2, blocks, kv_heads, block_tokens, head_dim), 2 = keys then values, so that the
// positions of one head in one block lie together. The values of a head lie as KvType says. Saved
// blocks: (host_blocks, layers, 2, kv_heads, block_tokens, head_dim).
class CpuKvCache final : public KvCache {
 public:
  static absl::StatusOr<std::unique_ptr<CpuKvCache>> Create(const KvCacheSpec& spec);

  // The head_dim values of one position of one head.
  std::byte* Keys(int layer, int32_t block, int kv_head, int token) const {
    return At(layer, 0, block, kv_head, token);
  }
  std::byte* Values(int layer, int32_t block, int kv_head, int token) const {
    return At(layer, 1, block, kv_head, token);
  }

  absl::Status SaveBlock(int32_t block, int32_t host_block) override;
  absl::Status RestoreBlock(int32_t host_block, int32_t block) override;

 private:
  CpuKvCache(const KvCacheSpec& spec, HostMemory memory, HostMemory saved)
      : KvCache(spec),
        head_bytes_(KvHeadBytes(spec.type, spec.head_dim)),
        memory_(std::move(memory)),
        saved_(std::move(saved)) {}
  std::byte* At(int layer, int which, int32_t block, int kv_head, int token) const;
  // Of a block, in one layer, the keys or the values.
  size_t PartBytes() const;
  std::byte* Saved(int32_t host_block, int layer, int which) const;

  size_t head_bytes_;
  HostMemory memory_;
  HostMemory saved_;  // empty without host blocks
};

}  // namespace layercake::kernels
