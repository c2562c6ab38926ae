#include "model/tokenizer/spm.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "model/tokenizer/utf8.h"

namespace layercake::model {
namespace {

constexpr TokenId kNoToken = -1;
constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

std::string SpmEscape(std::string_view text, bool space_prefix) {
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  if (space_prefix) out.append(kSpmSpace);
  for (const char c : text) {
    if (c == ' ') {
      out.append(kSpmSpace);
    } else {
      out.push_back(c);
    }
  }
  return out;
}

std::string SpmUnescape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const bool space = text.substr(0, kSpmSpace.size()) == kSpmSpace;
    out.push_back(space ? ' ' : text[0]);
    text.remove_prefix(space ? kSpmSpace.size() : 1);
  }
  return out;
}

std::optional<char> ParseByteToken(std::string_view text) {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return std::nullopt;
  const int high = HexDigit(text[3]);
  const int low = HexDigit(text[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<char>(high * 16 + low);
}

SpmModel::SpmModel(absl::Span<const std::string> tokens, absl::Span<const float> scores,
                   const std::vector<bool>& usable, absl::Span<const TokenType> types,
                   std::optional<TokenId> unknown_id)
    : scores_(scores), unknown_id_(unknown_id) {
  byte_ids_.fill(kNoToken);
  ids_.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const TokenId id = static_cast<TokenId>(i);
    if (types[i] == TokenType::kByte) {
      const std::optional<char> byte = ParseByteToken(tokens[i]);
      if (byte && byte_ids_[static_cast<uint8_t>(*byte)] == kNoToken) {
        byte_ids_[static_cast<uint8_t>(*byte)] = id;
      }
    } else if (usable[i] && !tokens[i].empty()) {
      ids_.try_emplace(tokens[i], id);
      longest_token_bytes_ = std::max(longest_token_bytes_, tokens[i].size());
    }
  }
}

std::optional<TokenId> SpmModel::Find(std::string_view text) const {
  if (text.size() > longest_token_bytes_) return std::nullopt;
  const auto found = ids_.find(text);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

void SpmModel::PushCandidate(std::string_view text, const std::vector<Symbol>& symbols,
                             uint32_t left, std::vector<Candidate>* heap) const {
  if (left == kNone || symbols[left].next == kNone) return;
  const uint32_t length = symbols[left].length + symbols[symbols[left].next].length;
  const std::optional<TokenId> id = Find(text.substr(symbols[left].start, length));
  if (!id) return;
  heap->push_back({scores_[static_cast<size_t>(*id)], left, length});
}

void SpmModel::AppendIds(std::string_view symbol, std::vector<TokenId>* ids) const {
  if (const std::optional<TokenId> id = Find(symbol)) {
    ids->push_back(*id);
    return;
  }
  const bool has_bytes = std::all_of(symbol.begin(), symbol.end(), [this](char byte) {
    return byte_ids_[static_cast<uint8_t>(byte)] != kNoToken;
  });
  if (!has_bytes) {
    if (unknown_id_) ids->push_back(*unknown_id_);
    return;
  }
  for (const char byte : symbol) ids->push_back(byte_ids_[static_cast<uint8_t>(byte)]);
}

void SpmModel::Encode(std::string_view text, std::vector<TokenId>* ids) const {
  std::vector<Symbol> symbols;
  for (size_t at = 0; at < text.size();) {
    const size_t length = NextUtf8(text.substr(at)).length;
    const uint32_t index = static_cast<uint32_t>(symbols.size());
    symbols.push_back({index == 0 ? kNone : index - 1, index + 1, static_cast<uint32_t>(at),
                       static_cast<uint32_t>(length)});
    at += length;
  }
  if (symbols.empty()) return;
  symbols.back().next = kNone;

  // Best score first, leftmost among equals.
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score < b.score : a.left > b.left;
  };
  std::vector<Candidate> heap;
  for (uint32_t i = 0; i < symbols.size(); ++i) PushCandidate(text, symbols, i, &heap);
  std::make_heap(heap.begin(), heap.end(), later);
  const auto push = [&](uint32_t left) {
    const size_t size = heap.size();
    PushCandidate(text, symbols, left, &heap);
    if (heap.size() > size) std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Candidate candidate = heap.back();
    heap.pop_back();
    Symbol& left = symbols[candidate.left];
    if (left.length == 0 || left.next == kNone) continue;
    Symbol& right = symbols[left.next];
    if (left.length + right.length != candidate.length) continue;
    left.length += right.length;
    right.length = 0;
    left.next = right.next;
    if (right.next != kNone) symbols[right.next].previous = candidate.left;
    push(left.previous);
    push(candidate.left);
  }
  for (uint32_t i = 0; i != kNone; i = symbols[i].next) {
    AppendIds(text.substr(symbols[i].start, symbols[i].length), ids);
  }
}

}  // namespace layercake::model
