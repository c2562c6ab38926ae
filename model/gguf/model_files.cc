#include "model/gguf/model_files.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "model/gguf/metadata_text.h"
#include "model/gguf/split.h"

namespace layercake::model {
namespace {

// A multiply-and-fold hash, the same on every machine and in every release (hosts compare it).
class Fingerprint {
 public:
  void Add(uint64_t word) {
    state_ = (state_ ^ word) * 0x9E3779B97F4A7C15u;
    state_ ^= state_ >> 29;
  }
  void Add(absl::Span<const std::byte> bytes) {
    Add(bytes.size());
    for (; bytes.size() >= 8; bytes.remove_prefix(8)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data(), 8);
      Add(word);
    }
    uint64_t tail = 0;
    if (!bytes.empty()) std::memcpy(&tail, bytes.data(), bytes.size());
    Add(tail);
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0x6C61796572636B65u;
};

// Tensors whose middle goes into the fingerprint: tells fine-tunes of one model apart at the price
// of a few page reads.
constexpr size_t kSampledTensors = 32;
constexpr uint64_t kSampleBytes = 64;

uint64_t ComputeFingerprint(absl::Span<const GgufFile> shards,
                            absl::Span<const TensorInfo> tensors) {
  Fingerprint fingerprint;
  for (const GgufFile& shard : shards) {
    fingerprint.Add(shard.file_size());
    fingerprint.Add(shard.header_bytes());
  }
  const size_t samples = std::min(kSampledTensors, tensors.size());
  for (size_t i = 0; i < samples; ++i) {
    const TensorInfo& tensor = tensors[i * tensors.size() / samples];
    const uint64_t length = std::min(kSampleBytes, tensor.byte_size);
    const uint64_t at = tensor.file_offset + (tensor.byte_size - length) / 2;
    fingerprint.Add(shards[tensor.shard].bytes().subspan(at, length));
  }
  return fingerprint.value();
}

// The blob of SerializeHeader(): magic, version, fingerprint, number of shards; per shard its file
// size, name (length and bytes) and header (length and bytes). Little-endian, no padding.
constexpr absl::string_view kBlobMagic = "LCMH";
constexpr uint32_t kBlobVersion = 1;
constexpr uint64_t kMaxNameBytes = 4096;

class BlobWriter {
 public:
  template <typename T>
  void Put(T value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof(T));
  }
  void PutBytes(absl::Span<const std::byte> bytes) {
    Put<uint64_t>(bytes.size());
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  std::vector<std::byte> Take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class BlobReader {
 public:
  explicit BlobReader(absl::Span<const std::byte> bytes) : bytes_(bytes), size_(bytes.size()) {}

  template <typename T>
  absl::StatusOr<T> Get(absl::string_view field) {
    if (bytes_.size() < sizeof(T)) return Short(field, sizeof(T));
    T value;
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_.remove_prefix(sizeof(T));
    return value;
  }
  absl::StatusOr<absl::Span<const std::byte>> GetBytes(absl::string_view field) {
    LC_ASSIGN_OR_RETURN(const uint64_t length, Get<uint64_t>(field));
    if (length > bytes_.size()) return Short(field, length);
    const absl::Span<const std::byte> taken = bytes_.subspan(0, length);
    bytes_.remove_prefix(length);
    return taken;
  }
  size_t remaining() const { return bytes_.size(); }

 private:
  absl::Status Short(absl::string_view field, uint64_t wanted) const {
    return absl::DataLossError(absl::StrCat("model header: ", field, " at byte ",
                                            size_ - bytes_.size(), " needs ", wanted, " bytes, ",
                                            bytes_.size(), " remain"));
  }

  absl::Span<const std::byte> bytes_;
  const size_t size_;
};

absl::string_view WithoutFolder(absl::string_view path) {
  return path.substr(path.rfind('/') == absl::string_view::npos ? 0 : path.rfind('/') + 1);
}

// The name of a split file has to say what its keys say.
absl::StatusOr<ShardName> CheckShardName(const GgufFile& file, const SplitKeys& keys) {
  const std::optional<ShardName> name = ParseShardName(file.name());
  if (!name) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.name(), ": the file is shard ", keys.no + 1, " of ", keys.count,
        ", but is not named like one (", FormatShardName("NAME", keys.no + 1, keys.count),
        "), so the others cannot be found; give all shards their names back"));
  }
  if (name->count != keys.count) {
    return absl::DataLossError(absl::StrCat(file.name(), ": split.count = ", keys.count,
                                            ", but the name says ", name->count,
                                            "; take all shards from one download"));
  }
  if (name->number != keys.no + 1) {
    return absl::DataLossError(absl::StrCat(file.name(), ": split.no = ", keys.no,
                                            " (counted from 0), but the name says shard ",
                                            name->number,
                                            " (counted from 1); the shards were "
                                            "renamed or mixed up"));
  }
  return *name;
}

}  // namespace

