#include "kernels/cpu/kv_cache.h"

#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ops_check.h"

namespace layercake::kernels {
namespace {

std::optional<uint64_t> CheckedBytes(const KvCacheSpec& spec, int blocks) {
  if (spec.head_dim < 0) return std::nullopt;
  std::optional<uint64_t> bytes = 2 * KvHeadBytes(spec.type, spec.head_dim);  // a key and a value
  for (const int factor : {spec.layers, blocks, spec.block_tokens, spec.kv_heads}) {
    if (factor < 0) return std::nullopt;
    bytes = base::CheckedMul(*bytes, static_cast<uint64_t>(factor));
    if (!bytes) return std::nullopt;
  }
  return bytes;
}

}  // namespace

absl::string_view KvTypeName(KvType type) {
  switch (type) {
    case KvType::kF32:
      return "f32";
    case KvType::kF16:
      return "f16";
    case KvType::kBF16:
      return "bf16";
    case KvType::kQ8_0:
      return "q8_0";
  }
  return "unknown";
}

size_t KvHeadBytes(KvType type, int head_dim) {
  const auto values = static_cast<size_t>(head_dim);
  switch (type) {
    case KvType::kF32:
      return values * sizeof(float);
    case KvType::kF16:
    case KvType::kBF16:
      return values * sizeof(uint16_t);
    case KvType::kQ8_0:
      break;
  }
  return Q8Bytes(head_dim);
}

size_t KvCacheBytes(const KvCacheSpec& spec) {
  return CheckedBytes(spec, spec.blocks).value_or(std::numeric_limits<size_t>::max());
}

size_t HostKvBytes(const KvCacheSpec& spec) {
  return CheckedBytes(spec, spec.host_blocks).value_or(std::numeric_limits<size_t>::max());
}

absl::StatusOr<std::unique_ptr<CpuKvCache>> CpuKvCache::Create(const KvCacheSpec& spec) {
  LC_RETURN_IF_ERROR(CheckKvCacheSpec(spec, /*most_head_dim=*/0));
  const std::string shape = KvCacheShape(spec);
  const std::optional<uint64_t> bytes = CheckedBytes(spec, spec.blocks);
  if (!bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(shape, " has more bytes than 64 bits count; use fewer blocks"));
  }
  absl::StatusOr<HostMemory> memory = HostMemory::Allocate(*bytes, shape);
  if (!memory.ok()) return memory.status();
  HostMemory saved;
  if (spec.host_blocks > 0) {
    absl::StatusOr<HostMemory> allocated = HostMemory::Allocate(
        HostKvBytes(spec),
        absl::StrCat("host memory for ", spec.host_blocks, " saved KV blocks (--kv-host-memory)"));
    if (!allocated.ok()) return allocated.status();
    saved = *std::move(allocated);
  }
  return std::unique_ptr<CpuKvCache>(new CpuKvCache(spec, *std::move(memory), std::move(saved)));
}

std::byte* CpuKvCache::At(int layer, int which, int32_t block, int kv_head, int token) const {
  const KvCacheSpec& s = spec();
  size_t index = static_cast<size_t>(layer) * 2 + static_cast<size_t>(which);
  index = index * static_cast<size_t>(s.blocks) + static_cast<size_t>(block);
  index = index * static_cast<size_t>(s.kv_heads) + static_cast<size_t>(kv_head);
  index = index * static_cast<size_t>(s.block_tokens) + static_cast<size_t>(token);
  return memory_.address() + index * head_bytes_;
}

size_t CpuKvCache::PartBytes() const {
  return static_cast<size_t>(spec().kv_heads) * static_cast<size_t>(spec().block_tokens) *
         head_bytes_;
}

std::byte* CpuKvCache::Saved(int32_t host_block, int layer, int which) const {
  size_t index = static_cast<size_t>(host_block);
  index = index * static_cast<size_t>(spec().layers) + static_cast<size_t>(layer);
  return saved_.address() + (index * 2 + static_cast<size_t>(which)) * PartBytes();
}

absl::Status CpuKvCache::SaveBlock(int32_t block, int32_t host_block) {
  for (int layer = 0; layer < spec().layers; ++layer) {
    for (const int which : {0, 1}) {
      std::memcpy(Saved(host_block, layer, which), At(layer, which, block, 0, 0), PartBytes());
    }
  }
  return absl::OkStatus();
}

absl::Status CpuKvCache::RestoreBlock(int32_t host_block, int32_t block) {
  for (int layer = 0; layer < spec().layers; ++layer) {
    for (const int which : {0, 1}) {
      std::memcpy(At(layer, which, block, 0, 0), Saved(host_block, layer, which), PartBytes());
    }
  }
  return absl::OkStatus();
}

}  // namespace layercake::kernels
