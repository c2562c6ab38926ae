#include "kernels/cuda/kv_cache.h"

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/step_kernels.h"

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
  const std::string shape =
      absl::StrCat("a KV cache of ", spec.layers, " layers, ", spec.blocks, " blocks of ",
                   spec.block_tokens, " tokens, ", spec.kv_heads, " kv heads of ", spec.head_dim);
  if (spec.layers < 1 || spec.blocks < 1 || spec.block_tokens < 1 || spec.kv_heads < 1 ||
      spec.head_dim < 2 || spec.head_dim % 2 != 0 || spec.head_dim > kMaxHeadDim) {
    return absl::InvalidArgumentError(
        absl::StrCat(shape, ": every number must be positive and the head width even and at most ",
                     kMaxHeadDim));
  }
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
