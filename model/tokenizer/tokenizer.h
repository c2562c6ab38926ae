// Text to token ids and back, exactly as the model was trained: byte-level BPE ("gpt2") and
// SentencePiece BPE ("llama"), chosen by the model file and never guessed.
//
// Which text may become which id:
//   * control tokens (<|im_end|>, BOS, every end-of-generation token ...) are recognised only where
//     the caller says parse_special; elsewhere the same characters are plain text, so that a user's
//     text can never end a turn;
//   * user-defined tokens match everywhere, before anything else; at each position the longest
//     token wins, from left to right;
//   * what is left between them is normalised (NFC where the model wants it), cut into pieces and
//     merged.
//
// A byte that a byte-level vocabulary has no token for (SmolLM2 lacks 0x04 and some others) is left
// out, as the models' own tokenizers do; everything else survives Decode(Encode(text)).
//
// Time is near-linear in the text for every text. Immutable after Create: any thread may call any
// method at any time.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/tokenizer/tokenizer_spec.h"

namespace layercake::model {

class BpeModel;
class PreTokenizer;
class SpecialTokenMatcher;
class SpmModel;

// Longest text that Encode takes; servers state a smaller limit of their own.
inline constexpr size_t kMaxEncodeBytes = size_t{256} << 20;

struct EncodeOptions {
  // Put BOS in front and EOS behind where the model wants them, unless they stand there already.
  bool add_special = false;
  // Recognise control tokens in the whole text (Encode only; EncodeSpans has it per span).
  bool parse_special = false;
};

struct TextSpan {
  std::string_view text;
  bool parse_special = false;
};

struct DecodeOptions {
  // Print control tokens as their text instead of as nothing.
  bool show_control = false;
  // False when the ids continue text that was printed before: an SPM model's leading space stays.
  bool at_start = true;
};

class Tokenizer {
 public:
  // Checks all of `spec`. InvalidArgument names the metadata key and the value at fault (an id
  // outside the vocabulary, sizes that disagree, a merge without a space); Unimplemented names a
  // tokenizer.ggml.model or .pre that is not supported, and a missing .pre: there is no default.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(TokenizerSpec spec);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // InvalidArgument when `text` is not valid UTF-8 (with the byte offset) or is longer than
  // kMaxEncodeBytes.
  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                              const EncodeOptions& options = {}) const;

  // Encodes the concatenation of `spans`: pieces and user-defined tokens run across span borders as
  // if there were none. A control token is recognised only when it lies wholly inside one span that
  // has parse_special. Offsets in errors count from the start of the first span.
  absl::StatusOr<std::vector<TokenId>> EncodeSpans(absl::Span<const TextSpan> spans,
                                                   bool add_special) const;

  // The text of `ids`, always valid UTF-8: what StreamingDetokenizer gives for them, joined.
  // InvalidArgument names an id outside the vocabulary.
  absl::StatusOr<std::string> Decode(absl::Span<const TokenId> ids,
                                     const DecodeOptions& options = {}) const;

  // The bytes that `id` prints, which may be a part of a character; empty for a control token
  // unless `show_control`. InvalidArgument names an id outside the vocabulary.
  absl::StatusOr<std::string_view> TokenToPiece(TokenId id, bool show_control = false) const;

  size_t vocab_size() const { return pieces_.size(); }
  bool IsValidId(TokenId id) const { return id >= 0 && static_cast<size_t>(id) < pieces_.size(); }

  std::optional<TokenId> bos_id() const { return ToId(spec_.bos_id); }
  std::optional<TokenId> eos_id() const { return ToId(spec_.eos_id); }
  std::optional<TokenId> padding_id() const { return ToId(spec_.padding_id); }
  bool add_bos() const { return add_bos_; }
  bool add_eos() const { return add_eos_; }
  // SPM puts a space before the first word and after special tokens, and Decode takes it away.
  bool add_space_prefix() const { return add_space_prefix_; }

  // Control and unknown tokens: not part of the text.
  bool IsControl(TokenId id) const;
  // Control, unknown and user-defined tokens: those that Encode matches whole.
  bool IsSpecial(TokenId id) const;
  // A token after which generation is over: eos, eot, eom, fim pad/rep/sep by id, and the
  // well-known end tokens by text.
  bool IsEndOfGeneration(TokenId id) const;
  // Those tokens, ascending.
  absl::Span<const TokenId> end_of_generation_ids() const { return end_of_generation_; }

  // SHA-256, in hexadecimal, of the whole vocabulary definition (model, pre-tokenizer, tokens,
  // types, scores, merges, special ids, flags): equal exactly when two files tokenize alike.
  const std::string& sha256() const { return sha256_; }

 private:
  explicit Tokenizer(TokenizerSpec spec);

  absl::Status Initialise();
  absl::Status CheckSpec() const;
  absl::Status ResolveFlags(bool bos_by_default);
  void ClassifyTokens();
  void BuildPieces();

  std::optional<TokenId> ToId(const std::optional<int64_t>& id) const {
    if (!id) return std::nullopt;
    return static_cast<TokenId>(*id);
  }

  absl::Status EncodeText(std::string_view text, bool after_special,
                          std::vector<TokenId>* ids) const;
  absl::Status EncodeBpe(std::string_view text, std::vector<TokenId>* ids) const;

  // Constant after Create.
  TokenizerSpec spec_;
  std::vector<TokenType> types_;     // (n_vocab), every end-of-generation token made kControl
  std::vector<std::string> pieces_;  // (n_vocab), bytes that each token prints
  std::vector<TokenId> end_of_generation_;
  bool add_bos_ = false;
  bool add_eos_ = false;
  bool add_space_prefix_ = false;
  std::string sha256_;
  std::unique_ptr<SpecialTokenMatcher> specials_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;  // "gpt2" only
  std::unique_ptr<BpeModel> bpe_;                // "gpt2" only
  std::unique_ptr<SpmModel> spm_;                // "llama" only
};

}  // namespace layercake::model
