#include "model/gguf/split.h"

#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "model/gguf/metadata_text.h"

namespace layercake::model {
namespace {

constexpr absl::string_view kNoKey = "split.no";
constexpr absl::string_view kCountKey = "split.count";
constexpr absl::string_view kTensorCountKey = "split.tensors.count";

// Two shards of different quantisations disagree on the type of every role that they share; shards
// of one quantisation agree on most. Fewer shared roles than this prove nothing.
constexpr size_t kMinSharedRoles = 3;

absl::Status InFile(const GgufFile& file, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(file.name(), ": ", status.message()));
}

absl::StatusOr<std::optional<uint64_t>> OptionalU64(const GgufFile& file, absl::string_view key) {
  const absl::StatusOr<uint64_t> value = file.metadata().GetU64(key);
  if (value.ok()) return std::optional<uint64_t>(*value);
  if (absl::IsNotFound(value.status())) return std::optional<uint64_t>();
  return InFile(file, value.status());
}

absl::Status CheckCounts(absl::Span<const GgufFile> shards) {
  uint64_t tensors = 0;
  std::optional<uint64_t> stated;
  const GgufFile* stated_by = nullptr;
  for (size_t i = 0; i < shards.size(); ++i) {
    LC_ASSIGN_OR_RETURN(const SplitKeys keys, ReadSplitKeys(shards[i]));
    if (keys.count != shards.size()) {
      return absl::DataLossError(absl::StrCat(shards[i].name(), ": ", kCountKey, " = ", keys.count,
                                              ", but the set has ", shards.size(),
                                              " shards; take all shards from one download"));
    }
    if (keys.no != i) {
      return absl::DataLossError(absl::StrCat(shards[i].name(), ": ", kNoKey, " = ", keys.no,
                                              " (counted from 0), but its place is ", i,
                                              "; the shards were renamed or mixed up"));
    }
    tensors += shards[i].tensors().size();
    if (!keys.tensor_count) continue;
    if (stated && *stated != *keys.tensor_count) {
      return absl::DataLossError(absl::StrCat(
          shards[i].name(), ": ", kTensorCountKey, " = ", *keys.tensor_count, ", but ",
          stated_by->name(), " says ", *stated, "; take all shards from one download"));
    }
    stated = keys.tensor_count;
    stated_by = &shards[i];
  }
  if (stated && *stated != tensors) {
    return absl::DataLossError(absl::StrCat(stated_by->name(), ": ", kTensorCountKey, " = ",
                                            *stated, ", but the ", shards.size(), " shards hold ",
                                            tensors, " tensors"));
  }
  return absl::OkStatus();
}

absl::Status CheckNames(absl::Span<const GgufFile> shards) {
  absl::flat_hash_map<absl::string_view, const GgufFile*> owner;
  for (const GgufFile& shard : shards) {
    for (const TensorInfo& tensor : shard.tensors()) {
      const auto [found, inserted] = owner.emplace(tensor.name, &shard);
      if (inserted) continue;
      return absl::DataLossError(absl::StrCat("tensor ", PrintableText(tensor.name, 80), " is in ",
                                              found->second->name(), " and in ", shard.name(),
                                              "; the shards do not belong together"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMetadata(absl::Span<const GgufFile> shards) {
  const Metadata& first = shards.front().metadata();
  for (const GgufFile& shard : shards.subspan(1)) {
    for (const MetadataEntry& entry : shard.metadata().entries()) {
      const MetadataEntry* same = first.Find(entry.key);
      if (same == nullptr || absl::StartsWith(entry.key, "split.")) continue;
      if (same->type == entry.type && same->element_type == entry.element_type &&
          same->value == entry.value) {
        continue;
      }
      return absl::InvalidArgumentError(
          absl::StrCat(shard.name(), ": ", PrintableText(entry.key, 80), " = ",
                       FormatMetadataValue(entry, 4, 80), ", but ", shards.front().name(), " says ",
                       FormatMetadataValue(*same, 4, 80), "; the shards do not belong together"));
    }
  }
  return absl::OkStatus();
}

// "ffn_up.weight" of "blk.7.ffn_up.weight"; nullopt for tensors outside the layers and for vectors,
// which are F32 in every quantisation.
std::optional<absl::string_view> RoleOf(const TensorInfo& tensor) {
  if (tensor.n_dims < 2 || !absl::StartsWith(tensor.name, "blk.")) return std::nullopt;
  const size_t dot = tensor.name.find('.', 4);
  if (dot == absl::string_view::npos) return std::nullopt;
  return tensor.name.substr(dot + 1);
}

using TypesByRole = std::map<absl::string_view, std::set<TensorType>>;

std::string JoinTypes(const std::set<TensorType>& types) {
  return absl::StrJoin(types, "/", [](std::string* out, TensorType type) {
    absl::StrAppend(out, TensorTypeName(type));
  });
}

absl::Status CheckTypes(absl::Span<const GgufFile> shards) {
  TypesByRole earlier;
  for (const GgufFile& shard : shards) {
    TypesByRole here;
    for (const TensorInfo& tensor : shard.tensors()) {
      if (const auto role = RoleOf(tensor)) here[*role].insert(tensor.type);
    }
    size_t shared = 0;
    size_t disjoint = 0;
    const TypesByRole::value_type* example = nullptr;
    for (const auto& role : here) {
      const auto known = earlier.find(role.first);
      if (known == earlier.end()) continue;
      ++shared;
      bool common = false;
      for (const TensorType type : role.second) common = common || known->second.contains(type);
      if (!common) {
        ++disjoint;
        example = &role;
      }
    }
    if (shared >= kMinSharedRoles && disjoint == shared) {
      return absl::InvalidArgumentError(
          absl::StrCat(shard.name(), ": ", PrintableText(example->first, 80), " has type ",
                       JoinTypes(example->second), ", but ", JoinTypes(earlier[example->first]),
                       " in the shards before it, and so for all ", shared,
                       " kinds of weight: the shard is of another quantisation"));
    }
    for (auto& [role, types] : here) earlier[role].insert(types.begin(), types.end());
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<ShardName> ParseShardName(absl::string_view path) {
  // "-00002-of-00003.gguf"
  constexpr size_t kSuffixBytes = 20;
  if (path.size() < kSuffixBytes) return std::nullopt;
  const absl::string_view suffix = path.substr(path.size() - kSuffixBytes);
  if (suffix[0] != '-' || suffix.substr(6, 4) != "-of-" || suffix.substr(15) != ".gguf") {
    return std::nullopt;
  }
  ShardName name;
  for (const size_t digit : {1u, 2u, 3u, 4u, 5u, 10u, 11u, 12u, 13u, 14u}) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(suffix[digit]))) return std::nullopt;
  }
  if (!absl::SimpleAtoi(suffix.substr(1, 5), &name.number) ||
      !absl::SimpleAtoi(suffix.substr(10, 5), &name.count)) {
    return std::nullopt;
  }
  if (name.number == 0 || name.number > name.count) return std::nullopt;
  name.prefix = std::string(path.substr(0, path.size() - kSuffixBytes));
  return name;
}

std::string FormatShardName(absl::string_view prefix, uint32_t number, uint32_t count) {
  return absl::StrFormat("%s-%05d-of-%05d.gguf", prefix, number, count);
}

absl::StatusOr<SplitKeys> ReadSplitKeys(const GgufFile& file) {
  LC_ASSIGN_OR_RETURN(const std::optional<uint64_t> count, OptionalU64(file, kCountKey));
  LC_ASSIGN_OR_RETURN(const std::optional<uint64_t> no, OptionalU64(file, kNoKey));
  SplitKeys keys;
  LC_ASSIGN_OR_RETURN(keys.tensor_count, OptionalU64(file, kTensorCountKey));
  // Some converters write a count of 0 into a file that is whole.
  if (!count || *count <= 1) {
    keys.count = 1;
    if (no && *no != 0) {
      return absl::DataLossError(absl::StrCat(file.name(), ": ", kNoKey, " = ", *no, ", but ",
                                              kCountKey, " = ", count.value_or(0)));
    }
    return keys;
  }
  if (*count > kMaxShards) {
    return absl::DataLossError(
        absl::StrCat(file.name(), ": ", kCountKey, " = ", *count, ", at most ", kMaxShards));
  }
  if (!no || *no >= *count) {
    return absl::DataLossError(absl::StrCat(file.name(), ": ", kNoKey, " = ",
                                            no ? absl::StrCat(*no) : "missing",
                                            " (counted from 0), but ", kCountKey, " = ", *count));
  }
  keys.count = static_cast<uint32_t>(*count);
  keys.no = static_cast<uint32_t>(*no);
  return keys;
}

absl::Status CheckNotJoined(const GgufFile& file) {
  const std::optional<uint64_t> padded = base::CheckedAlignUp(file.data_end(), file.alignment());
  for (const uint64_t at : {file.data_end(), padded.value_or(file.data_end())}) {
    if (at > file.bytes().size() || file.bytes().size() - at < 4) continue;
    if (std::memcmp(file.bytes().data() + at, "GGUF", 4) != 0) continue;
    return absl::DataLossError(
        absl::StrCat(file.name(), ": the model ends at byte ", at,
                     ", but the file goes on to byte ", file.file_size(),
                     " with another GGUF header: split files were joined with cat. Keep the "
                     "shards as they were downloaded and give the first one"));
  }
  return absl::OkStatus();
}

absl::Status CheckShardsAgree(absl::Span<const GgufFile> shards) {
  LC_RETURN_IF_ERROR(CheckCounts(shards));
  LC_RETURN_IF_ERROR(CheckNames(shards));
  LC_RETURN_IF_ERROR(CheckMetadata(shards));
  return CheckTypes(shards);
}

}  // namespace layercake::model
