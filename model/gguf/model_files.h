// The file or files of one model: a single GGUF, or a split set whose shards agree with each other.
// Any shard of a good set opens the whole set. Data stays in the mapped files.
// Errors name the file and the two values that disagree: NotFound for a missing shard, DataLoss for
// a damaged set, InvalidArgument for files that do not belong together.
// Thread rule: const after construction; any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/gguf/gguf_file.h"
#include "model/gguf/metadata.h"

namespace layercake::model {

class ModelFiles {
 public:
  // `path` is a single file or any shard of a set ("name-00002-of-00003.gguf").
  static absl::StatusOr<ModelFiles> Open(const std::string& path);

  // Shards that are already parsed, in the order of split.no (one file: a set of one).
  static absl::StatusOr<ModelFiles> FromShards(std::vector<GgufFile> shards);

  // The other end of SerializeHeader(): all of the model's headers, none of its data.
  // `bytes` came over a wire: everything in it is checked again.
  static absl::StatusOr<ModelFiles> FromHeader(absl::Span<const std::byte> bytes);

  // The headers of all shards (everything before their data sections) with file sizes, names
  // without folders, and the fingerprint; what a host without the file needs to plan its part.
  std::vector<std::byte> SerializeHeader() const;

  // Of shard 1, which carries architecture and tokenizer.
  const Metadata& metadata() const { return shards_.front().metadata(); }
  absl::Span<const GgufFile> shards() const { return shards_; }
  // All tensors of all shards, in file order; TensorInfo::shard says which file.
  absl::Span<const TensorInfo> tensors() const { return tensors_; }
  // nullptr when there is none of that name.
  const TensorInfo* FindTensor(absl::string_view name) const;

  // The tensor's bytes in place. NotFound, or FailedPrecondition when has_data() is false.
  absl::StatusOr<absl::Span<const std::byte>> TensorBytes(absl::string_view name) const;
  bool has_data() const;

  uint64_t total_file_bytes() const { return total_file_bytes_; }
  uint64_t total_tensor_bytes() const { return total_tensor_bytes_; }
  // The path (or name) of shard 1.
  const std::string& name() const { return shards_.front().name(); }

  // Tells copies of a model apart without reading them: a 64-bit hash over every header, the file
  // sizes, and a few bytes from the middle of up to 32 tensors. Equal for equal files wherever they
  // lie; not a defence against somebody who makes files collide.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  ModelFiles() = default;

  std::vector<GgufFile> shards_;
  std::vector<TensorInfo> tensors_;
  absl::flat_hash_map<absl::string_view, size_t> tensor_index_;
  uint64_t total_file_bytes_ = 0;
  uint64_t total_tensor_bytes_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace layercake::model
