// Keys and values in host memory, and attention over them.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/ops.h"

namespace layercake::kernels {

// Layout: (layers, 2, blocks, kv_heads, block_tokens, head_dim), 2 = keys then values, so that the
// positions of one head in one block lie together.
class CpuKvCache final : public KvCache {
 public:
  static absl::StatusOr<std::unique_ptr<CpuKvCache>> Create(const KvCacheSpec& spec);

  size_t element_bytes() const { return spec().type == KvType::kF16 ? 2 : 4; }
  // The head_dim values of one position of one head.
  std::byte* Keys(int layer, int32_t block, int kv_head, int token) const {
    return At(layer, 0, block, kv_head, token);
  }
  std::byte* Values(int layer, int32_t block, int kv_head, int token) const {
    return At(layer, 1, block, kv_head, token);
  }

 private:
  CpuKvCache(const KvCacheSpec& spec, HostMemory memory)
      : KvCache(spec), memory_(std::move(memory)) {}
  std::byte* At(int layer, int which, int32_t block, int kv_head, int token) const;

  HostMemory memory_;
};

}  // namespace layercake::kernels
