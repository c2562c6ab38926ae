#include "model/tokenizer/bpe.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/tokenizer/utf8.h"

namespace layercake::model {
namespace {

constexpr TokenId kNoToken = -1;
constexpr TokenId kDead = -2;
constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();

// Pieces up to this many bytes are merged by scanning for the best pair: for words that beats the
// heap, and it bounds the quadratic part.
constexpr size_t kShortPiece = 32;

constexpr bool StandsForItself(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

// Code points of the alphabet end before U+0100 + 68, the number of bytes moved there.
constexpr size_t kAlphabetEnd = 0x144;

constexpr std::array<int16_t, kAlphabetEnd> MakeAlphabet() {
  std::array<int16_t, kAlphabetEnd> bytes = {};
  for (int16_t& byte : bytes) byte = -1;
  size_t moved = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const size_t code_point = StandsForItself(byte) ? static_cast<size_t>(byte) : moved++;
    bytes[code_point] = static_cast<int16_t>(byte);
  }
  return bytes;
}

constexpr std::array<int16_t, kAlphabetEnd> kAlphabet = MakeAlphabet();

uint64_t PairKey(TokenId left, TokenId right) {
  return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
}

}  // namespace

std::optional<std::string> DecodeByteAlphabet(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    if (step.kind != Utf8Step::Kind::kCharacter || step.code_point >= kAlphabetEnd ||
        kAlphabet[step.code_point] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(kAlphabet[step.code_point]));
    text.remove_prefix(step.length);
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<BpeModel>> BpeModel::Create(absl::Span<const std::string> pieces,
                                                           const std::vector<bool>& usable,
                                                           absl::Span<const std::string> merges,
                                                           bool ignore_merges) {
  std::unique_ptr<BpeModel> model(new BpeModel);
  model->ignore_merges_ = ignore_merges;
  model->ids_.reserve(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (usable[i] && !pieces[i].empty()) {
      model->ids_.try_emplace(pieces[i], static_cast<TokenId>(i));
    }
  }
  const auto find = [&](std::string_view bytes) {
    const auto found = model->ids_.find(bytes);
    return found == model->ids_.end() ? kNoToken : found->second;
  };
  for (size_t byte = 0; byte < 256; ++byte) {
    model->byte_ids_[byte] = find(std::string(1, static_cast<char>(byte)));
  }
  model->merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    // The left part is never empty, so a space that is the first character belongs to it.
    const std::string_view merge = merges[rank];
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.merges[", rank, "] is \"",
                                                     merges[rank],
                                                     "\": expected two parts and a space"));
    }
    const std::optional<std::string> left = DecodeByteAlphabet(merge.substr(0, space));
    const std::optional<std::string> right = DecodeByteAlphabet(merge.substr(space + 1));
    if (!left || !right) continue;
    const TokenId left_id = find(*left);
    const TokenId right_id = find(*right);
    const TokenId result = find(*left + *right);
    if (left_id == kNoToken || right_id == kNoToken || result == kNoToken) continue;
    model->merges_.try_emplace(PairKey(left_id, right_id),
                               Merge{static_cast<uint32_t>(rank), result});
  }
  return model;
}

const BpeModel::Merge* BpeModel::FindMerge(TokenId left, TokenId right) const {
  const auto found = merges_.find(PairKey(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BpeModel::EncodePiece(std::string_view piece, Scratch* scratch,
                           std::vector<TokenId>* ids) const {
  if (ignore_merges_) {
    const auto found = ids_.find(piece);
    if (found != ids_.end()) {
      ids->push_back(found->second);
      return;
    }
  }
  if (piece.size() <= kShortPiece) {
    MergeShort(piece, ids);
  } else {
    MergeLong(piece, scratch, ids);
  }
}

void BpeModel::MergeShort(std::string_view piece, std::vector<TokenId>* ids) const {
  std::array<TokenId, kShortPiece> symbols;
  std::array<Merge, kShortPiece> best;  // best[i] merges symbols i and i + 1
  size_t count = 0;
  for (const char byte : piece) {
    const TokenId id = byte_ids_[static_cast<uint8_t>(byte)];
    if (id != kNoToken) symbols[count++] = id;
  }
  const auto update = [&](size_t i) {
    const Merge* merge = i + 1 < count ? FindMerge(symbols[i], symbols[i + 1]) : nullptr;
    best[i] = merge != nullptr ? *merge : Merge{kNoRank, kNoToken};
  };
  for (size_t i = 0; i < count; ++i) update(i);
  while (count > 1) {
    size_t at = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (best[i].rank < best[at].rank) at = i;
    }
    if (best[at].rank == kNoRank) break;
    symbols[at] = best[at].result;
    for (size_t i = at + 1; i + 1 < count; ++i) {
      symbols[i] = symbols[i + 1];
      best[i] = best[i + 1];
    }
    --count;
    update(at);
    if (at > 0) update(at - 1);
  }
  ids->insert(ids->end(), symbols.begin(), symbols.begin() + static_cast<ptrdiff_t>(count));
}

void BpeModel::PushCandidate(uint32_t left, Scratch* scratch) const {
  if (left == kNone) return;
  const uint32_t right = scratch->nodes[left].next;
  if (right == kNone) return;
  const TokenId left_id = scratch->nodes[left].id;
  const TokenId right_id = scratch->nodes[right].id;
  const Merge* merge = FindMerge(left_id, right_id);
  if (merge == nullptr) return;
  scratch->heap.push_back({merge->rank, left, left_id, right_id});
}

void BpeModel::MergeLong(std::string_view piece, Scratch* scratch,
                         std::vector<TokenId>* ids) const {
  std::vector<Scratch::Node>& nodes = scratch->nodes;
  std::vector<Scratch::Candidate>& heap = scratch->heap;
  nodes.clear();
  heap.clear();
  for (const char byte : piece) {
    const TokenId id = byte_ids_[static_cast<uint8_t>(byte)];
    if (id == kNoToken) continue;
    const uint32_t index = static_cast<uint32_t>(nodes.size());
    nodes.push_back({index == 0 ? kNone : index - 1, index + 1, id});
  }
  if (nodes.empty()) return;
  nodes.back().next = kNone;

  // Lowest rank first, leftmost among equals.
  const auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return std::pair(a.rank, a.left) > std::pair(b.rank, b.left);
  };
  for (uint32_t i = 0; i < nodes.size(); ++i) PushCandidate(i, scratch);
  std::make_heap(heap.begin(), heap.end(), later);
  const auto push = [&](uint32_t left) {
    const size_t size = heap.size();
    PushCandidate(left, scratch);
    if (heap.size() > size) std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Scratch::Candidate candidate = heap.back();
    heap.pop_back();
    Scratch::Node& left = nodes[candidate.left];
    // A merge nearby has changed one of the two since: the pair is no longer there.
    if (left.id != candidate.left_id || left.next == kNone) continue;
    Scratch::Node& right = nodes[left.next];
    if (right.id != candidate.right_id) continue;
    left.id = FindMerge(left.id, right.id)->result;
    right.id = kDead;
    left.next = right.next;
    if (right.next != kNone) nodes[right.next].previous = candidate.left;
    push(left.previous);
    push(candidate.left);
  }
  for (uint32_t i = 0; i != kNone; i = nodes[i].next) ids->push_back(nodes[i].id);
}

}  // namespace layercake::model
