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

// OK for f16 and f32; else Unimplemented with the way out.
absl::Status CheckCudaKvType(KvType type);

// Layout: (layers, 2, blocks, kv_heads, block_tokens, head_dim), 2 = keys then values.
class CudaKvCache final : public KvCache {
 public:
  // f16 or f32; head_dim even and at most kMaxHeadDim. ResourceExhausted with sizes.
  static absl::StatusOr<std::unique_ptr<CudaKvCache>> Create(const Context& context,
                                                             const KvCacheSpec& spec);
  // `layer` is one of the cache's (callers check).
  KvView View(int layer) const;

 private:
  CudaKvCache(const KvCacheSpec& spec, DeviceArray memory)
      : KvCache(spec), memory_(std::move(memory)) {}
  DeviceArray memory_;
};

class CudaVector final : public Vector {
 public:
  CudaVector(int64_t size, DeviceArray memory) : Vector(size), memory_(std::move(memory)) {}
  const float* values() const { return memory_.as<float>(); }

 private:
  DeviceArray memory_;
};

}  // namespace layercake::kernels::cuda
