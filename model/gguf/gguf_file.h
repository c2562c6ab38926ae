// One GGUF file (version 2 or 3, little-endian), checked completely before anything is done with
// it: every count, length, type, product, offset and range is held against the bytes that exist.
// Metadata and tensor names are views into the mapped bytes, so parsing takes memory in proportion
// to the number of keys and tensors, not to their content.
// Errors name the file, the field, the value and the byte offset: DataLoss for a damaged file,
// Unimplemented for a version, byte order or tensor type that we do not read, NotFound and others
// for what the operating system says.
// Thread rule: const after construction; any thread may read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/gguf/metadata.h"
#include "model/gguf/tensor_type.h"

namespace layercake::model {

// Limits on what a header may claim, far above every real file.
struct GgufLimits {
  static constexpr uint64_t kMaxKeys = 1 << 16;
  static constexpr uint64_t kMaxTensors = 1 << 17;
  static constexpr uint64_t kMaxKeyBytes = 1 << 16;  // the format's own limit: 65,535
  static constexpr uint64_t kMaxTensorNameBytes = 255;
  static constexpr uint64_t kMaxStringBytes = uint64_t{1} << 30;
  static constexpr uint64_t kMaxArrayElements = uint64_t{1} << 30;
  static constexpr uint32_t kMaxDims = 4;
  static constexpr uint64_t kMaxAlignment = uint64_t{1} << 30;
};

struct TensorInfo {
  absl::string_view name;  // a view into the file's bytes
  TensorType type = TensorType::kF32;
  uint32_t n_dims = 0;
  // ne[0] is the contiguous dimension: a weight of shape (N, K) has ne = {K, N, 1, 1}.
  std::array<uint64_t, 4> ne = {1, 1, 1, 1};
  uint64_t file_offset = 0;  // of the first byte, from the start of the file
  uint64_t byte_size = 0;
  uint32_t shard = 0;  // which file of a split set; 0 for a single file

  // "{64, 8}": for messages.
  std::string DescribeShape() const;
};

class GgufFile {
 public:
  // Maps `path` read-only and parses it.
  static absl::StatusOr<GgufFile> Open(const std::string& path);

  // Parses a whole file that is in memory. `bytes` must outlive the result; `name` is for messages.
  static absl::StatusOr<GgufFile> Parse(absl::Span<const std::byte> bytes, std::string name);

  // Parses the part before the data section of a file of `file_size` bytes whose data lies
  // elsewhere (another host). Offsets of tensors are those of the whole file.
  static absl::StatusOr<GgufFile> ParseHeader(std::vector<std::byte> header, uint64_t file_size,
                                              std::string name);

  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;
  ~GgufFile();

  const std::string& name() const { return name_; }  // the path, when opened from one
  uint32_t version() const { return version_; }
  uint64_t file_size() const { return file_size_; }
  uint64_t alignment() const { return alignment_; }
  // Where the data section begins (the end of the tensor infos, rounded up to the alignment; just
  // that end for a file without tensors).
  uint64_t data_offset() const { return data_offset_; }
  // The end of the last tensor's bytes; data_offset() for a file without tensors.
  uint64_t data_end() const { return data_end_; }

  const Metadata& metadata() const { return metadata_; }
  // In file order.
  absl::Span<const TensorInfo> tensors() const { return tensors_; }
  // nullptr when there is none of that name.
  const TensorInfo* FindTensor(absl::string_view tensor_name) const;

  // Everything before the data section: what ParseHeader takes.
  absl::Span<const std::byte> header_bytes() const;
  bool has_data() const { return bytes_.size() == file_size_; }
  // The tensor's bytes in place. FailedPrecondition when only the header is here.
  absl::StatusOr<absl::Span<const std::byte>> TensorBytes(const TensorInfo& tensor) const;
  // All bytes that are here: the whole file, or its header.
  absl::Span<const std::byte> bytes() const { return bytes_; }

 private:
  friend class GgufParser;
  class Mapping;

  GgufFile();

  std::string name_;
  // At most one of the two owns bytes_; neither does after Parse().
  std::unique_ptr<Mapping> mapping_;
  std::vector<std::byte> owned_;
  absl::Span<const std::byte> bytes_;

  uint32_t version_ = 0;
  uint64_t file_size_ = 0;
  uint64_t alignment_ = 0;
  uint64_t data_offset_ = 0;
  uint64_t data_end_ = 0;
  Metadata metadata_;
  std::vector<TensorInfo> tensors_;
  absl::flat_hash_map<absl::string_view, size_t> tensor_index_;
};

}  // namespace layercake::model
