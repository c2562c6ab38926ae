#include "model/gguf/gguf_parser.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status_macros.h"

namespace layercake::model {
namespace {

constexpr uint64_t kFixedHeaderBytes = 4 + 4 + 8 + 8;
// The shortest metadata entry (one-letter key, one-byte value) and tensor info (one-letter name, no
// dimension): what a count claims at least.
constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorInfoBytes = 8 + 1 + 4 + 4 + 8;
constexpr uint64_t kDefaultAlignment = 32;
// The format asks for a multiple of 8; less would leave f32 and f64 unaligned in the map.
constexpr uint64_t kMinAlignment = 8;
constexpr absl::string_view kAlignmentKey = "general.alignment";

// Names come from the file: printable, and short enough for a log line.
std::string Printable(absl::string_view name) { return absl::CHexEscape(name.substr(0, 80)); }

// 0 when the type has no fixed size.
uint64_t FixedBytes(MetadataType type) {
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
    case MetadataType::kU64:
    case MetadataType::kI64:
    case MetadataType::kF64:
      return 8;
    case MetadataType::kString:
    case MetadataType::kArray:
      return 0;
  }
  return 0;
}

}  // namespace

absl::Status GgufParser::Damaged(absl::string_view field, uint64_t value, uint64_t offset,
                                 absl::string_view why) const {
  return absl::DataLossError(
      absl::StrCat(file_.name_, ": ", field, " = ", value, " at byte ", offset, ": ", why));
}

template <typename T>
absl::StatusOr<T> GgufParser::Read(absl::string_view field) {
  if (remaining() < sizeof(T)) {
    return absl::DataLossError(absl::StrCat(file_.name_, ": ends at byte ", file_.bytes_.size(),
                                            " inside ", field, " (", sizeof(T), " bytes at byte ",
                                            position_, "); the file is cut short"));
  }
  T value;
  std::memcpy(&value, file_.bytes_.data() + position_, sizeof(T));
  position_ += sizeof(T);
  return value;
}

absl::Status GgufParser::Skip(absl::string_view field, uint64_t bytes) {
  if (bytes > remaining()) {
    return Damaged(absl::StrCat("size of ", field), bytes, position_,
                   absl::StrCat("only ", remaining(), " bytes remain"));
  }
  position_ += bytes;
  return absl::OkStatus();
}

absl::StatusOr<absl::string_view> GgufParser::ReadString(absl::string_view field,
                                                         uint64_t max_bytes) {
  const uint64_t at = position_;
  LC_ASSIGN_OR_RETURN(const uint64_t length, Read<uint64_t>(absl::StrCat("length of ", field)));
  if (length > max_bytes || length > remaining()) {
    return Damaged(absl::StrCat("length of ", field), length, at,
                   absl::StrCat("the limit is ", max_bytes, " and ", remaining(), " bytes remain"));
  }
  const absl::string_view text(reinterpret_cast<const char*>(file_.bytes_.data()) + position_,
                               length);
  position_ += length;
  return text;
}

// As ReadString in a loop, without building a field name per string.
absl::Status GgufParser::SkipStrings(absl::string_view field, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t length = 0;
    if (remaining() >= 8) {
      std::memcpy(&length, file_.bytes_.data() + position_, 8);
      if (length <= remaining() - 8 && length <= GgufLimits::kMaxStringBytes) {
        position_ += 8 + length;
        continue;
      }
    }
    return ReadString(absl::StrCat("string ", i, " of ", field), GgufLimits::kMaxStringBytes)
        .status();
  }
  return absl::OkStatus();
}

absl::Status GgufParser::Parse() {
  LC_RETURN_IF_ERROR(ParseFixedHeader());
  file_.metadata_.entries_.reserve(key_count_);
  for (uint64_t i = 0; i < key_count_; ++i) LC_RETURN_IF_ERROR(ParseEntry(i));
  LC_RETURN_IF_ERROR(ReadAlignment());
  file_.tensors_.reserve(tensor_count_);
  for (uint64_t i = 0; i < tensor_count_; ++i) LC_RETURN_IF_ERROR(ParseTensorInfo(i));
  return PlaceTensors();
}

