#include "model/gguf/metadata.h"

#include <cstring>
#include <limits>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace layercake::model {
namespace {

// GGUF is little-endian and so is every machine that we build for (CUDA hosts: x86-64, aarch64).
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

template <typename T>
T LoadAt(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// An integer of any width and sign.
struct WideInt {
  bool negative = false;
  uint64_t magnitude = 0;
};

template <typename T>
WideInt Widen(T value) {
  if (value < 0) return {true, ~static_cast<uint64_t>(static_cast<int64_t>(value)) + 1};
  return {false, static_cast<uint64_t>(value)};
}

std::optional<WideInt> LoadInt(MetadataType type, const std::byte* from) {
  switch (type) {
    case MetadataType::kU8:
      return WideInt{false, LoadAt<uint8_t>(from)};
    case MetadataType::kU16:
      return WideInt{false, LoadAt<uint16_t>(from)};
    case MetadataType::kU32:
      return WideInt{false, LoadAt<uint32_t>(from)};
    case MetadataType::kU64:
      return WideInt{false, LoadAt<uint64_t>(from)};
    case MetadataType::kI8:
      return Widen(LoadAt<int8_t>(from));
    case MetadataType::kI16:
      return Widen(LoadAt<int16_t>(from));
    case MetadataType::kI32:
      return Widen(LoadAt<int32_t>(from));
    case MetadataType::kI64:
      return Widen(LoadAt<int64_t>(from));
    default:
      return std::nullopt;
  }
}

size_t ScalarBytes(MetadataType type) {
  switch (type) {
    case MetadataType::kU8:
    case MetadataType::kI8:
    case MetadataType::kBool:
      return 1;
    case MetadataType::kU16:
    case MetadataType::kI16:
      return 2;
    case MetadataType::kU32:
    case MetadataType::kI32:
    case MetadataType::kF32:
      return 4;
    default:
      return 8;
  }
}

absl::Status WrongType(const MetadataEntry& entry, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat("metadata key ", entry.key, " is ",
                                                 entry.DescribeType(), " (byte ", entry.offset,
                                                 "), expected ", wanted));
}

absl::Status OutOfRange(const MetadataEntry& entry, const WideInt& value,
                        absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("metadata key ", entry.key, " = ", value.negative ? "-" : "", value.magnitude,
                   " (byte ", entry.offset, ") does not fit ", wanted));
}

std::optional<int64_t> ToI64(const WideInt& value) {
  constexpr uint64_t kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (!value.negative && value.magnitude <= kMax) return static_cast<int64_t>(value.magnitude);
  if (value.negative && value.magnitude <= kMax + 1) {
    return static_cast<int64_t>(~value.magnitude + 1);
  }
  return std::nullopt;
}

template <typename T>
absl::StatusOr<T> OrElse(absl::StatusOr<T> value, T fallback) {
  if (absl::IsNotFound(value.status())) return fallback;
  return value;
}

}  // namespace

absl::string_view MetadataTypeName(MetadataType type) {
  static constexpr absl::string_view kNames[] = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                 "i32", "f32", "bool", "string", "array",
                                                 "u64", "i64", "f64"};
  const auto id = static_cast<size_t>(type);
  return id < std::size(kNames) ? kNames[id] : "unknown";
}

std::string MetadataEntry::DescribeType() const {
  if (type != MetadataType::kArray) return std::string(MetadataTypeName(type));
  return absl::StrCat("an array of ", count, " ", MetadataTypeName(element_type));
}

