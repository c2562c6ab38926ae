// Byte-level byte-pair encoding: one piece of text to token ids by ranked merges.
// Immutable after Create; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/tokenizer/tokenizer_spec.h"

namespace layercake::model {

// Bytes of a vocabulary string in GPT-2's printable alphabet (bytes 33-126, 161-172 and 174-255
// stand for themselves, the others for U+0100 onwards in order); nullopt when `text` has a
// character outside that alphabet.
std::optional<std::string> DecodeByteAlphabet(std::string_view text);

class BpeModel {
 public:
  // `pieces`: bytes of each token, (n_vocab); must outlive the model. `usable`: which of them text
  // may become, (n_vocab). `merges`: "left right", best first; one that needs a token that is not
  // there can never apply and is left out. Of equal tokens the lowest id counts, of equal merges
  // the first. InvalidArgument names a merge without a space.
  static absl::StatusOr<std::unique_ptr<BpeModel>> Create(absl::Span<const std::string> pieces,
                                                          const std::vector<bool>& usable,
                                                          absl::Span<const std::string> merges,
                                                          bool ignore_merges);

  // Memory that EncodePiece reuses from call to call. One thread at a time.
  class Scratch {
    friend class BpeModel;
    struct Node {
      uint32_t previous;
      uint32_t next;
      TokenId id;  // kDead once merged into its left neighbour
    };
    struct Candidate {
      uint32_t rank;
      uint32_t left;  // node
      TokenId left_id;
      TokenId right_id;
    };
    std::vector<Node> nodes;
    std::vector<Candidate> heap;
  };

  // Appends the ids of `piece`: O(n log n) in its bytes.
  void EncodePiece(std::string_view piece, Scratch* scratch, std::vector<TokenId>* ids) const;

 private:
  struct Merge {
    uint32_t rank;
    TokenId result;
  };

  BpeModel() = default;

  const Merge* FindMerge(TokenId left, TokenId right) const;
  void MergeShort(std::string_view piece, std::vector<TokenId>* ids) const;
  void MergeLong(std::string_view piece, Scratch* scratch, std::vector<TokenId>* ids) const;
  void PushCandidate(uint32_t left, Scratch* scratch) const;

  bool ignore_merges_ = false;  // a piece that is a token is that token, whatever the merges say
  absl::flat_hash_map<std::string_view, TokenId> ids_;  // by bytes
  absl::flat_hash_map<uint64_t, Merge> merges_;         // by left id << 32 | right id
  std::array<TokenId, 256> byte_ids_ = {};              // -1: the vocabulary lacks this byte
};

}  // namespace layercake::model