absl::StatusOr<ModelFiles> ModelFiles::Open(const std::string& path) {
  LC_ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open(path));
  LC_RETURN_IF_ERROR(CheckNotJoined(file));
  LC_ASSIGN_OR_RETURN(const SplitKeys keys, ReadSplitKeys(file));
  std::vector<GgufFile> shards;
  if (keys.count == 1) {
    const std::optional<ShardName> name = ParseShardName(path);
    if (name && name->count > 1) {
      return absl::DataLossError(absl::StrCat(path, ": the name says shard ", name->number, " of ",
                                              name->count,
                                              ", but the file has no split.count; if it is a whole "
                                              "model, rename it"));
    }
    shards.push_back(std::move(file));
    return FromShards(std::move(shards));
  }
  LC_ASSIGN_OR_RETURN(const ShardName name, CheckShardName(file, keys));
  for (uint32_t number = 1; number <= name.count; ++number) {
    if (number == name.number) {
      shards.push_back(std::move(file));
      continue;
    }
    const std::string shard_path = FormatShardName(name.prefix, number, name.count);
    absl::StatusOr<GgufFile> shard = GgufFile::Open(shard_path);
    if (absl::IsNotFound(shard.status())) {
      return absl::NotFoundError(absl::StrCat(path, ": the model has ", name.count,
                                              " shards, but number ", number,
                                              " is missing: ", shard_path));
    }
    LC_RETURN_IF_ERROR(shard.status());
    LC_RETURN_IF_ERROR(CheckNotJoined(*shard));
    LC_ASSIGN_OR_RETURN(const SplitKeys shard_keys, ReadSplitKeys(*shard));
    LC_RETURN_IF_ERROR(CheckShardName(*shard, shard_keys).status());
    shards.push_back(*std::move(shard));
  }
  return FromShards(std::move(shards));
}

absl::StatusOr<ModelFiles> ModelFiles::FromShards(std::vector<GgufFile> shards) {
  if (shards.empty()) return absl::InvalidArgumentError("a model needs at least one file");
  LC_RETURN_IF_ERROR(CheckShardsAgree(shards));
  ModelFiles files;
  files.shards_ = std::move(shards);
  // File sizes are only claims when the data lies elsewhere.
  std::optional<uint64_t> file_bytes = 0;
  std::optional<uint64_t> tensor_bytes = 0;
  for (size_t i = 0; i < files.shards_.size(); ++i) {
    if (file_bytes) file_bytes = base::CheckedAdd(*file_bytes, files.shards_[i].file_size());
    for (TensorInfo tensor : files.shards_[i].tensors()) {
      if (tensor_bytes) tensor_bytes = base::CheckedAdd(*tensor_bytes, tensor.byte_size);
      tensor.shard = static_cast<uint32_t>(i);
      files.tensor_index_.emplace(tensor.name, files.tensors_.size());
      files.tensors_.push_back(tensor);
    }
  }
  if (!file_bytes || !tensor_bytes) {
    return absl::DataLossError(
        absl::StrCat(files.name(), ": the bytes of all shards do not fit 64 bits"));
  }
  files.total_file_bytes_ = *file_bytes;
  files.total_tensor_bytes_ = *tensor_bytes;
  if (files.has_data()) files.fingerprint_ = ComputeFingerprint(files.shards_, files.tensors_);
  return files;
}

