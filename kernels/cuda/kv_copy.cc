// Blocks of the KV cache to pinned host memory and back.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/kv_cache.h"

namespace layercake::kernels::cuda {
namespace {

// CUDA's bound on the distance between the rows of a two-dimensional copy (cudaDevAttrMaxPitch).
constexpr size_t kMaxPitch = std::numeric_limits<int32_t>::max();

}  // namespace

absl::Status CudaKvCache::SaveBlock(int32_t block, int32_t host_block) {
  return CopyBlock(block, host_block, cudaMemcpyDeviceToHost);
}

absl::Status CudaKvCache::RestoreBlock(int32_t host_block, int32_t block) {
  return CopyBlock(block, host_block, cudaMemcpyHostToDevice);
}

absl::Status CudaKvCache::CopyBlock(int32_t block, int32_t host_block, cudaMemcpyKind direction) {
  // On the device a block is one part for the keys of each layer and one for the values, all
  // equally far apart; on the host the parts lie side by side.
  const auto parts = static_cast<size_t>(spec().layers) * 2;
  const size_t distance = KvCacheBytes(spec()) / parts;
  const size_t part_bytes = distance / static_cast<size_t>(spec().blocks);
  std::byte* const device = memory_.as<std::byte>() + static_cast<size_t>(block) * part_bytes;
  std::byte* const host =
      saved_.as<std::byte>() + static_cast<size_t>(host_block) * parts * part_bytes;
  const bool saves = direction == cudaMemcpyDeviceToHost;
  // One call copies all parts, or one each where they lie too far apart for that.
  const size_t together = distance <= kMaxPitch ? parts : 1;
  for (size_t part = 0; part < parts; part += together) {
    std::byte* const there = device + part * distance;
    std::byte* const here = host + part * part_bytes;
    const size_t there_pitch = std::min(distance, kMaxPitch);
    LC_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpy2DAsync(saves ? here : there, saves ? part_bytes : there_pitch,
                                     saves ? there : here, saves ? there_pitch : part_bytes,
                                     part_bytes, together, direction, context_.stream),
                   absl::StrCat(saves ? "save" : "restore", " KV block ", block)));
  }
  return absl::OkStatus();
}

}  // namespace layercake::kernels::cuda
