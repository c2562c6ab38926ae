#include "model/gguf/testing/gguf_builder.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace layercake::model::testing {
namespace {

template <typename T>
void Append(std::vector<std::byte>& out, T value) {
  const auto* from = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), from, from + sizeof(T));
}

void AppendString(std::vector<std::byte>& out, absl::string_view text) {
  Append<uint64_t>(out, text.size());
  const auto* from = reinterpret_cast<const std::byte*>(text.data());
  out.insert(out.end(), from, from + text.size());
}

template <typename T>
std::vector<std::byte> Encode(T value) {
  std::vector<std::byte> bytes;
  Append(bytes, value);
  return bytes;
}

template <typename T>
std::vector<std::byte> EncodeArray(MetadataType type, absl::Span<const T> values) {
  std::vector<std::byte> bytes;
  Append(bytes, static_cast<uint32_t>(type));
  Append<uint64_t>(bytes, values.size());
  for (const T value : values) Append(bytes, value);
  return bytes;
}

void PadTo(std::vector<std::byte>& out, uint64_t alignment) {
  while (out.size() % alignment != 0) out.push_back(std::byte{0});
}

}  // namespace

GgufBuilder& GgufBuilder::SetRaw(absl::string_view key, uint32_t type_id,
                                 absl::Span<const std::byte> value) {
  entries_.push_back(
      {std::string(key), type_id, std::vector<std::byte>(value.begin(), value.end())});
  return *this;
}

GgufBuilder& GgufBuilder::SetU8(absl::string_view key, uint8_t value) {
  return SetRaw(key, static_cast<uint32_t>(MetadataType::kU8), Encode(value));
}
GgufBuilder& GgufBuilder::SetU16(absl::string_view key, uint16_t value) {
  return SetRaw(key, static_cast<uint32_t>(MetadataType::kU16), Encode(value));
}
GgufBuilder& GgufBuilder::SetU32(absl::string_view key, uint32_t value) {
  return SetRaw(key, static_cast<uint32_t>(MetadataType::kU32), Encode(value));
}
GgufBuilder& GgufBuilder::SetI32(absl::string_view key, int32_t value) {
  return SetRaw(key, static_cast<uint32_t>(MetadataType::kI32), Encode(value));
}
GgufBuilder& GgufBuilder::SetU64(absl::string_view key, uint64_t value) {
  return SetRaw(key, static_cast<uint32_t>(MetadataType::kU64), Encode(value));
}
GgufBuilder& GgufBuilder::SetF32(absl::string_view key, float value) {
  return SetRaw(key, static_cast<uint32_t>(MetadataType::kF32), Encode(value));
}
GgufBuilder& GgufBuilder::SetBool(absl::string_view key, bool value) {
  return SetRaw(key, static_cast<uint32_t>(MetadataType::kBool), Encode<uint8_t>(value ? 1 : 0));
}
GgufBuilder& GgufBuilder::SetString(absl::string_view key, absl::string_view value) {
  std::vector<std::byte> bytes;
  AppendString(bytes, value);
  return SetRaw(key, static_cast<uint32_t>(MetadataType::kString), bytes);
}
GgufBuilder& GgufBuilder::SetStringArray(absl::string_view key,
                                         absl::Span<const std::string> values) {
  std::vector<std::byte> bytes;
  Append(bytes, static_cast<uint32_t>(MetadataType::kString));
  Append<uint64_t>(bytes, values.size());
  for (const std::string& value : values) AppendString(bytes, value);
  return SetRaw(key, static_cast<uint32_t>(MetadataType::kArray), bytes);
}
GgufBuilder& GgufBuilder::SetI32Array(absl::string_view key, absl::Span<const int32_t> values) {
  return SetRaw(key, static_cast<uint32_t>(MetadataType::kArray),
                EncodeArray(MetadataType::kI32, values));
}
GgufBuilder& GgufBuilder::SetF32Array(absl::string_view key, absl::Span<const float> values) {
  return SetRaw(key, static_cast<uint32_t>(MetadataType::kArray),
                EncodeArray(MetadataType::kF32, values));
}

GgufBuilder& GgufBuilder::Remove(absl::string_view key) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.key == key; });
  return *this;
}

GgufBuilder& GgufBuilder::AddTensor(absl::string_view name, TensorType type,
                                    std::vector<uint64_t> ne, std::vector<std::byte> bytes) {
  tensors_.push_back(
      {std::string(name), static_cast<uint32_t>(type), std::move(ne), std::move(bytes), false, 0});
  return *this;
}

