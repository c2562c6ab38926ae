// The checking reader behind GgufFile. One use per object, one thread.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/gguf/gguf_file.h"

namespace layercake::model {

class GgufParser {
 public:
  // Fills `file`, whose bytes_, file_size_ and name_ are set.
  explicit GgufParser(GgufFile& file) : file_(file) {}
  absl::Status Parse();

 private:
  absl::Status ParseFixedHeader();
  absl::Status ParseEntry(uint64_t number);
  absl::Status ParseArray(MetadataEntry& entry);
  absl::Status ReadAlignment();
  absl::Status ParseTensorInfo(uint64_t number);
  absl::Status ParseShape(TensorInfo& tensor);
  absl::Status ParseType(TensorInfo& tensor);
  absl::Status PlaceTensors();

  // All reads name the field, so that a short file says what was cut.
  template <typename T>
  absl::StatusOr<T> Read(absl::string_view field);
  absl::StatusOr<absl::string_view> ReadString(absl::string_view field, uint64_t max_bytes);
  absl::Status Skip(absl::string_view field, uint64_t bytes);
  absl::Status SkipStrings(absl::string_view field, uint64_t count);

  uint64_t remaining() const { return file_.bytes_.size() - position_; }
  // "FILE: FIELD = VALUE at byte N: WHY".
  absl::Status Damaged(absl::string_view field, uint64_t value, uint64_t offset,
                       absl::string_view why) const;

  GgufFile& file_;
  uint64_t position_ = 0;
  uint64_t tensor_count_ = 0;
  uint64_t key_count_ = 0;
};

}  // namespace layercake::model
