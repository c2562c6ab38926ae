#include "proto/kv_cache_type.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace layercake {
namespace {

struct TypeRow {
  v1::KvCacheType type;
  absl::string_view name;
  uint32_t block_values;
  uint32_t block_bytes;
};

constexpr TypeRow kTypes[] = {
    {v1::KV_CACHE_TYPE_F16, "f16", 1, 2},
    {v1::KV_CACHE_TYPE_BF16, "bf16", 1, 2},
    {v1::KV_CACHE_TYPE_Q8_0, "q8_0", 32, 34},
    {v1::KV_CACHE_TYPE_F32, "f32", 1, 4},
};

}  // namespace

std::vector<std::string> KvCacheTypeNames() {
  std::vector<std::string> names;
  for (const TypeRow& row : kTypes) names.emplace_back(row.name);
  return names;
}

absl::StatusOr<v1::KvCacheType> ParseKvCacheType(absl::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (row.name == name) return row.type;
  }
  return absl::InvalidArgumentError(absl::StrCat("a KV cache of type \"", name, "\": there are ",
                                                 absl::StrJoin(KvCacheTypeNames(), ", ")));
}

absl::string_view KvCacheTypeName(v1::KvCacheType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row.name;
  }
  return "";
}

uint64_t KvHeadBytes(v1::KvCacheType type, uint32_t head_dim) {
  for (const TypeRow& row : kTypes) {
    if (row.type != type) continue;
    const uint64_t blocks = (uint64_t{head_dim} + row.block_values - 1) / row.block_values;
    return blocks * row.block_bytes;
  }
  return 0;
}

}  // namespace layercake
