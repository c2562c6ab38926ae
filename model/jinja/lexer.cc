#include "model/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/status_macros.h"
#include "model/jinja/error.h"
#include "model/jinja/unicode.h"

namespace layercake::model::jinja {
namespace {

// Longest first, so that the first match is the right one.
constexpr std::array<std::string_view, 26> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsNamePart(char c) { return IsNameStart(c) || IsDigit(c); }

// Jinja sees "\n" only, and drops one newline at the very end.
std::string NormaliseNewlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
      continue;
    }
    text += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

size_t SkipSpace(std::string_view text, size_t offset) {
  while (offset < text.size()) {
    const CodePoint c = DecodeAt(text, offset);
    if (!IsSpace(c.value)) break;
    offset += c.size;
  }
  return offset;
}

std::string_view TrimRight(std::string_view text) {
  while (!text.empty()) {
    const size_t start = StartBefore(text, text.size());
    if (!IsSpace(DecodeAt(text, start).value)) break;
    text = text.substr(0, start);
  }
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(NormaliseNewlines(source)), text_(source_) {}

  absl::StatusOr<std::vector<Token>> Run();

 private:
  char At(size_t offset) const { return offset < text_.size() ? text_[offset] : '\0'; }
  bool StartsAt(size_t offset, std::string_view piece) const {
    return text_.substr(std::min(offset, text_.size())).substr(0, piece.size()) == piece;
  }

  absl::Status Error(size_t offset, std::string_view message);
  void MovePosition(size_t offset);
  void Emit(Token::Type type, size_t offset, std::string text = {});
  void EmitText(std::string_view text, size_t offset, char sign, bool lstrip);
  size_t EndOfTag(size_t offset, std::string_view close) const;

  absl::Status LexComment();
  absl::StatusOr<bool> LexRaw(std::string_view text_before, size_t tag);
  absl::Status LexTag(std::string_view close, Token::Type end_type);
  absl::Status LexToken();
  absl::Status LexNumber();
  absl::Status LexString();
  absl::Status AppendEscape(size_t& offset, std::string& out);
  absl::Status LexOperator();

  const std::string source_;
  const std::string_view text_;
  size_t offset_ = 0;
  bool line_starting_ = true;  // the last match ended with a newline
  std::vector<char> open_brackets_;
  std::vector<Token> tokens_;
  // Line and column of position_offset_, moved forward only.
  size_t position_offset_ = 0;
  size_t line_ = 1;
  size_t column_ = 1;
};

void Lexer::MovePosition(size_t offset) {
  if (offset < position_offset_) {
    position_offset_ = 0;
    line_ = column_ = 1;
  }
  while (position_offset_ < offset) {
    const CodePoint c = DecodeAt(text_, position_offset_);
    position_offset_ += c.size;
    if (c.value == U'\n') {
      ++line_;
      column_ = 1;
    } else {
      ++column_;
    }
  }
}

absl::Status Lexer::Error(size_t offset, std::string_view message) {
  MovePosition(offset);
  return SyntaxError(line_, column_, message);
}

void Lexer::Emit(Token::Type type, size_t offset, std::string text) {
  MovePosition(offset);
  Token token;
  token.type = type;
  token.text = std::move(text);
  token.line = line_;
  token.column = column_;
  tokens_.push_back(std::move(token));
}

// Emits the text before a tag, less the white space that the tag takes away.
void Lexer::EmitText(std::string_view text, size_t offset, char sign, bool lstrip) {
  if (sign == '-') {
    text = TrimRight(text);
  } else if (sign != '+' && lstrip) {
    const size_t newline = text.rfind('\n');
    const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
    if ((line_start > 0 || line_starting_) && SkipSpace(text, line_start) == text.size()) {
      text = text.substr(0, line_start);
    }
  }
  if (!text.empty()) Emit(Token::Type::kText, offset, std::string(text));
}

// The offset behind `close` ("%}", "#}") and what it swallows, when it stands at `offset`; else
// `offset`.
size_t Lexer::EndOfTag(size_t offset, std::string_view close) const {
  if (At(offset) == '+' && StartsAt(offset + 1, close)) return offset + 1 + close.size();
  if (At(offset) == '-' && StartsAt(offset + 1, close)) {
    return SkipSpace(text_, offset + 1 + close.size());
  }
  if (!StartsAt(offset, close)) return offset;
  offset += close.size();
  return At(offset) == '\n' ? offset + 1 : offset;
}

absl::StatusOr<std::vector<Token>> Lexer::Run() {
  while (offset_ < text_.size()) {
    size_t tag = offset_;
    while (true) {
      tag = text_.find('{', tag);
      if (tag == std::string_view::npos) break;
      const char kind = At(tag + 1);
      if (kind == '%' || kind == '{' || kind == '#') break;
      ++tag;
    }
    if (tag == std::string_view::npos) {
      Emit(Token::Type::kText, offset_, std::string(text_.substr(offset_)));
      break;
    }
    const std::string_view before = text_.substr(offset_, tag - offset_);
    const char kind = text_[tag + 1];
    if (kind == '%') {
      LC_ASSIGN_OR_RETURN(const bool raw, LexRaw(before, tag));
      if (raw) continue;
    }
    const char sign = At(tag + 2) == '-' || At(tag + 2) == '+' ? At(tag + 2) : '\0';
    EmitText(before, offset_, sign, kind != '{');
    line_starting_ = false;
    offset_ = tag + (sign == '\0' ? 2 : 3);
    if (kind == '#') {
      LC_RETURN_IF_ERROR(LexComment());
    } else if (kind == '%') {
      Emit(Token::Type::kBlockBegin, tag);
      LC_RETURN_IF_ERROR(LexTag("%}", Token::Type::kBlockEnd));
    } else {
      Emit(Token::Type::kVariableBegin, tag);
      LC_RETURN_IF_ERROR(LexTag("}}", Token::Type::kVariableEnd));
    }
  }
  Emit(Token::Type::kEnd, text_.size());
  return std::move(tokens_);
}

absl::Status Lexer::LexComment() {
  const size_t begin = offset_;
  for (size_t offset = offset_; offset < text_.size(); ++offset) {
    const size_t end = EndOfTag(offset, "#}");
    if (end == offset) continue;
    offset_ = end;
    line_starting_ = text_[end - 1] == '\n';
    return absl::OkStatus();
  }
  return Error(begin - 2, "this comment has no end: expected '#}'");
}

// {% raw %} … {% endraw %}: false when the tag at `tag` is another one.
absl::StatusOr<bool> Lexer::LexRaw(std::string_view text_before, size_t tag) {
  const auto keyword_end = [&](size_t at, std::string_view keyword) {
    if (At(at) == '-' || At(at) == '+') ++at;
    at = SkipSpace(text_, at);
    if (!StartsAt(at, keyword)) return std::string_view::npos;
    return SkipSpace(text_, at + keyword.size());
  };
  size_t body = keyword_end(tag + 2, "raw");
  if (body == std::string_view::npos) return false;
  if (At(body) == '-' && StartsAt(body + 1, "%}")) {
    body = SkipSpace(text_, body + 3);
  } else if (StartsAt(body, "%}")) {
    body += 2;
  } else {
    return false;
  }
  EmitText(text_before, offset_, At(tag + 2), true);
  line_starting_ = text_[body - 1] == '\n';
  for (size_t close = text_.find("{%", body); close != std::string_view::npos;
       close = text_.find("{%", close + 1)) {
    const size_t close_end = keyword_end(close + 2, "endraw");
    if (close_end == std::string_view::npos) continue;
    const size_t end = EndOfTag(close_end, "%}");
    if (end == close_end) continue;
    EmitText(text_.substr(body, close - body), body, At(close + 2), true);
    line_starting_ = text_[end - 1] == '\n';
    offset_ = end;
    return true;
  }
  return Error(tag, "this raw block has no end: expected '{% endraw %}'");
}

absl::Status Lexer::LexTag(std::string_view close, Token::Type end_type) {
  const size_t begin = offset_;
  open_brackets_.clear();
  while (offset_ < text_.size()) {
    if (open_brackets_.empty()) {
      size_t end = EndOfTag(offset_, close);
      if (end_type == Token::Type::kVariableEnd) {
        // Behind }} no newline is trimmed, and there is no +}}.
        end = offset_;
        if (StartsAt(offset_, close)) end = offset_ + 2;
        if (At(offset_) == '-' && StartsAt(offset_ + 1, close)) end = SkipSpace(text_, offset_ + 3);
      }
      if (end != offset_) {
        Emit(end_type, offset_);
        line_starting_ = text_[end - 1] == '\n';
        offset_ = end;
        return absl::OkStatus();
      }
    }
    LC_RETURN_IF_ERROR(LexToken());
  }
  return Error(begin - 2, Cat("this tag has no end: expected '", close, "'"));
}

absl::Status Lexer::LexToken() {
  const char c = text_[offset_];
  if (const size_t end = SkipSpace(text_, offset_); end != offset_) {
    offset_ = end;
    return absl::OkStatus();
  }
  if (IsDigit(c)) return LexNumber();
  if (IsNameStart(c)) {
    size_t end = offset_;
    while (IsNamePart(At(end))) ++end;
    Emit(Token::Type::kName, offset_, std::string(text_.substr(offset_, end - offset_)));
    offset_ = end;
    return absl::OkStatus();
  }
  if (c == '\'' || c == '"') return LexString();
  return LexOperator();
}

absl::Status Lexer::LexNumber() {
  int base = 10;
  size_t end = offset_;
  const auto digits = [&](auto accepts) {
    while (accepts(At(end)) || (At(end) == '_' && accepts(At(end + 1)))) ++end;
  };
  const char marker = static_cast<char>(At(offset_ + 1) | 0x20);
  if (At(offset_) == '0' && (marker == 'x' || marker == 'o' || marker == 'b')) {
    base = marker == 'x' ? 16 : marker == 'o' ? 8 : 2;
    end += 2;
    digits([](char c) { return IsDigit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); });
  } else {
    digits(IsDigit);
  }
  bool is_float = false;
  // In x.1.2 the numbers are subscripts.
  if (base == 10 && (offset_ == 0 || text_[offset_ - 1] != '.')) {
    if (At(end) == '.' && IsDigit(At(end + 1))) {
      is_float = true;
      ++end;
      digits(IsDigit);
    }
    const size_t sign = At(end + 1) == '+' || At(end + 1) == '-' ? 1 : 0;
    if ((At(end) | 0x20) == 'e' && IsDigit(At(end + 1 + sign))) {
      is_float = true;
      end += 1 + sign;
      digits(IsDigit);
    }
  }
  std::string literal(text_.substr(offset_, end - offset_));
  std::erase(literal, '_');
  Emit(is_float ? Token::Type::kFloat : Token::Type::kInteger, offset_);
  if (is_float) {
    tokens_.back().number = std::strtod(literal.c_str(), nullptr);
  } else {
    int64_t value = 0;
    const char* first = literal.data() + (base == 10 ? 0 : 2);
    const char* last = literal.data() + literal.size();
    const bool leading_zero =
        base == 10 && literal[0] == '0' && literal.find_first_not_of('0') != std::string::npos;
    const auto result = std::from_chars(first, last, value, base);
    if (leading_zero || first == last || result.ec != std::errc() || result.ptr != last) {
      return Error(offset_, Cat("'", literal, "' is not an integer of 64 bits"));
    }
    tokens_.back().integer = value;
  }
  offset_ = end;
  return absl::OkStatus();
}

