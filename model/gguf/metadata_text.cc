#include "model/gguf/metadata_text.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace layercake::model {
namespace {

template <typename T>
std::string Scalar(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return absl::StrCat(value);
}

// Appends the value at `at` to `text`; returns how many bytes it took.
size_t AppendScalar(MetadataType type, const std::byte* at, size_t max_bytes, std::string& text) {
  switch (type) {
    case MetadataType::kU8:
      absl::StrAppend(&text, std::to_integer<uint32_t>(*at));
      return 1;
    case MetadataType::kI8:
      absl::StrAppend(&text, static_cast<int32_t>(static_cast<int8_t>(*at)));
      return 1;
    case MetadataType::kBool:
      text += *at != std::byte{0} ? "true" : "false";
      return 1;
    case MetadataType::kU16:
      text += Scalar<uint16_t>(at);
      return 2;
    case MetadataType::kI16:
      text += Scalar<int16_t>(at);
      return 2;
    case MetadataType::kU32:
      text += Scalar<uint32_t>(at);
      return 4;
    case MetadataType::kI32:
      text += Scalar<int32_t>(at);
      return 4;
    case MetadataType::kF32:
      text += Scalar<float>(at);
      return 4;
    case MetadataType::kU64:
      text += Scalar<uint64_t>(at);
      return 8;
    case MetadataType::kI64:
      text += Scalar<int64_t>(at);
      return 8;
    case MetadataType::kF64:
      text += Scalar<double>(at);
      return 8;
    case MetadataType::kString: {
      uint64_t length = 0;
      std::memcpy(&length, at, sizeof(length));
      const absl::string_view string(reinterpret_cast<const char*>(at) + 8, length);
      absl::StrAppend(&text, "\"", PrintableText(string, max_bytes), "\"");
      return 8 + length;
    }
    case MetadataType::kArray:
      break;
  }
  return 0;
}

}  // namespace

std::string PrintableText(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return absl::Utf8SafeCHexEscape(text);
  return absl::StrCat(absl::Utf8SafeCHexEscape(text.substr(0, max_bytes)), "... (", text.size(),
                      " bytes)");
}

std::string FormatMetadataValue(const MetadataEntry& entry, size_t max_items, size_t max_bytes) {
  std::string text;
  if (entry.type != MetadataType::kArray) {
    AppendScalar(entry.type, entry.value.data(), max_bytes, text);
    return text;
  }
  text.push_back('[');
  const uint64_t shown = std::min<uint64_t>(entry.count, max_items);
  const std::byte* at = entry.value.data();
  for (uint64_t i = 0; i < shown; ++i) {
    if (i > 0) text += ", ";
    at += AppendScalar(entry.element_type, at, max_bytes, text);
  }
  if (shown < entry.count) absl::StrAppend(&text, ", ... ", entry.count - shown, " more");
  text.push_back(']');
  return text;
}

}  // namespace layercake::model