std::vector<std::byte> ModelFiles::SerializeHeader() const {
  BlobWriter writer;
  for (const char letter : kBlobMagic) writer.Put(letter);
  writer.Put(kBlobVersion);
  writer.Put(fingerprint_);
  writer.Put(static_cast<uint32_t>(shards_.size()));
  for (const GgufFile& shard : shards_) {
    const absl::string_view name = WithoutFolder(shard.name());
    writer.Put(shard.file_size());
    writer.PutBytes(
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(name.data()), name.size()));
    writer.PutBytes(shard.header_bytes());
  }
  return writer.Take();
}

absl::StatusOr<ModelFiles> ModelFiles::FromHeader(absl::Span<const std::byte> bytes) {
  BlobReader reader(bytes);
  LC_ASSIGN_OR_RETURN(const uint32_t magic, reader.Get<uint32_t>("magic"));
  LC_ASSIGN_OR_RETURN(const uint32_t version, reader.Get<uint32_t>("version"));
  if (std::memcmp(&magic, kBlobMagic.data(), 4) != 0 || version != kBlobVersion) {
    return absl::UnimplementedError(absl::StrCat("model header: magic ", magic, ", version ",
                                                 version, "; this build reads version ",
                                                 kBlobVersion));
  }
  LC_ASSIGN_OR_RETURN(const uint64_t fingerprint, reader.Get<uint64_t>("fingerprint"));
  LC_ASSIGN_OR_RETURN(const uint32_t count, reader.Get<uint32_t>("number of shards"));
  if (count == 0 || count > kMaxShards) {
    return absl::DataLossError(
        absl::StrCat("model header: ", count, " shards, expected 1 to ", kMaxShards));
  }
  std::vector<GgufFile> shards;
  for (uint32_t i = 0; i < count; ++i) {
    LC_ASSIGN_OR_RETURN(const uint64_t file_size, reader.Get<uint64_t>("file size"));
    LC_ASSIGN_OR_RETURN(const absl::Span<const std::byte> name, reader.GetBytes("file name"));
    LC_ASSIGN_OR_RETURN(const absl::Span<const std::byte> header, reader.GetBytes("file header"));
    const absl::string_view text(reinterpret_cast<const char*>(name.data()), name.size());
    LC_ASSIGN_OR_RETURN(
        GgufFile shard,
        GgufFile::ParseHeader(std::vector<std::byte>(header.begin(), header.end()), file_size,
                              PrintableText(WithoutFolder(text), kMaxNameBytes)));
    shards.push_back(std::move(shard));
  }
  if (reader.remaining() != 0) {
    return absl::DataLossError(
        absl::StrCat("model header: ", reader.remaining(), " bytes beyond its end"));
  }
  LC_ASSIGN_OR_RETURN(ModelFiles files, FromShards(std::move(shards)));
  files.fingerprint_ = fingerprint;
  return files;
}

const TensorInfo* ModelFiles::FindTensor(absl::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

absl::StatusOr<absl::Span<const std::byte>> ModelFiles::TensorBytes(absl::string_view name) const {
  const TensorInfo* tensor = FindTensor(name);
  if (tensor == nullptr) {
    return absl::NotFoundError(absl::StrCat(this->name(), ": no tensor ", PrintableText(name, 80)));
  }
  return shards_[tensor->shard].TensorBytes(*tensor);
}

bool ModelFiles::has_data() const {
  return std::all_of(shards_.begin(), shards_.end(),
                     [](const GgufFile& shard) { return shard.has_data(); });
}

}  // namespace layercake::model