GgufBuilder& GgufBuilder::AddF32Tensor(absl::string_view name, std::vector<uint64_t> ne,
                                       absl::Span<const float> values) {
  std::vector<std::byte> bytes;
  for (const float value : values) Append(bytes, value);
  return AddTensor(name, TensorType::kF32, std::move(ne), std::move(bytes));
}

GgufBuilder& GgufBuilder::AddRandomTensor(absl::string_view name, TensorType type,
                                          std::vector<uint64_t> ne, double deviation,
                                          base::Random& random) {
  uint64_t elements = 1;
  for (const uint64_t dimension : ne) elements *= dimension;
  return AddTensor(name, type, std::move(ne), RandomTensorBytes(type, elements, deviation, random));
}

GgufBuilder& GgufBuilder::AddRawTensorInfo(absl::string_view name, uint32_t type_id,
                                           std::vector<uint64_t> ne, uint64_t offset) {
  tensors_.push_back({std::string(name), type_id, std::move(ne), {}, true, offset});
  return *this;
}

GgufBuilder& GgufBuilder::RemoveTensor(absl::string_view name) {
  std::erase_if(tensors_, [&](const Tensor& tensor) { return tensor.name == name; });
  return *this;
}

GgufBuilder& GgufBuilder::set_version(uint32_t version) {
  version_ = version;
  return *this;
}
GgufBuilder& GgufBuilder::set_tensor_count(uint64_t count) {
  has_tensor_count_ = true;
  tensor_count_ = count;
  return *this;
}
GgufBuilder& GgufBuilder::set_key_count(uint64_t count) {
  has_key_count_ = true;
  key_count_ = count;
  return *this;
}
GgufBuilder& GgufBuilder::set_alignment(uint32_t alignment) {
  alignment_ = alignment;
  return SetU32("general.alignment", alignment);
}

std::vector<std::byte> GgufBuilder::Build() const {
  std::vector<std::byte> out;
  for (const char letter : absl::string_view("GGUF")) out.push_back(static_cast<std::byte>(letter));
  Append(out, version_);
  Append<uint64_t>(out, has_tensor_count_ ? tensor_count_ : tensors_.size());
  Append<uint64_t>(out, has_key_count_ ? key_count_ : entries_.size());
  for (const Entry& entry : entries_) {
    AppendString(out, entry.key);
    Append(out, entry.type_id);
    out.insert(out.end(), entry.value.begin(), entry.value.end());
  }
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    AppendString(out, tensor.name);
    Append(out, static_cast<uint32_t>(tensor.ne.size()));
    for (const uint64_t dimension : tensor.ne) Append(out, dimension);
    Append(out, tensor.type_id);
    Append<uint64_t>(out, tensor.raw ? tensor.raw_offset : offset);
    offset += (tensor.bytes.size() + alignment_ - 1) / alignment_ * alignment_;
  }
  if (tensors_.empty()) return out;
  PadTo(out, alignment_);
  for (const Tensor& tensor : tensors_) {
    out.insert(out.end(), tensor.bytes.begin(), tensor.bytes.end());
    PadTo(out, alignment_);
  }
  return out;
}

absl::Status GgufBuilder::WriteFile(const std::string& path) const {
  return WriteBytes(path, Build());
}

std::vector<GgufBuilder> GgufBuilder::Split(uint32_t shards) const {
  std::vector<GgufBuilder> parts;
  for (uint32_t i = 0; i < shards; ++i) {
    GgufBuilder part = *this;
    if (i > 0) part.entries_.clear();
    const size_t first = tensors_.size() * i / shards;
    const size_t end = tensors_.size() * (i + 1) / shards;
    part.tensors_.assign(tensors_.begin() + static_cast<std::ptrdiff_t>(first),
                         tensors_.begin() + static_cast<std::ptrdiff_t>(end));
    part.SetU16("split.no", static_cast<uint16_t>(i));
    part.SetU16("split.count", static_cast<uint16_t>(shards));
    part.SetI32("split.tensors.count", static_cast<int32_t>(tensors_.size()));
    parts.push_back(std::move(part));
  }
  return parts;
}

absl::Status WriteBytes(const std::string& path, absl::Span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) return absl::InternalError(absl::StrCat("could not write ", path));
  return absl::OkStatus();
}

}  // namespace layercake::model::testing
