#include "model/jinja/json_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/status_macros.h"
#include "model/jinja/error.h"
#include "model/jinja/unicode.h"

namespace layercake::model::jinja {
namespace {

class Writer {
 public:
  Writer(Runtime& runtime, const JsonTextOptions& options) : runtime_(runtime), options_(options) {}

  absl::Status Write(const Value& value, int depth);
  MarkedString Take() { return std::move(out_); }

 private:
  void Punctuation(std::string_view text) { out_.Append(text, false); }
  void NewLine(int depth);
  void WriteString(const MarkedString& text);
  absl::Status WriteList(const Sequence& list, int depth);
  absl::Status WriteDict(const Dict& dict, int depth);
  absl::Status WriteKey(const Value& key);

  Runtime& runtime_;
  const JsonTextOptions& options_;
  MarkedString out_;
};

std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return FloatText(value);
}

void AppendUnicodeEscape(uint32_t unit, std::string& out) {
  char buffer[8];
  std::snprintf(buffer, sizeof buffer, "\\u%04x", unit);
  out += buffer;
}

std::string Escape(std::string_view text, const CodePoint& c, size_t offset, bool ensure_ascii) {
  switch (c.value) {
    case U'"':
      return "\\\"";
    case U'\\':
      return "\\\\";
    case U'\n':
      return "\\n";
    case U'\r':
      return "\\r";
    case U'\t':
      return "\\t";
    case U'\f':
      return "\\f";
    case U'\b':
      return "\\b";
    default:
      break;
  }
  std::string out;
  const auto value = static_cast<uint32_t>(c.value);
  if (value < 0x20 || (ensure_ascii && value > 0x7E && value <= 0xFFFF && value != 0x7F)) {
    AppendUnicodeEscape(value, out);
  } else if (ensure_ascii && value > 0xFFFF) {
    AppendUnicodeEscape(0xD800 + ((value - 0x10000) >> 10), out);
    AppendUnicodeEscape(0xDC00 + ((value - 0x10000) & 0x3FF), out);
  } else {
    out = text.substr(offset, c.size);
  }
  return out;
}

void Writer::NewLine(int depth) {
  if (!options_.indent) return;
  Punctuation("\n");
  for (int i = 0; i < depth; ++i) Punctuation(*options_.indent);
}

void Writer::WriteString(const MarkedString& text) {
  Punctuation("\"");
  const std::string& bytes = text.text();
  size_t copied = 0;
  for (size_t offset = 0; offset < bytes.size();) {
    const CodePoint c = DecodeAt(bytes, offset);
    const bool plain = c.value >= 0x20 && c.value != U'"' && c.value != U'\\' &&
                       (c.value < 0x80 || !options_.ensure_ascii);
    if (!plain) {
      out_.AppendRange(text, copied, offset);
      out_.Append(Escape(bytes, c, offset, options_.ensure_ascii), text.TrustedAt(offset));
      copied = offset + c.size;
    }
    offset += c.size;
  }
  out_.AppendRange(text, copied, bytes.size());
  Punctuation("\"");
}

absl::Status Writer::WriteList(const Sequence& list, int depth) {
  if (list.items.empty()) {
    Punctuation("[]");
    return absl::OkStatus();
  }
  Punctuation("[");
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) Punctuation(options_.item_separator);
    NewLine(depth + 1);
    LC_RETURN_IF_ERROR(Write(list.items[i], depth + 1));
  }
  NewLine(depth);
  Punctuation("]");
  return absl::OkStatus();
}

absl::Status Writer::WriteKey(const Value& key) {
  switch (key.kind()) {
    case Kind::kString:
      WriteString(key.string());
      return absl::OkStatus();
    case Kind::kNone:
      Punctuation("\"null\"");
      return absl::OkStatus();
    case Kind::kBool:
      Punctuation(key.boolean() ? "\"true\"" : "\"false\"");
      return absl::OkStatus();
    case Kind::kInt:
      Punctuation(Cat("\"", IntText(key.integer()), "\""));
      return absl::OkStatus();
    case Kind::kFloat:
      Punctuation(Cat("\"", NumberText(key.number()), "\""));
      return absl::OkStatus();
    default:
      return Invalid("tojson: a ", TypeName(key), " cannot be a key in JSON");
  }
}

absl::Status Writer::WriteDict(const Dict& dict, int depth) {
  if (dict.entries.empty()) {
    Punctuation("{}");
    return absl::OkStatus();
  }
  std::vector<const Dict::Entry*> entries;
  for (const Dict::Entry& entry : dict.entries) entries.push_back(&entry);
  if (options_.sort_keys) {
    for (const Dict::Entry* entry : entries) {
      if (!entry->key.is_string()) return Invalid("tojson: sort_keys needs keys that are strings");
    }
    LC_RETURN_IF_ERROR(runtime_.budget.Charge(entries.size() * 4));
    std::sort(entries.begin(), entries.end(), [](const Dict::Entry* a, const Dict::Entry* b) {
      return a->key.text() < b->key.text();
    });
  }
  Punctuation("{");
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) Punctuation(options_.item_separator);
    NewLine(depth + 1);
    LC_RETURN_IF_ERROR(WriteKey(entries[i]->key));
    Punctuation(options_.key_separator);
    LC_RETURN_IF_ERROR(Write(entries[i]->value, depth + 1));
  }
  NewLine(depth);
  Punctuation("}");
  return absl::OkStatus();
}

absl::Status Writer::Write(const Value& value, int depth) {
  if (depth > kMaxValueDepth) {
    return Invalid("tojson: the value nests deeper than ", kMaxValueDepth, " levels");
  }
  LC_RETURN_IF_ERROR(runtime_.budget.Charge(
      1 +
      (options_.indent ? static_cast<uint64_t>(depth) * (1 + options_.indent->size() / 16) : 0)));
  LC_RETURN_IF_ERROR(runtime_.budget.CheckSize(out_.size()));
  switch (value.kind()) {
    case Kind::kNone:
      Punctuation("null");
      return absl::OkStatus();
    case Kind::kBool:
      Punctuation(value.boolean() ? "true" : "false");
      return absl::OkStatus();
    case Kind::kInt:
      Punctuation(IntText(value.integer()));
      return absl::OkStatus();
    case Kind::kFloat:
      Punctuation(NumberText(value.number()));
      return absl::OkStatus();
    case Kind::kString:
      LC_RETURN_IF_ERROR(runtime_.budget.ChargeText(value.text().size()));
      WriteString(value.string());
      return absl::OkStatus();
    case Kind::kDict:
      return WriteDict(*value.dict(), depth);
    case Kind::kSequence:
      if (value.sequence()->form == Sequence::Form::kList ||
          value.sequence()->form == Sequence::Form::kTuple) {
        return WriteList(*value.sequence(), depth);
      }
      break;
    case Kind::kUndefined:
      return Invalid(value.undefined_reason());
    default:
      break;
  }
  return Invalid("tojson: a ", TypeName(value), " cannot be written as JSON");
}

}  // namespace

absl::StatusOr<MarkedString> ToJsonText(Runtime& runtime, const Value& value,
                                        const JsonTextOptions& options) {
  Writer writer(runtime, options);
  LC_RETURN_IF_ERROR(writer.Write(value, 0));
  MarkedString text = writer.Take();
  LC_RETURN_IF_ERROR(runtime.budget.ChargeString(text.size()));
  return text;
}

}  // namespace layercake::model::jinja