absl::Status Lexer::LexString() {
  const char quote = text_[offset_];
  std::string value;
  size_t offset = offset_ + 1;
  while (offset < text_.size() && text_[offset] != quote) {
    if (text_[offset] == '\\' && offset + 1 < text_.size()) {
      LC_RETURN_IF_ERROR(AppendEscape(offset, value));
    } else {
      value += text_[offset++];
    }
  }
  if (offset >= text_.size()) return Error(offset_, "this string has no closing quote");
  Emit(Token::Type::kString, offset_, std::move(value));
  offset_ = offset + 1;
  return absl::OkStatus();
}

// Python's string escapes; unknown ones stay as they are, backslash included.
absl::Status Lexer::AppendEscape(size_t& offset, std::string& out) {
  constexpr std::string_view kLetters = "\\'\"abfnrtv";
  constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
  const size_t begin = offset;
  const char c = text_[offset + 1];
  offset += 2;
  if (c == '\n') return absl::OkStatus();  // a continued line
  if (const size_t index = kLetters.find(c); index != std::string_view::npos) {
    out += kMeanings[index];
    return absl::OkStatus();
  }
  size_t digits = 0;
  int base = 16;
  if (c >= '0' && c <= '7') {
    base = 8;
    --offset;
    while (digits < 3 && At(offset + digits) >= '0' && At(offset + digits) <= '7') ++digits;
  } else if (c == 'x' || c == 'u' || c == 'U') {
    digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
  } else if (c == 'N') {
    return Error(begin, "\\N{name} is not supported: write the character itself or \\uXXXX");
  } else {
    out += '\\';
    out += c;
    return absl::OkStatus();
  }
  uint32_t value = 0;
  const std::string_view number = text_.substr(std::min(offset, text_.size()), digits);
  const auto result = std::from_chars(number.data(), number.data() + number.size(), value, base);
  if (number.size() != digits || result.ptr != number.data() + digits || value > 0x10FFFF ||
      (value >= 0xD800 && value <= 0xDFFF)) {
    return Error(begin, Cat("the escape \\", std::string(1, c), " does not name a character"));
  }
  AppendUtf8(value, out);
  offset += digits;
  return absl::OkStatus();
}

absl::Status Lexer::LexOperator() {
  for (const std::string_view op : kOperators) {
    if (!StartsAt(offset_, op)) continue;
    const char c = op[0];
    if (c == '(' || c == '[' || c == '{') {
      open_brackets_.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
      if (open_brackets_.empty()) return Error(offset_, Cat("unexpected '", op, "'"));
      if (open_brackets_.back() != c) {
        return Error(offset_, Cat("unexpected '", op, "', expected '",
                                  std::string(1, open_brackets_.back()), "'"));
      }
      open_brackets_.pop_back();
    }
    Emit(Token::Type::kOperator, offset_, std::string(op));
    offset_ += op.size();
    return absl::OkStatus();
  }
  const CodePoint c = DecodeAt(text_, offset_);
  return Error(offset_, Cat("unexpected character '", text_.substr(offset_, c.size), "'"));
}

}  // namespace

absl::Status SyntaxError(size_t line, size_t column, std::string_view message) {
  return Invalid("chat template, line ", line, ", column ", column, ": ", message);
}

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source) { return Lexer(source).Run(); }

}  // namespace layercake::model::jinja
