// The key/value part of a GGUF file, as views into its bytes: nothing is copied until it is asked
// for. The bytes were checked when the file was parsed, so a getter fails only because a key is
// missing (NotFound) or holds another type (InvalidArgument); the message names key and type.
// Thread rule: const after parsing; any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace layercake::model {

// GGUF's own value type ids.
enum class MetadataType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
absl::string_view MetadataTypeName(MetadataType type);

struct MetadataEntry {
  absl::string_view key;
  MetadataType type = MetadataType::kU8;          // kArray for an array
  MetadataType element_type = MetadataType::kU8;  // of an array; same as `type` for a scalar
  uint64_t count = 1;                             // elements of an array; 1 for a scalar
  // The encoded value (the elements of an array without their type and count). Not aligned.
  absl::Span<const std::byte> value;
  uint64_t offset = 0;  // of `value`, from the start of the file

  // "u32", "array of 151936 strings": for messages.
  std::string DescribeType() const;
};

class Metadata {
 public:
  // nullptr when the file has no such key.
  const MetadataEntry* Find(absl::string_view key) const;
  bool Has(absl::string_view key) const { return Find(key) != nullptr; }
  // In file order.
  absl::Span<const MetadataEntry> entries() const { return entries_; }

  // Integers: every integer width and sign is accepted as long as the value fits the result.
  absl::StatusOr<uint64_t> GetU64(absl::string_view key) const;
  absl::StatusOr<uint32_t> GetU32(absl::string_view key) const;
  absl::StatusOr<int64_t> GetI64(absl::string_view key) const;
  // f32, f64 or any integer.
  absl::StatusOr<double> GetFloat(absl::string_view key) const;
  absl::StatusOr<bool> GetBool(absl::string_view key) const;
  absl::StatusOr<absl::string_view> GetString(absl::string_view key) const;

  // `fallback` when the key is missing; still an error when it holds another type.
  absl::StatusOr<uint32_t> GetU32Or(absl::string_view key, uint32_t fallback) const;
  absl::StatusOr<double> GetFloatOr(absl::string_view key, double fallback) const;
  absl::StatusOr<bool> GetBoolOr(absl::string_view key, bool fallback) const;
  absl::StatusOr<absl::string_view> GetStringOr(absl::string_view key,
                                                absl::string_view fallback) const;

  // Arrays. Views stay valid as long as the bytes of the file.
  absl::StatusOr<std::vector<absl::string_view>> GetStringArray(absl::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> GetIntArray(absl::string_view key) const;
  absl::StatusOr<std::vector<float>> GetFloatArray(absl::string_view key) const;
  // A scalar repeated `n` times, or an array of exactly `n` (per-layer numbers such as head_count).
  absl::StatusOr<std::vector<uint32_t>> GetU32PerLayer(absl::string_view key, uint32_t n) const;

 private:
  friend class GgufParser;

  // The entry, when it is an array (or not) as asked; else the error that names key and type.
  absl::StatusOr<const MetadataEntry*> FindScalar(absl::string_view key) const;
  absl::StatusOr<const MetadataEntry*> FindArray(absl::string_view key) const;

  std::vector<MetadataEntry> entries_;
  absl::flat_hash_map<absl::string_view, size_t> index_;
};

}  // namespace layercake::model
