// Keys, values and float vectors in device memory.
#pragma once

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/step_view.h"
#include "kernels/ops.h"

namespace layercake::kernels::cuda {

// Every type, head_dim at most kMaxHeadDim; q8_0 wants block_tokens to be a multiple of 16.
absl::Status CheckCudaKvCache(const KvCacheSpec& spec);

// Layout: (layers, 2, blocks, kv_heads, block_tokens, head_dim), 2 = keys then values; within a
// head of a block q8_0 lies as kv_layout.h says. Saved blocks lie in pinned host memory:
// (host_blocks, layers, 2, kv_heads, block_tokens, head_dim).
class CudaKvCache final : public KvCache {
 public:
  // InvalidArgument as CheckCudaKvCache; ResourceExhausted with sizes.
  static absl::StatusOr<std::unique_ptr<CudaKvCache>> Create(const Context& context,
                                                             const KvCacheSpec& spec);
  // `layer` is one of the cache's (callers check).
  KvView View(int layer) const;

  // On the context's stream (kv_copy.cc).
  absl::Status SaveBlock(int32_t block, int32_t host_block) override;
  absl::Status RestoreBlock(int32_t host_block, int32_t block) override;

 private:
  CudaKvCache(const Context& context, const KvCacheSpec& spec, DeviceArray memory,
              PinnedArray saved)
      : KvCache(spec), context_(context), memory_(std::move(memory)), saved_(std::move(saved)) {}
  absl::Status CopyBlock(int32_t block, int32_t host_block, cudaMemcpyKind direction);

  const Context context_;
  DeviceArray memory_;
  PinnedArray saved_;  // empty without host blocks
};

class CudaVector final : public Vector {
 public:
  CudaVector(int64_t size, DeviceArray memory, float largest)
      : Vector(size), memory_(std::move(memory)), largest_(largest) {}
  const float* values() const { return memory_.as<float>(); }
  float largest() const { return largest_; }  // magnitude

 private:
  DeviceArray memory_;
  float largest_;
};

}  // namespace layercake::kernels::cuda
