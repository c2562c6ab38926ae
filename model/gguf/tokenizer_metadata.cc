#include "model/gguf/tokenizer_metadata.h"

#include <cstdint>
#include <limits>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace layercake::model {
namespace {

constexpr absl::string_view kTemplateKey = "tokenizer.chat_template";

absl::Status ReadId(const Metadata& metadata, absl::string_view name, std::optional<int64_t>& id) {
  const std::string key = absl::StrCat("tokenizer.ggml.", name, "_token_id");
  if (!metadata.Has(key)) return absl::OkStatus();
  LC_ASSIGN_OR_RETURN(id, metadata.GetI64(key));
  return absl::OkStatus();
}

absl::Status ReadFlag(const Metadata& metadata, absl::string_view name, std::optional<bool>& flag) {
  const std::string key = absl::StrCat("tokenizer.ggml.", name);
  if (!metadata.Has(key)) return absl::OkStatus();
  LC_ASSIGN_OR_RETURN(flag, metadata.GetBool(key));
  return absl::OkStatus();
}

absl::Status ReadStrings(const Metadata& metadata, absl::string_view key,
                         std::vector<std::string>& strings) {
  LC_ASSIGN_OR_RETURN(const std::vector<absl::string_view> views, metadata.GetStringArray(key));
  strings.reserve(views.size());
  for (const absl::string_view view : views) strings.emplace_back(view);
  return absl::OkStatus();
}

absl::Status CheckLength(absl::string_view key, size_t length, size_t tokens) {
  if (length == tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "metadata key ", key, " has ", length, " elements, but tokenizer.ggml.tokens has ", tokens));
}

absl::Status ReadArrays(const Metadata& metadata, TokenizerSpec& spec) {
  LC_RETURN_IF_ERROR(ReadStrings(metadata, "tokenizer.ggml.tokens", spec.tokens));
  constexpr absl::string_view kTypes = "tokenizer.ggml.token_type";
  if (metadata.Has(kTypes)) {
    LC_ASSIGN_OR_RETURN(const std::vector<int64_t> types, metadata.GetIntArray(kTypes));
    LC_RETURN_IF_ERROR(CheckLength(kTypes, types.size(), spec.tokens.size()));
    spec.token_types.reserve(types.size());
    for (const int64_t type : types) {
      if (type < std::numeric_limits<int32_t>::min() ||
          type > std::numeric_limits<int32_t>::max()) {
        return absl::InvalidArgumentError(
            absl::StrCat("metadata key ", kTypes, " holds ", type, ", which does not fit 32 bits"));
      }
      spec.token_types.push_back(static_cast<int32_t>(type));
    }
  }
  constexpr absl::string_view kScores = "tokenizer.ggml.scores";
  if (metadata.Has(kScores)) {
    LC_ASSIGN_OR_RETURN(spec.scores, metadata.GetFloatArray(kScores));
    LC_RETURN_IF_ERROR(CheckLength(kScores, spec.scores.size(), spec.tokens.size()));
  }
  constexpr absl::string_view kMerges = "tokenizer.ggml.merges";
  if (metadata.Has(kMerges)) LC_RETURN_IF_ERROR(ReadStrings(metadata, kMerges, spec.merges));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> LoadTokenizerSpec(const Metadata& metadata) {
  TokenizerSpec spec;
  LC_ASSIGN_OR_RETURN(const absl::string_view model, metadata.GetString("tokenizer.ggml.model"));
  spec.model = std::string(model);
  if (metadata.Has("tokenizer.ggml.pre")) {
    LC_ASSIGN_OR_RETURN(const absl::string_view pre, metadata.GetString("tokenizer.ggml.pre"));
    spec.pre = std::string(pre);
  }
  LC_RETURN_IF_ERROR(ReadArrays(metadata, spec));
  LC_RETURN_IF_ERROR(ReadId(metadata, "bos", spec.bos_id));
  LC_RETURN_IF_ERROR(ReadId(metadata, "eos", spec.eos_id));
  LC_RETURN_IF_ERROR(ReadId(metadata, "eot", spec.eot_id));
  LC_RETURN_IF_ERROR(ReadId(metadata, "eom", spec.eom_id));
  LC_RETURN_IF_ERROR(ReadId(metadata, "unknown", spec.unknown_id));
  LC_RETURN_IF_ERROR(ReadId(metadata, "padding", spec.padding_id));
  LC_RETURN_IF_ERROR(ReadId(metadata, "fim_pad", spec.fim_pad_id));
  LC_RETURN_IF_ERROR(ReadId(metadata, "fim_rep", spec.fim_rep_id));
  LC_RETURN_IF_ERROR(ReadId(metadata, "fim_sep", spec.fim_sep_id));
  LC_RETURN_IF_ERROR(ReadFlag(metadata, "add_bos_token", spec.add_bos));
  LC_RETURN_IF_ERROR(ReadFlag(metadata, "add_eos_token", spec.add_eos));
  LC_RETURN_IF_ERROR(ReadFlag(metadata, "add_space_prefix", spec.add_space_prefix));
  return spec;
}

absl::StatusOr<ChatTemplates> LoadChatTemplates(const Metadata& metadata) {
  ChatTemplates templates;
  LC_ASSIGN_OR_RETURN(const absl::string_view main, metadata.GetStringOr(kTemplateKey, ""));
  templates.default_template = std::string(main);
  const std::string prefix = absl::StrCat(kTemplateKey, ".");
  for (const MetadataEntry& entry : metadata.entries()) {
    if (!absl::StartsWith(entry.key, prefix)) continue;
    LC_ASSIGN_OR_RETURN(const absl::string_view source, metadata.GetString(entry.key));
    templates.named.push_back({std::string(entry.key.substr(prefix.size())), std::string(source)});
  }
  return templates;
}

}  // namespace layercake::model
