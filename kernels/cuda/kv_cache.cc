#include "kernels/cuda/kv_cache.h"

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/step_kernels.h"
#include "kernels/ops_check.h"

namespace layercake::kernels::cuda {

absl::Status CheckCudaKvType(KvType type) {
  if (type == KvType::kF16 || type == KvType::kF32) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("a KV cache of type ", KvTypeName(type),
                                               " exists on cpu devices only; on CUDA devices use "
                                               "--kv-type f16"));
}

absl::StatusOr<std::unique_ptr<CudaKvCache>> CudaKvCache::Create(const Context& context,
                                                                 const KvCacheSpec& spec) {
  LC_RETURN_IF_ERROR(CheckCudaKvType(spec.type));
  LC_RETURN_IF_ERROR(CheckKvCacheSpec(spec, kMaxHeadDim));
  const std::string shape = KvCacheShape(spec);
  const size_t bytes = KvCacheBytes(spec);
  if (bytes == std::numeric_limits<size_t>::max()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(shape, " has more bytes than 64 bits count; use fewer blocks"));
  }
  LC_ASSIGN_OR_RETURN(DeviceArray memory, DeviceArray::Allocate(context, bytes, shape));
  return std::unique_ptr<CudaKvCache>(new CudaKvCache(spec, std::move(memory)));
}

KvView CudaKvCache::View(int layer) const {
  const KvCacheSpec& s = spec();
  const size_t half_bytes = KvCacheBytes(s) / static_cast<size_t>(s.layers) / 2;
  std::byte* const keys = memory_.as<std::byte>() + static_cast<size_t>(layer) * 2 * half_bytes;
  return {.keys = keys,
          .values = keys + half_bytes,
          .half = s.type == KvType::kF16,
          .block_tokens = s.block_tokens,
          .kv_heads = s.kv_heads,
          .head_dim = s.head_dim};
}

}  // namespace layercake::kernels::cuda
