// Cuts text into the pieces that byte-level BPE merges within, by the regular expressions that the
// vocabulary was trained with (tokenizer.ggml.pre names them).
// Immutable after Create; any thread.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace layercake::model {

class PreTokenizer {
 public:
  // `name` as in tokenizer.ggml.pre. Unimplemented, with the known names, for another one.
  static absl::StatusOr<std::unique_ptr<PreTokenizer>> Create(std::string_view name);

  ~PreTokenizer();
  PreTokenizer(const PreTokenizer&) = delete;
  PreTokenizer& operator=(const PreTokenizer&) = delete;

  // Replaces `pieces` by the pieces of `text`, in order; joined they are `text`. `text` must be
  // valid UTF-8 and outlive the pieces. Time is linear in the text; Internal when PCRE2 gives up.
  absl::Status Split(std::string_view text, std::vector<std::string_view>* pieces) const;

  // What else comes with the name.
  bool ignore_merges() const { return ignore_merges_; }
  bool add_bos_by_default() const { return add_bos_by_default_; }
  bool normalizes_to_nfc() const { return normalizes_to_nfc_; }

 private:
  class Pattern;

  PreTokenizer();

  // Each cuts what the one before left: its matches become pieces, and so do the gaps.
  std::vector<Pattern> patterns_;
  bool ignore_merges_ = false;
  bool add_bos_by_default_ = false;
  bool normalizes_to_nfc_ = false;
};

}  // namespace layercake::model
