#include "model/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/detokenizer.h"
#include "model/tokenizer/normal_form.h"
#include "model/tokenizer/pre_tokenizer.h"
#include "model/tokenizer/special_tokens.h"
#include "model/tokenizer/spm.h"
#include "model/tokenizer/utf8.h"
#include "model/tokenizer/vocabulary_digest.h"

namespace layercake::model {
namespace {

constexpr char kBpeModel[] = "gpt2";
constexpr char kSpmModel[] = "llama";

// Texts that end a generation whatever the metadata say: a chat model may end its turn with another
// token than the one that the file calls EOS.
constexpr std::string_view kEndTexts[] = {
    "<|eot_id|>",      "<|im_end|>",         "<|end|>",    "<|return|>", "<|call|>",
    "<end_of_turn>",   "<|endoftext|>",      "<|eom_id|>", "</s>",       "<EOT>",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>",      "<turn|>",    "<|fim_pad|>",
    "<|repo_name|>",   "<|file_sep|>"};

// Words of one text that are merged once only; more would cost more memory than it saves time.
constexpr size_t kMaxCachedWords = 16384;
constexpr size_t kMaxCachedWordBytes = 32;

struct NamedId {
  const char* key;
  const std::optional<int64_t>& id;
};

std::array<NamedId, 9> NamedIds(const TokenizerSpec& spec) {
  return {{{"tokenizer.ggml.bos_token_id", spec.bos_id},
           {"tokenizer.ggml.eos_token_id", spec.eos_id},
           {"tokenizer.ggml.eot_token_id", spec.eot_id},
           {"tokenizer.ggml.eom_token_id", spec.eom_id},
           {"tokenizer.ggml.unknown_token_id", spec.unknown_id},
           {"tokenizer.ggml.padding_token_id", spec.padding_id},
           {"tokenizer.ggml.fim_pad_token_id", spec.fim_pad_id},
           {"tokenizer.ggml.fim_rep_token_id", spec.fim_rep_id},
           {"tokenizer.ggml.fim_sep_token_id", spec.fim_sep_id}}};
}

bool IsControlType(TokenType type) {
  return type == TokenType::kControl || type == TokenType::kUnknown;
}

}  // namespace

Tokenizer::Tokenizer(TokenizerSpec spec) : spec_(std::move(spec)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(TokenizerSpec spec) {
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(std::move(spec)));
  LC_RETURN_IF_ERROR(tokenizer->Initialise());
  return tokenizer;
}

absl::Status Tokenizer::Initialise() {
  LC_RETURN_IF_ERROR(CheckSpec());
  const bool is_bpe = spec_.model == kBpeModel;
  if (is_bpe) {
    if (!spec_.pre) {
      return absl::UnimplementedError(
          "tokenizer.ggml.pre is missing: the file does not say how text is cut before merging, "
          "and "
          "a guess gives wrong tokens without any error; convert the model again with current "
          "tools, or set the key to the right name");
    }
    LC_ASSIGN_OR_RETURN(pre_tokenizer_, PreTokenizer::Create(*spec_.pre));
  }
  LC_RETURN_IF_ERROR(ResolveFlags(is_bpe ? pre_tokenizer_->add_bos_by_default() : true));
  ClassifyTokens();
  BuildPieces();

  std::vector<bool> usable(types_.size());
  specials_ = std::make_unique<SpecialTokenMatcher>();
  for (size_t i = 0; i < types_.size(); ++i) {
    const TokenId id = static_cast<TokenId>(i);
    usable[i] = !IsControlType(types_[i]);
    // A token that is not UTF-8 cannot stand in text at a character border.
    if (IsSpecial(id) && IsValidUtf8(pieces_[i])) {
      LC_RETURN_IF_ERROR(specials_->Add(pieces_[i], id, IsControlType(types_[i])));
    }
  }
  if (is_bpe) {
    LC_ASSIGN_OR_RETURN(
        bpe_, BpeModel::Create(pieces_, usable, spec_.merges, pre_tokenizer_->ignore_merges()));
  } else {
    spm_ = std::make_unique<SpmModel>(spec_.tokens, spec_.scores, usable, types_,
                                      ToId(spec_.unknown_id));
  }
  LC_ASSIGN_OR_RETURN(sha256_, VocabularySha256(spec_));
  return absl::OkStatus();
}

absl::Status Tokenizer::CheckSpec() const {
  if (spec_.model != kBpeModel && spec_.model != kSpmModel) {
    return absl::UnimplementedError(absl::StrCat("tokenizer.ggml.model \"", spec_.model,
                                                 "\" is not supported; known are \"", kBpeModel,
                                                 "\" and \"", kSpmModel, "\""));
  }
  const size_t n_vocab = spec_.tokens.size();
  if (n_vocab == 0) {
    return absl::InvalidArgumentError("tokenizer.ggml.tokens is missing or empty");
  }
  if (n_vocab > static_cast<size_t>(std::numeric_limits<TokenId>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.ggml.tokens has ", n_vocab, " items; ids are 31 bits wide"));
  }
  const auto disagree = [n_vocab](const char* key, size_t size) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, " has ", size, " items, but tokenizer.ggml.tokens has ", n_vocab));
  };
  if (!spec_.token_types.empty() && spec_.token_types.size() != n_vocab) {
    return disagree("tokenizer.ggml.token_type", spec_.token_types.size());
  }
  if (spec_.scores.size() != n_vocab && (spec_.model == kSpmModel || !spec_.scores.empty())) {
    return disagree("tokenizer.ggml.scores", spec_.scores.size());
  }
  for (size_t i = 0; i < spec_.scores.size(); ++i) {
    if (std::isnan(spec_.scores[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.ggml.scores[", i, "] is not a number"));
    }
  }
  if (spec_.model == kBpeModel && spec_.merges.empty()) {
    return absl::InvalidArgumentError(
        "tokenizer.ggml.merges is missing or empty; tokenizer.ggml.model \"gpt2\" needs it");
  }
  for (const NamedId& named : NamedIds(spec_)) {
    if (named.id && (*named.id < 0 || static_cast<uint64_t>(*named.id) >= n_vocab)) {
      return absl::InvalidArgumentError(absl::StrCat(named.key, " is ", *named.id,
                                                     ", but the vocabulary has ", n_vocab,
                                                     " tokens; correct the key or remove it"));
    }
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::ResolveFlags(bool bos_by_default) {
  add_bos_ = spec_.add_bos.value_or(bos_by_default);
  add_eos_ = spec_.add_eos.value_or(false);
  add_space_prefix_ = spec_.model == kSpmModel && spec_.add_space_prefix.value_or(true);
  if (add_bos_ && !spec_.bos_id) {
    return absl::InvalidArgumentError(
        "the model wants a beginning-of-text token, but tokenizer.ggml.bos_token_id is missing; "
        "add "
        "the key, or set tokenizer.ggml.add_bos_token to false");
  }
  if (add_eos_ && !spec_.eos_id) {
    return absl::InvalidArgumentError(
        "tokenizer.ggml.add_eos_token is true, but tokenizer.ggml.eos_token_id is missing");
  }
  return absl::OkStatus();
}

void Tokenizer::ClassifyTokens() {
  types_.reserve(spec_.tokens.size());
  for (size_t i = 0; i < spec_.tokens.size(); ++i) {
    types_.push_back(spec_.token_types.empty() ? TokenType::kNormal
                                               : static_cast<TokenType>(spec_.token_types[i]));
  }
  for (const auto* id : {&spec_.eos_id, &spec_.eot_id, &spec_.eom_id, &spec_.fim_pad_id,
                         &spec_.fim_rep_id, &spec_.fim_sep_id}) {
    if (*id) end_of_generation_.push_back(static_cast<TokenId>(**id));
  }
  const absl::flat_hash_set<std::string_view> end_texts(std::begin(kEndTexts), std::end(kEndTexts));
  for (size_t i = 0; i < spec_.tokens.size(); ++i) {
    if (end_texts.contains(spec_.tokens[i])) end_of_generation_.push_back(static_cast<TokenId>(i));
  }
  std::sort(end_of_generation_.begin(), end_of_generation_.end());
  end_of_generation_.erase(std::unique(end_of_generation_.begin(), end_of_generation_.end()),
                           end_of_generation_.end());
  // Some files call such tokens user-defined or normal; a user's text could then end a turn.
  for (const TokenId id : end_of_generation_) {
    types_[static_cast<size_t>(id)] = TokenType::kControl;
  }
  if (spec_.bos_id) types_[static_cast<size_t>(*spec_.bos_id)] = TokenType::kControl;
}

void Tokenizer::BuildPieces() {
  pieces_.reserve(spec_.tokens.size());
  for (size_t i = 0; i < spec_.tokens.size(); ++i) {
    const std::string& text = spec_.tokens[i];
    const bool raw = IsControlType(types_[i]);
    if (spec_.model == kSpmModel) {
      std::optional<char> byte;
      if (types_[i] == TokenType::kByte) byte = ParseByteToken(text);
      if (byte) {
        pieces_.emplace_back(1, *byte);
      } else {
        pieces_.push_back(raw ? text : SpmUnescape(text));
      }
    } else {
      // Added tokens stand in the file as they are, the others in the byte alphabet.
      std::optional<std::string> bytes;
      if (!raw && types_[i] != TokenType::kUserDefined) bytes = DecodeByteAlphabet(text);
      pieces_.push_back(bytes ? *std::move(bytes) : text);
    }
  }
}

bool Tokenizer::IsControl(TokenId id) const {
  return IsValidId(id) && IsControlType(types_[static_cast<size_t>(id)]);
}

bool Tokenizer::IsSpecial(TokenId id) const {
  return IsControl(id) ||
         (IsValidId(id) && types_[static_cast<size_t>(id)] == TokenType::kUserDefined);
}

bool Tokenizer::IsEndOfGeneration(TokenId id) const {
  return std::binary_search(end_of_generation_.begin(), end_of_generation_.end(), id);
}

absl::StatusOr<std::string_view> Tokenizer::TokenToPiece(TokenId id, bool show_control) const {
  if (!IsValidId(id)) {
    return absl::InvalidArgumentError(
        absl::StrCat("token id ", id, " is outside the vocabulary of ", pieces_.size(), " tokens"));
  }
  if (!show_control && IsControl(id)) return std::string_view();
  return pieces_[static_cast<size_t>(id)];
}

absl::StatusOr<std::string> Tokenizer::Decode(absl::Span<const TokenId> ids,
                                              const DecodeOptions& options) const {
  StreamingDetokenizer stream(*this, options);
  std::string text;
  for (const TokenId id : ids) {
    LC_ASSIGN_OR_RETURN(const std::string delta, stream.Feed(id));
    text += delta;
  }
  text += stream.Finish();
  return text;
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::Encode(std::string_view text,
                                                       const EncodeOptions& options) const {
  const TextSpan span{text, options.parse_special};
  return EncodeSpans(absl::MakeConstSpan(&span, 1), options.add_special);
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::EncodeSpans(absl::Span<const TextSpan> spans,
                                                            bool add_special) const {
  size_t total = 0;
  for (const TextSpan& span : spans) {
    if (span.text.size() > kMaxEncodeBytes - total) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot tokenize more than ", kMaxEncodeBytes, " bytes of text at once"));
    }
    total += span.text.size();
  }
  std::string joined;
  std::string_view text = spans.size() == 1 ? spans[0].text : std::string_view();
  if (spans.size() > 1) {
    joined.reserve(total);
    for (const TextSpan& span : spans) joined.append(span.text);
    text = joined;
  }
  const size_t invalid = FirstInvalidUtf8(text);
  if (invalid != std::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("text is not valid UTF-8 at byte ", invalid, " (0x",
                     absl::Hex(static_cast<uint8_t>(text[invalid]), absl::kZeroPad2), ")"));
  }

  std::vector<TokenId> ids;
  size_t plain_begin = 0;     // of the text since the last special token
  bool after_special = true;  // the start counts as one
  size_t at = 0;
  size_t span_end = 0;
  for (const TextSpan& span : spans) {
    span_end += span.text.size();
    while (at < span_end) {
      std::optional<SpecialTokenMatcher::Match> match;
      if (specials_->CanStart(text[at])) {
        match = specials_->MatchFront(text.substr(at), span.parse_special ? span_end - at : 0);
      }
      if (!match) {
        ++at;
        continue;
      }
      LC_RETURN_IF_ERROR(
          EncodeText(text.substr(plain_begin, at - plain_begin), after_special, &ids));
      ids.push_back(match->id);
      after_special = true;
      at += match->bytes;
      plain_begin = at;
    }
  }
  LC_RETURN_IF_ERROR(EncodeText(text.substr(plain_begin), after_special, &ids));

  if (add_special && add_bos_ && (ids.empty() || ids.front() != *bos_id())) {
    ids.insert(ids.begin(), *bos_id());
  }
  if (add_special && add_eos_ && (ids.empty() || ids.back() != *eos_id())) {
    ids.push_back(*eos_id());
  }
  return ids;
}

absl::Status Tokenizer::EncodeText(std::string_view text, bool after_special,
                                   std::vector<TokenId>* ids) const {
  if (text.empty()) return absl::OkStatus();
  if (spm_ != nullptr) {
    const std::string spaced = SpmEscape(text, add_space_prefix_ && after_special);
    spm_->Encode(spaced, ids);
    return absl::OkStatus();
  }
  if (!pre_tokenizer_->normalizes_to_nfc() || IsTriviallyNfc(text)) return EncodeBpe(text, ids);
  LC_ASSIGN_OR_RETURN(const std::string normal, NormalizeNfc(text));
  return EncodeBpe(normal, ids);
}

absl::Status Tokenizer::EncodeBpe(std::string_view text, std::vector<TokenId>* ids) const {
  struct Range {
    size_t begin;
    size_t count;
  };
  std::vector<std::string_view> pieces;
  LC_RETURN_IF_ERROR(pre_tokenizer_->Split(text, &pieces));
  // Words repeat: where one was encoded before in this text, its ids are copied from there.
  absl::flat_hash_map<std::string_view, Range> seen;
  BpeModel::Scratch scratch;
  for (const std::string_view piece : pieces) {
    const bool cacheable = piece.size() <= kMaxCachedWordBytes;
    if (cacheable) {
      const auto found = seen.find(piece);
      if (found != seen.end()) {
        for (size_t i = 0; i < found->second.count; ++i) {
          ids->push_back((*ids)[found->second.begin + i]);
        }
        continue;
      }
    }
    const size_t begin = ids->size();
    bpe_->EncodePiece(piece, &scratch, ids);
    if (cacheable && seen.size() < kMaxCachedWords) {
      seen.emplace(piece, Range{begin, ids->size() - begin});
    }
  }
  return absl::OkStatus();
}

}  // namespace layercake::model