const MetadataEntry* Metadata::Find(absl::string_view key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

absl::StatusOr<const MetadataEntry*> Metadata::FindScalar(absl::string_view key) const {
  const MetadataEntry* entry = Find(key);
  if (entry == nullptr) return absl::NotFoundError(absl::StrCat("no metadata key ", key));
  if (entry->type == MetadataType::kArray) return WrongType(*entry, "one value");
  return entry;
}

absl::StatusOr<const MetadataEntry*> Metadata::FindArray(absl::string_view key) const {
  const MetadataEntry* entry = Find(key);
  if (entry == nullptr) return absl::NotFoundError(absl::StrCat("no metadata key ", key));
  if (entry->type != MetadataType::kArray) return WrongType(*entry, "an array");
  return entry;
}

absl::StatusOr<uint64_t> Metadata::GetU64(absl::string_view key) const {
  LC_ASSIGN_OR_RETURN(const MetadataEntry* entry, FindScalar(key));
  const std::optional<WideInt> value = LoadInt(entry->type, entry->value.data());
  if (!value) return WrongType(*entry, "an integer");
  if (value->negative) return OutOfRange(*entry, *value, "an unsigned number");
  return value->magnitude;
}

absl::StatusOr<uint32_t> Metadata::GetU32(absl::string_view key) const {
  LC_ASSIGN_OR_RETURN(const uint64_t value, GetU64(key));
  if (value > std::numeric_limits<uint32_t>::max()) {
    return OutOfRange(*Find(key), {false, value}, "32 bits");
  }
  return static_cast<uint32_t>(value);
}

absl::StatusOr<int64_t> Metadata::GetI64(absl::string_view key) const {
  LC_ASSIGN_OR_RETURN(const MetadataEntry* entry, FindScalar(key));
  const std::optional<WideInt> value = LoadInt(entry->type, entry->value.data());
  if (!value) return WrongType(*entry, "an integer");
  const std::optional<int64_t> narrowed = ToI64(*value);
  if (!narrowed) return OutOfRange(*entry, *value, "a signed 64-bit number");
  return *narrowed;
}

absl::StatusOr<double> Metadata::GetFloat(absl::string_view key) const {
  LC_ASSIGN_OR_RETURN(const MetadataEntry* entry, FindScalar(key));
  if (entry->type == MetadataType::kF32) {
    return static_cast<double>(LoadAt<float>(entry->value.data()));
  }
  if (entry->type == MetadataType::kF64) return LoadAt<double>(entry->value.data());
  const std::optional<WideInt> value = LoadInt(entry->type, entry->value.data());
  if (!value) return WrongType(*entry, "a number");
  const auto magnitude = static_cast<double>(value->magnitude);
  return value->negative ? -magnitude : magnitude;
}

absl::StatusOr<bool> Metadata::GetBool(absl::string_view key) const {
  LC_ASSIGN_OR_RETURN(const MetadataEntry* entry, FindScalar(key));
  if (entry->type != MetadataType::kBool) return WrongType(*entry, "a bool");
  return entry->value[0] != std::byte{0};
}

absl::StatusOr<absl::string_view> Metadata::GetString(absl::string_view key) const {
  LC_ASSIGN_OR_RETURN(const MetadataEntry* entry, FindScalar(key));
  if (entry->type != MetadataType::kString) return WrongType(*entry, "a string");
  // The value is the length (8 bytes) and the text; the parser has matched the two.
  return absl::string_view(reinterpret_cast<const char*>(entry->value.data()) + 8,
                           entry->value.size() - 8);
}

absl::StatusOr<uint32_t> Metadata::GetU32Or(absl::string_view key, uint32_t fallback) const {
  return OrElse(GetU32(key), fallback);
}

absl::StatusOr<double> Metadata::GetFloatOr(absl::string_view key, double fallback) const {
  return OrElse(GetFloat(key), fallback);
}

absl::StatusOr<bool> Metadata::GetBoolOr(absl::string_view key, bool fallback) const {
  return OrElse(GetBool(key), fallback);
}

absl::StatusOr<absl::string_view> Metadata::GetStringOr(absl::string_view key,
                                                        absl::string_view fallback) const {
  return OrElse(GetString(key), fallback);
}

absl::StatusOr<std::vector<absl::string_view>> Metadata::GetStringArray(
    absl::string_view key) const {
  LC_ASSIGN_OR_RETURN(const MetadataEntry* entry, FindArray(key));
  if (entry->element_type != MetadataType::kString) {
    return WrongType(*entry, "an array of strings");
  }
  std::vector<absl::string_view> strings;
  strings.reserve(entry->count);
  const std::byte* at = entry->value.data();
  for (uint64_t i = 0; i < entry->count; ++i) {
    const auto length = LoadAt<uint64_t>(at);
    strings.emplace_back(reinterpret_cast<const char*>(at) + 8, length);
    at += 8 + length;
  }
  return strings;
}

absl::StatusOr<std::vector<int64_t>> Metadata::GetIntArray(absl::string_view key) const {
  LC_ASSIGN_OR_RETURN(const MetadataEntry* entry, FindArray(key));
  std::vector<int64_t> values;
  values.reserve(entry->count);
  const size_t width = ScalarBytes(entry->element_type);
  for (uint64_t i = 0; i < entry->count; ++i) {
    const std::optional<WideInt> value =
        LoadInt(entry->element_type, entry->value.data() + i * width);
    if (!value) return WrongType(*entry, "an array of integers");
    const std::optional<int64_t> narrowed = ToI64(*value);
    if (!narrowed) return OutOfRange(*entry, *value, "a signed 64-bit number");
    values.push_back(*narrowed);
  }
  return values;
}

absl::StatusOr<std::vector<float>> Metadata::GetFloatArray(absl::string_view key) const {
  LC_ASSIGN_OR_RETURN(const MetadataEntry* entry, FindArray(key));
  std::vector<float> values;
  if (entry->element_type == MetadataType::kF32) {
    values.resize(entry->count);
    if (entry->count > 0) std::memcpy(values.data(), entry->value.data(), entry->value.size());
    return values;
  }
  if (entry->element_type != MetadataType::kF64) return WrongType(*entry, "an array of floats");
  values.reserve(entry->count);
  for (uint64_t i = 0; i < entry->count; ++i) {
    values.push_back(static_cast<float>(LoadAt<double>(entry->value.data() + i * 8)));
  }
  return values;
}

absl::StatusOr<std::vector<uint32_t>> Metadata::GetU32PerLayer(absl::string_view key,
                                                               uint32_t n) const {
  const MetadataEntry* entry = Find(key);
  if (entry == nullptr || entry->type != MetadataType::kArray) {
    LC_ASSIGN_OR_RETURN(const uint32_t value, GetU32(key));
    return std::vector<uint32_t>(n, value);
  }
  if (entry->count != n) {
    return absl::InvalidArgumentError(absl::StrCat("metadata key ", key, " is ",
                                                   entry->DescribeType(), " (byte ", entry->offset,
                                                   "), expected ", n, ", one per layer"));
  }
  LC_ASSIGN_OR_RETURN(const std::vector<int64_t> wide, GetIntArray(key));
  std::vector<uint32_t> values;
  values.reserve(n);
  for (const int64_t value : wide) {
    if (value < 0 || value > std::numeric_limits<uint32_t>::max()) {
      return OutOfRange(*entry, Widen(value), "32 unsigned bits");
    }
    values.push_back(static_cast<uint32_t>(value));
  }
  return values;
}

}  // namespace layercake::model
