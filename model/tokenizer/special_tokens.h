// Finds special tokens in text: from left to right, the longest at each position.
// Immutable after construction; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "model/tokenizer/tokenizer_spec.h"

namespace layercake::model {

// Longer special tokens are refused: this bounds the work at each position of a text.
inline constexpr size_t kMaxSpecialTokenBytes = 512;

class SpecialTokenMatcher {
 public:
  struct Match {
    TokenId id;
    size_t bytes;
  };

  // `control`: recognised only where the caller asks. Of two tokens with one text the first stays.
  // InvalidArgument when `text` is longer than kMaxSpecialTokenBytes. Empty text is no token.
  absl::Status Add(std::string_view text, TokenId id, bool control);

  // The longest token at the front of `text`; control tokens only within its first `control_bytes`.
  std::optional<Match> MatchFront(std::string_view text, size_t control_bytes) const;

  // False: no token starts with this byte.
  bool CanStart(char byte) const { return starts_[static_cast<uint8_t>(byte)]; }

 private:
  struct Terminal {
    TokenId id;
    bool control;
  };

  // A trie: node 0 is the root; edges_ maps (node << 8 | byte) to the next node.
  absl::flat_hash_map<uint64_t, uint32_t> edges_;
  absl::flat_hash_map<uint32_t, Terminal> terminals_;
  std::array<bool, 256> starts_ = {};
  uint32_t node_count_ = 1;
};

}  // namespace layercake::model
