// Writes GGUF files in memory, for tests: well-formed ones, and ones that lie (set any field).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/random.h"
#include "model/gguf/metadata.h"
#include "model/gguf/tensor_type.h"

namespace layercake::model::testing {

class GgufBuilder {
 public:
  // Metadata, in the order of the calls. Duplicates are written as asked.
  GgufBuilder& SetU8(absl::string_view key, uint8_t value);
  GgufBuilder& SetU16(absl::string_view key, uint16_t value);
  GgufBuilder& SetU32(absl::string_view key, uint32_t value);
  GgufBuilder& SetI32(absl::string_view key, int32_t value);
  GgufBuilder& SetU64(absl::string_view key, uint64_t value);
  GgufBuilder& SetF32(absl::string_view key, float value);
  GgufBuilder& SetBool(absl::string_view key, bool value);
  GgufBuilder& SetString(absl::string_view key, absl::string_view value);
  GgufBuilder& SetStringArray(absl::string_view key, absl::Span<const std::string> values);
  GgufBuilder& SetI32Array(absl::string_view key, absl::Span<const int32_t> values);
  GgufBuilder& SetF32Array(absl::string_view key, absl::Span<const float> values);
  // Any type id with any bytes.
  GgufBuilder& SetRaw(absl::string_view key, uint32_t type_id, absl::Span<const std::byte> value);
  // Drops every entry of that key (to replace or remove what BuildTinyModel wrote).
  GgufBuilder& Remove(absl::string_view key);

  // `bytes` is the tensor's data as the file holds it.
  GgufBuilder& AddTensor(absl::string_view name, TensorType type, std::vector<uint64_t> ne,
                         std::vector<std::byte> bytes);
  GgufBuilder& AddF32Tensor(absl::string_view name, std::vector<uint64_t> ne,
                            absl::Span<const float> values);
  // Random numbers of about the given standard deviation, valid in every block type.
  GgufBuilder& AddRandomTensor(absl::string_view name, TensorType type, std::vector<uint64_t> ne,
                               double deviation, base::Random& random);
  // A tensor info of any type id, dimensions and offset, with no data of its own.
  GgufBuilder& AddRawTensorInfo(absl::string_view name, uint32_t type_id, std::vector<uint64_t> ne,
                                uint64_t offset);
  GgufBuilder& RemoveTensor(absl::string_view name);

  // Header fields that Build() would otherwise get right.
  GgufBuilder& set_version(uint32_t version);
  GgufBuilder& set_tensor_count(uint64_t count);
  GgufBuilder& set_key_count(uint64_t count);
  // Also writes general.alignment (power of two).
  GgufBuilder& set_alignment(uint32_t alignment);

  std::vector<std::byte> Build() const;
  absl::Status WriteFile(const std::string& path) const;
  // `shards` builders that hold this one's tensors in order, cut as evenly as can be, with split.*
  // keys; the first has all the metadata.
  std::vector<GgufBuilder> Split(uint32_t shards) const;

 private:
  struct Entry {
    std::string key;
    uint32_t type_id = 0;
    std::vector<std::byte> value;
  };
  struct Tensor {
    std::string name;
    uint32_t type_id = 0;
    std::vector<uint64_t> ne;
    std::vector<std::byte> bytes;
    bool raw = false;
    uint64_t raw_offset = 0;
  };

  uint32_t version_ = 3;
  uint32_t alignment_ = 32;
  bool has_tensor_count_ = false;
  bool has_key_count_ = false;
  uint64_t tensor_count_ = 0;
  uint64_t key_count_ = 0;
  std::vector<Entry> entries_;
  std::vector<Tensor> tensors_;
};

// Random bytes of one tensor of `elements` values whose rows are whole blocks.
std::vector<std::byte> RandomTensorBytes(TensorType type, uint64_t elements, double deviation,
                                         base::Random& random);

// Writes bytes to a file, for tests that need a path.
absl::Status WriteBytes(const std::string& path, absl::Span<const std::byte> bytes);

}  // namespace layercake::model::testing
