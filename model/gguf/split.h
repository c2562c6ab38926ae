// The rules of split GGUF sets: how shards are named and what must agree between them. Pure; the
// files are opened by ModelFiles. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/gguf/gguf_file.h"

namespace layercake::model {

// Far above real sets (the largest published ones have under 200).
inline constexpr uint32_t kMaxShards = 1024;

// "dir/name-00002-of-00003.gguf" = {"dir/name", 2, 3}; number is 1-based as in the name.
struct ShardName {
  std::string prefix;
  uint32_t number = 0;
  uint32_t count = 0;
};
// nullopt when `path` is not named like a shard.
std::optional<ShardName> ParseShardName(absl::string_view path);
std::string FormatShardName(absl::string_view prefix, uint32_t number, uint32_t count);

// What a file says about its place in a set. A file without split.* keys is number 0 of 1.
struct SplitKeys {
  uint32_t no = 0;                       // split.no, 0-based
  uint32_t count = 1;                    // split.count
  std::optional<uint64_t> tensor_count;  // split.tensors.count, of the whole set
};
absl::StatusOr<SplitKeys> ReadSplitKeys(const GgufFile& file);

// A file whose data section is followed by another GGUF: parts that were joined with cat.
absl::Status CheckNotJoined(const GgufFile& file);

// `shards` in order of number. Checks counts, numbers, tensor totals, duplicate names, metadata
// that several shards carry, and that the shards come from the same quantisation.
absl::Status CheckShardsAgree(absl::Span<const GgufFile> shards);

}  // namespace layercake::model
