// SentencePiece BPE: characters, then the adjacent pair whose joined text has the best score.
// Immutable after construction; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "model/tokenizer/tokenizer_spec.h"

namespace layercake::model {

// U+2581, which stands for a space in the vocabulary.
inline constexpr std::string_view kSpmSpace = "\xE2\x96\x81";

// `text` with each space as kSpmSpace, after one more when `space_prefix`.
std::string SpmEscape(std::string_view text, bool space_prefix);
// `text` with each kSpmSpace as a space.
std::string SpmUnescape(std::string_view text);

// The byte that "<0xXX>" names; nullopt when `text` is not of that form.
std::optional<char> ParseByteToken(std::string_view text);

class SpmModel {
 public:
  // All (n_vocab); `tokens` and `scores` must outlive the model. `usable`: which tokens text may
  // become by merging. Byte tokens are found by type. `unknown_id`: what a character without token
  // becomes when a byte of it has no byte token; without it such characters are left out.
  SpmModel(absl::Span<const std::string> tokens, absl::Span<const float> scores,
           const std::vector<bool>& usable, absl::Span<const TokenType> types,
           std::optional<TokenId> unknown_id);

  // Appends the ids of `text`, valid UTF-8 in which spaces are kSpmSpace: O(n log n).
  void Encode(std::string_view text, std::vector<TokenId>* ids) const;

 private:
  struct Symbol {
    uint32_t previous;
    uint32_t next;
    uint32_t start;
    uint32_t length;  // 0 once merged into its left neighbour
  };
  struct Candidate {
    float score;
    uint32_t left;    // symbol
    uint32_t length;  // of both together; tells a pair that has changed since
  };

  std::optional<TokenId> Find(std::string_view text) const;
  void PushCandidate(std::string_view text, const std::vector<Symbol>& symbols, uint32_t left,
                     std::vector<Candidate>* heap) const;
  void AppendIds(std::string_view symbol, std::vector<TokenId>* ids) const;

  absl::Span<const float> scores_;
  std::optional<TokenId> unknown_id_;
  absl::flat_hash_map<std::string_view, TokenId> ids_;
  std::array<TokenId, 256> byte_ids_ = {};  // -1: the vocabulary lacks this byte
  size_t longest_token_bytes_ = 0;
};

}  // namespace layercake::model
