#include "kernels/cuda/kv_cache.h"

#include <limits>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/available_memory.h"
#include "base/status_macros.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/step_kernels.h"
#include "kernels/ops_check.h"

namespace layercake::kernels::cuda {
namespace {

absl::StatusOr<PinnedArray> AllocateSavedBlocks(const Context& context, const KvCacheSpec& spec) {
  const size_t bytes = HostKvBytes(spec);
  const std::string what =
      absl::StrCat("host memory for ", spec.host_blocks, " saved KV blocks (--kv-host-memory)");
  if (bytes == std::numeric_limits<size_t>::max()) {
    return absl::ResourceExhaustedError(absl::StrCat(what, " has more bytes than 64 bits count"));
  }
  // Pinned memory cannot be swapped out: more than is there would take the machine down.
  const std::optional<uint64_t> available = base::AvailableMemoryBytes();
  if (available && bytes > *available) {
    return absl::ResourceExhaustedError(absl::StrCat(what, " needs ", bytes, " bytes, ", *available,
                                                     " are available; ask for less"));
  }
  return PinnedArray::Allocate(context, bytes, what);
}

KvElement ElementOf(KvType type) {
  switch (type) {
    case KvType::kF32:
      return KvElement::kFloat32;
    case KvType::kF16:
      return KvElement::kFloat16;
    case KvType::kBF16:
      return KvElement::kBfloat16;
    case KvType::kQ8_0:
      break;
  }
  return KvElement::kQ8_0;
}

}  // namespace

absl::Status CheckCudaKvCache(const KvCacheSpec& spec) {
  LC_RETURN_IF_ERROR(CheckKvCacheSpec(spec, kMaxHeadDim));
  if (spec.type != KvType::kQ8_0 || spec.block_tokens % kQ8Run == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(KvCacheShape(spec), ": on CUDA devices q8_0 wants blocks of a multiple of ",
                   kQ8Run, " tokens"));
}

absl::StatusOr<std::unique_ptr<CudaKvCache>> CudaKvCache::Create(const Context& context,
                                                                 const KvCacheSpec& spec) {
  LC_RETURN_IF_ERROR(CheckCudaKvCache(spec));
  const std::string shape = KvCacheShape(spec);
  const size_t bytes = KvCacheBytes(spec);
  if (bytes == std::numeric_limits<size_t>::max()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(shape, " has more bytes than 64 bits count; use fewer blocks"));
  }
  LC_ASSIGN_OR_RETURN(DeviceArray memory, DeviceArray::Allocate(context, bytes, shape));
  PinnedArray saved;
  if (spec.host_blocks > 0) {
    LC_ASSIGN_OR_RETURN(saved, AllocateSavedBlocks(context, spec));
  }
  return std::unique_ptr<CudaKvCache>(
      new CudaKvCache(context, spec, std::move(memory), std::move(saved)));
}

KvView CudaKvCache::View(int layer) const {
  const KvCacheSpec& s = spec();
  const size_t half_bytes = KvCacheBytes(s) / static_cast<size_t>(s.layers) / 2;
  std::byte* const keys = memory_.as<std::byte>() + static_cast<size_t>(layer) * 2 * half_bytes;
  return {.keys = keys,
          .values = keys + half_bytes,
          .element = ElementOf(s.type),
          .block_tokens = s.block_tokens,
          .kv_heads = s.kv_heads,
          .head_dim = s.head_dim};
}

}  // namespace layercake::kernels::cuda
