#include "model/tokenizer/utf8.h"

#include <algorithm>

namespace layercake::model {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

uint8_t ByteAt(std::string_view bytes, size_t i) { return static_cast<uint8_t>(bytes[i]); }

}  // namespace

Utf8Step NextUtf8(std::string_view bytes) {
  using Kind = Utf8Step::Kind;
  const uint8_t lead = ByteAt(bytes, 0);
  if (lead < 0x80) return {Kind::kCharacter, 1, lead};

  // Range of the second byte by lead byte: Unicode standard, table 3-7.
  size_t length = 0;
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xBF;
  uint32_t code_point = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    code_point = lead & 0x1Fu;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    code_point = lead & 0x0Fu;
    if (lead == 0xE0) second_min = 0xA0;
    if (lead == 0xED) second_max = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    code_point = lead & 0x07u;
    if (lead == 0xF0) second_min = 0x90;
    if (lead == 0xF4) second_max = 0x8F;
  } else {
    return {Kind::kInvalid, 1, 0};
  }
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {Kind::kIncomplete, i, 0};
    const uint8_t byte = ByteAt(bytes, i);
    const uint8_t min = i == 1 ? second_min : 0x80;
    const uint8_t max = i == 1 ? second_max : 0xBF;
    if (byte < min || byte > max) return {Kind::kInvalid, i, 0};
    code_point = (code_point << 6) | (byte & 0x3Fu);
  }
  return {Kind::kCharacter, length, code_point};
}

size_t FirstInvalidUtf8(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    const Utf8Step step = NextUtf8(bytes.substr(at));
    if (step.kind != Utf8Step::Kind::kCharacter) return at;
    at += step.length;
  }
  return std::string_view::npos;
}

size_t IncompleteUtf8Tail(std::string_view bytes) {
  // A cut character is its lead byte and at most two more; find the last byte that can lead one.
  for (size_t back = 1; back <= std::min<size_t>(3, bytes.size()); ++back) {
    const uint8_t byte = ByteAt(bytes, bytes.size() - back);
    if ((byte & 0xC0) == 0x80) continue;
    const Utf8Step step = NextUtf8(bytes.substr(bytes.size() - back));
    return step.kind == Utf8Step::Kind::kIncomplete ? back : 0;
  }
  return 0;
}

std::string ReplaceInvalidUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Step step = NextUtf8(bytes);
    if (step.kind == Utf8Step::Kind::kCharacter) {
      out.append(bytes.substr(0, step.length));
    } else {
      out.append(kReplacement);
    }
    bytes.remove_prefix(step.length);
  }
  return out;
}

void AppendUtf8(uint32_t code_point, std::string* out) {
  const auto push = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xC0 | (code_point >> 6));
    push(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    push(0xE0 | (code_point >> 12));
    push(0x80 | ((code_point >> 6) & 0x3F));
    push(0x80 | (code_point & 0x3F));
  } else {
    push(0xF0 | (code_point >> 18));
    push(0x80 | ((code_point >> 12) & 0x3F));
    push(0x80 | ((code_point >> 6) & 0x3F));
    push(0x80 | (code_point & 0x3F));
  }
}

}  // namespace layercake::model