absl::Status GgufParser::ParseFixedHeader() {
  const absl::Span<const std::byte> bytes = file_.bytes_;
  if (bytes.size() < kFixedHeaderBytes) {
    return absl::DataLossError(absl::StrCat(file_.name_, ": ", bytes.size(),
                                            " bytes long, a GGUF header needs ", kFixedHeaderBytes,
                                            "; the file is cut short or not a GGUF file"));
  }
  const absl::string_view magic(reinterpret_cast<const char*>(bytes.data()), 4);
  if (magic != "GGUF") {
    absl::string_view hint = "not a GGUF file";
    if (magic == "FUGG") hint = "big-endian, only little-endian files are read";
    if (magic == "vers") hint = "perhaps a Git LFS pointer: fetch the file itself";
    return absl::DataLossError(absl::StrCat(file_.name_, ": magic = \"", absl::CHexEscape(magic),
                                            "\" at byte 0, expected \"GGUF\": ", hint));
  }
  position_ = 4;
  LC_ASSIGN_OR_RETURN(file_.version_, Read<uint32_t>("version"));
  if (file_.version_ != 2 && file_.version_ != 3) {
    const bool swapped = file_.version_ != 0 && (file_.version_ & 0xFFFF) == 0;
    return absl::UnimplementedError(absl::StrCat(
        file_.name_, ": version = ", file_.version_, " at byte 4: ",
        swapped ? "the file is big-endian, only little-endian files are read"
                : "unsupported version, versions 2 and 3 are read; convert the model again"));
  }
  LC_ASSIGN_OR_RETURN(tensor_count_, Read<uint64_t>("n_tensors"));
  LC_ASSIGN_OR_RETURN(key_count_, Read<uint64_t>("n_kv"));
  if (tensor_count_ > std::min(GgufLimits::kMaxTensors, remaining() / kMinTensorInfoBytes)) {
    return Damaged("n_tensors", tensor_count_, 8,
                   absl::StrCat("the limit is ", GgufLimits::kMaxTensors, " and ", remaining(),
                                " bytes remain"));
  }
  if (key_count_ > std::min(GgufLimits::kMaxKeys, remaining() / kMinEntryBytes)) {
    return Damaged(
        "n_kv", key_count_, 16,
        absl::StrCat("the limit is ", GgufLimits::kMaxKeys, " and ", remaining(), " bytes remain"));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ParseEntry(uint64_t number) {
  const uint64_t key_at = position_;
  MetadataEntry entry;
  LC_ASSIGN_OR_RETURN(
      entry.key, ReadString(absl::StrCat("metadata key ", number), GgufLimits::kMaxKeyBytes - 1));
  if (entry.key.empty()) {
    return Damaged(absl::StrCat("length of metadata key ", number), 0, key_at,
                   "a key is never empty");
  }
  const std::string label = absl::StrCat("metadata key ", Printable(entry.key));
  const uint64_t type_at = position_;
  LC_ASSIGN_OR_RETURN(const uint32_t type_id, Read<uint32_t>(absl::StrCat("type of ", label)));
  if (type_id > static_cast<uint32_t>(MetadataType::kF64)) {
    return Damaged(absl::StrCat("type of ", label), type_id, type_at, "no such type");
  }
  entry.type = static_cast<MetadataType>(type_id);
  entry.element_type = entry.type;
  entry.offset = position_;
  if (entry.type == MetadataType::kArray) {
    LC_RETURN_IF_ERROR(ParseArray(entry));
  } else if (entry.type == MetadataType::kString) {
    LC_RETURN_IF_ERROR(ReadString(label, GgufLimits::kMaxStringBytes).status());
  } else {
    LC_RETURN_IF_ERROR(Skip(label, FixedBytes(entry.type)));
  }
  entry.value = file_.bytes_.subspan(entry.offset, position_ - entry.offset);
  if (entry.type == MetadataType::kBool && entry.value[0] > std::byte{1}) {
    return Damaged(label, std::to_integer<uint64_t>(entry.value[0]), entry.offset,
                   "a bool is 0 or 1");
  }
  const auto [found, inserted] =
      file_.metadata_.index_.emplace(entry.key, file_.metadata_.entries_.size());
  if (!inserted) {
    return absl::DataLossError(absl::StrCat(
        file_.name_, ": ", label, " stands twice, its value at byte ",
        file_.metadata_.entries_[found->second].offset, " and at byte ", entry.offset));
  }
  file_.metadata_.entries_.push_back(entry);
  return absl::OkStatus();
}

absl::Status GgufParser::ParseArray(MetadataEntry& entry) {
  const std::string label = absl::StrCat("metadata key ", Printable(entry.key));
  const uint64_t type_at = position_;
  LC_ASSIGN_OR_RETURN(const uint32_t type_id,
                      Read<uint32_t>(absl::StrCat("element type of ", label)));
  if (type_id > static_cast<uint32_t>(MetadataType::kF64)) {
    return Damaged(absl::StrCat("element type of ", label), type_id, type_at, "no such type");
  }
  entry.element_type = static_cast<MetadataType>(type_id);
  if (entry.element_type == MetadataType::kArray) {
    return absl::UnimplementedError(absl::StrCat(file_.name_, ": element type of ", label, " = ",
                                                 type_id, " at byte ", type_at,
                                                 ": arrays of arrays are not read"));
  }
  const uint64_t count_at = position_;
  LC_ASSIGN_OR_RETURN(entry.count, Read<uint64_t>(absl::StrCat("element count of ", label)));
  const bool strings = entry.element_type == MetadataType::kString;
  // A string is at least its length.
  const uint64_t element_bytes = strings ? 8 : FixedBytes(entry.element_type);
  if (entry.count > std::min(GgufLimits::kMaxArrayElements, remaining() / element_bytes)) {
    return Damaged(absl::StrCat("element count of ", label), entry.count, count_at,
                   absl::StrCat("the limit is ", GgufLimits::kMaxArrayElements, " elements and ",
                                remaining(), " bytes remain"));
  }
  entry.offset = position_;
  if (strings) return SkipStrings(label, entry.count);
  return Skip(label, entry.count * element_bytes);
}

absl::Status GgufParser::ReadAlignment() {
  file_.alignment_ = kDefaultAlignment;
  const MetadataEntry* entry = file_.metadata_.Find(kAlignmentKey);
  if (entry == nullptr) return absl::OkStatus();
  const absl::StatusOr<uint64_t> alignment = file_.metadata_.GetU64(kAlignmentKey);
  if (!alignment.ok()) {
    return absl::DataLossError(absl::StrCat(file_.name_, ": ", alignment.status().message()));
  }
  if (*alignment < kMinAlignment || *alignment > GgufLimits::kMaxAlignment ||
      (*alignment & (*alignment - 1)) != 0) {
    return Damaged(kAlignmentKey, *alignment, entry->offset,
                   absl::StrCat("expected a power of two from ", kMinAlignment, " to ",
                                GgufLimits::kMaxAlignment));
  }
  file_.alignment_ = *alignment;
  return absl::OkStatus();
}

absl::Status GgufParser::ParseTensorInfo(uint64_t number) {
  const uint64_t name_at = position_;
  TensorInfo tensor;
  LC_ASSIGN_OR_RETURN(tensor.name, ReadString(absl::StrCat("name of tensor ", number),
                                              GgufLimits::kMaxTensorNameBytes));
  if (tensor.name.empty()) {
    return Damaged(absl::StrCat("length of the name of tensor ", number), 0, name_at,
                   "a name is never empty");
  }
  LC_RETURN_IF_ERROR(ParseShape(tensor));
  LC_RETURN_IF_ERROR(ParseType(tensor));
  const std::string label = absl::StrCat("offset of tensor ", Printable(tensor.name));
  const uint64_t offset_at = position_;
  // Relative to the data section until PlaceTensors() knows where that begins.
  LC_ASSIGN_OR_RETURN(tensor.file_offset, Read<uint64_t>(label));
  if (tensor.file_offset % file_.alignment_ != 0) {
    return Damaged(label, tensor.file_offset, offset_at,
                   absl::StrCat("not a multiple of the alignment ", file_.alignment_));
  }
  const auto [found, inserted] = file_.tensor_index_.emplace(tensor.name, file_.tensors_.size());
  if (!inserted) {
    return absl::DataLossError(absl::StrCat(file_.name_, ": tensor ", Printable(tensor.name),
                                            " stands twice, as number ", found->second, " and ",
                                            number, " (byte ", name_at, ")"));
  }
  file_.tensors_.push_back(tensor);
  return absl::OkStatus();
}

absl::Status GgufParser::ParseShape(TensorInfo& tensor) {
  const std::string label = absl::StrCat("tensor ", Printable(tensor.name));
  const uint64_t dims_at = position_;
  LC_ASSIGN_OR_RETURN(tensor.n_dims, Read<uint32_t>(absl::StrCat("n_dims of ", label)));
  if (tensor.n_dims > GgufLimits::kMaxDims) {
    return Damaged(absl::StrCat("n_dims of ", label), tensor.n_dims, dims_at,
                   absl::StrCat("at most ", GgufLimits::kMaxDims));
  }
  uint64_t elements = 1;
  for (uint32_t i = 0; i < tensor.n_dims; ++i) {
    const std::string field = absl::StrCat("dimension ", i, " of ", label);
    const uint64_t at = position_;
    LC_ASSIGN_OR_RETURN(tensor.ne[i], Read<uint64_t>(field));
    if (tensor.ne[i] == 0) return Damaged(field, 0, at, "a dimension is at least 1");
    const std::optional<uint64_t> product = base::CheckedMul(elements, tensor.ne[i]);
    if (!product || *product > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Damaged(field, tensor.ne[i], at,
                     absl::StrCat("the number of elements of ", tensor.DescribeShape(),
                                  " does not fit 63 bits"));
    }
    elements = *product;
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ParseType(TensorInfo& tensor) {
  const std::string label = absl::StrCat("tensor ", Printable(tensor.name));
  const uint64_t type_at = position_;
  LC_ASSIGN_OR_RETURN(const uint32_t type_id, Read<uint32_t>(absl::StrCat("type of ", label)));
  const std::optional<TensorType> type = TensorTypeFromGgufId(type_id);
  if (!type) {
    return absl::UnimplementedError(absl::StrCat(file_.name_, ": type of ", label, " = ", type_id,
                                                 " at byte ", type_at, ": ",
                                                 DescribeGgufTypeId(type_id), " is not supported"));
  }
  tensor.type = *type;
  const absl::StatusOr<uint64_t> row_bytes = RowBytes(tensor.type, tensor.ne[0]);
  if (!row_bytes.ok()) {
    return absl::DataLossError(absl::StrCat(file_.name_, ": ", label, " ", tensor.DescribeShape(),
                                            ", type at byte ", type_at, ": ",
                                            row_bytes.status().message()));
  }
  // ParseShape() holds the product of all dimensions, so that of the last three too.
  const uint64_t rows = tensor.ne[1] * tensor.ne[2] * tensor.ne[3];
  const std::optional<uint64_t> bytes = base::CheckedMul(rows, *row_bytes);
  if (!bytes) {
    return absl::DataLossError(absl::StrCat(file_.name_, ": ", label, " ", tensor.DescribeShape(),
                                            " of type ", TensorTypeName(tensor.type), " (byte ",
                                            type_at, "): its bytes do not fit 64 bits"));
  }
  tensor.byte_size = *bytes;
  return absl::OkStatus();
}

absl::Status GgufParser::PlaceTensors() {
  file_.data_offset_ = position_;
  file_.data_end_ = position_;
  if (file_.tensors_.empty()) return absl::OkStatus();
  // position_ <= the size of something in memory and alignment <= 2^30: no overflow.
  file_.data_offset_ = (position_ + file_.alignment_ - 1) & ~(file_.alignment_ - 1);
  file_.data_end_ = file_.data_offset_;
  uint64_t total = 0;
  for (TensorInfo& tensor : file_.tensors_) {
    const uint64_t relative = tensor.file_offset;
    const std::optional<uint64_t> begin = base::CheckedAdd(file_.data_offset_, relative);
    const std::optional<uint64_t> end =
        begin ? base::CheckedAdd(*begin, tensor.byte_size) : std::nullopt;
    if (!end || *end > file_.file_size_) {
      return absl::DataLossError(absl::StrCat(
          file_.name_, ": tensor ", Printable(tensor.name), " ", tensor.DescribeShape(),
          " of type ", TensorTypeName(tensor.type), ": ", tensor.byte_size, " bytes at offset ",
          relative, " of the data section (which begins at byte ", file_.data_offset_,
          ") go beyond the end of the file at byte ", file_.file_size_,
          "; the file is cut short or damaged"));
    }
    const std::optional<uint64_t> sum = base::CheckedAdd(total, tensor.byte_size);
    if (!sum) {
      return absl::DataLossError(absl::StrCat(file_.name_, ": the bytes of all tensors up to ",
                                              Printable(tensor.name), " do not fit 64 bits"));
    }
    total = *sum;
    tensor.file_offset = *begin;
    file_.data_end_ = std::max(file_.data_end_, *end);
  }
  return absl::OkStatus();
}

}  // namespace layercake::model
