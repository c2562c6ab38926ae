#include "model/inspect.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "model/gguf/metadata_text.h"
#include "model/gguf/tokenizer_metadata.h"
#include "model/rope.h"
#include "model/weights.h"

namespace layercake::model {
namespace {

using Json = nlohmann::ordered_json;

struct TypeTotal {
  uint64_t tensors = 0;
  uint64_t bytes = 0;
};

struct SizeTable {
  std::map<uint32_t, uint64_t> layers;  // bytes by layer number
  uint64_t outside = 0;                 // embedding, head, rope factors, anything else
  std::map<absl::string_view, TypeTotal> types;
};

SizeTable CountSizes(const ModelFiles& files) {
  SizeTable table;
  for (const TensorInfo& tensor : files.tensors()) {
    TypeTotal& type = table.types[TensorTypeName(tensor.type)];
    ++type.tensors;
    type.bytes += tensor.byte_size;
    uint32_t layer = 0;
    const absl::string_view rest =
        absl::StartsWith(tensor.name, "blk.") ? tensor.name.substr(4) : absl::string_view();
    if (absl::SimpleAtoi(rest.substr(0, rest.find('.')), &layer)) {
      table.layers[layer] += tensor.byte_size;
    } else {
      table.outside += tensor.byte_size;
    }
  }
  return table;
}

std::string Mebibytes(uint64_t bytes) {
  return absl::StrFormat("%.2f MiB", static_cast<double>(bytes) / 1048576.0);
}

absl::Status CheckRope(const ModelFiles& files, const ModelConfig& config) {
  std::vector<float> factors;
  if (config.has_rope_factors && files.has_data()) {
    LC_ASSIGN_OR_RETURN(const absl::Span<const std::byte> bytes,
                        files.TensorBytes("rope_freqs.weight"));
    factors.resize(bytes.size() / sizeof(float));
    std::memcpy(factors.data(), bytes.data(), factors.size() * sizeof(float));
  }
  return ComputeRopeTable(config, factors).status();
}

// Special ids that the file names have to be tokens of its vocabulary. The type of a missing id is
// never looked at.
absl::Status CheckSpecialIds(const TokenizerSpec& spec) {
  const std::pair<absl::string_view, const std::optional<int64_t>*> ids[] = {
      {"bos", &spec.bos_id},         {"eos", &spec.eos_id},         {"eot", &spec.eot_id},
      {"eom", &spec.eom_id},         {"unknown", &spec.unknown_id}, {"padding", &spec.padding_id},
      {"fim_pad", &spec.fim_pad_id}, {"fim_rep", &spec.fim_rep_id}, {"fim_sep", &spec.fim_sep_id},
  };
  for (const auto& [name, id] : ids) {
    if (!id->has_value()) continue;
    if (**id >= 0 && static_cast<uint64_t>(**id) < spec.tokens.size()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("metadata key tokenizer.ggml.", name, "_token_id = ", **id,
                     ", but the vocabulary has ", spec.tokens.size(), " tokens"));
  }
  return absl::OkStatus();
}

std::vector<std::pair<std::string, std::string>> ConfigRows(const ModelConfig& config) {
  std::vector<std::pair<std::string, std::string>> rows = {
      {"layers", absl::StrCat(config.n_layers)},
      {"hidden", absl::StrCat(config.hidden_size)},
      {"ffn", absl::StrCat(config.ffn_size)},
      {"heads", absl::StrCat(config.n_heads, " (", config.n_kv_heads, " for keys and values, ",
                             config.head_dim, " wide)")},
      {"vocabulary", absl::StrCat(config.vocab_size)},
      {"context", absl::StrCat(config.context_length)},
      {"rope", absl::StrCat("base ", config.rope_base, ", ", config.rope_dim, " dimensions, ",
                            config.rope_style == RopeStyle::kNorm ? "neighbouring pairs"
                                                                  : "half-split pairs",
                            config.has_rope_factors ? ", per-frequency factors" : "")},
      {"rope scaling", absl::StrCat(RopeScalingTypeName(config.rope_scaling.type), ", factor ",
                                    config.rope_scaling.factor)},
      {"output", config.tied_output ? "tied to the embedding" : "its own"},
      {"q/k/v bias", config.qkv_bias ? "yes" : "no"},
      {"q/k norm", config.qk_norm ? "yes" : "no"},
  };
  return rows;
}

std::string InspectText(const ModelFiles& files, const InspectOptions& options,
                        const absl::Status& check) {
  std::string text;
  for (const GgufFile& shard : files.shards()) {
    absl::StrAppend(&text, "file      ", shard.name(), "  (GGUF version ", shard.version(), ", ",
                    shard.file_size(), " bytes, ", shard.tensors().size(), " tensors, alignment ",
                    shard.alignment(), ")\n");
  }
  text += absl::StrFormat("identity  %016x\n\nmetadata\n", files.fingerprint());
  for (const MetadataEntry& entry : files.metadata().entries()) {
    absl::StrAppend(&text, "  ", PrintableText(entry.key, options.max_string_bytes), " = ",
                    FormatMetadataValue(entry, options.max_array_items, options.max_string_bytes),
                    "  (", entry.DescribeType(), ")\n");
  }
  if (options.list_tensors && !files.tensors().empty()) {
    text += "\ntensors\n";
    for (const TensorInfo& tensor : files.tensors()) {
      text +=
          absl::StrFormat("  %-32s %-6s %-20s %12u bytes", PrintableText(tensor.name, 80),
                          TensorTypeName(tensor.type), tensor.DescribeShape(), tensor.byte_size);
      text += files.shards().size() > 1 ? absl::StrCat("  file ", tensor.shard + 1, "\n") : "\n";
    }
  }
  const SizeTable sizes = CountSizes(files);
  if (!files.tensors().empty()) text += "\nsizes\n";
  for (const auto& [layer, bytes] : sizes.layers) {
    text += absl::StrFormat("  layer %-10d %12s\n", layer, Mebibytes(bytes));
  }
  if (!files.tensors().empty()) {
    text += absl::StrFormat("  outside layers   %12s\n  all              %12s\n\ntypes\n",
                            Mebibytes(sizes.outside), Mebibytes(files.total_tensor_bytes()));
  }
  for (const auto& [type, total] : sizes.types) {
    text +=
        absl::StrFormat("  %-6s %6d tensors %12s\n", type, total.tensors, Mebibytes(total.bytes));
  }
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(files.metadata(), files.tensors());
  if (config.ok()) {
    absl::StrAppend(&text, "\nmodel     ", ArchitectureName(config->architecture), "\n");
    for (const auto& [name, value] : ConfigRows(*config)) {
      text += absl::StrFormat("  %-14s %s\n", name, value);
    }
    const absl::StatusOr<std::vector<std::string>> unused = UnusedTensors(*config, files.tensors());
    if (unused.ok() && !unused->empty()) {
      absl::StrAppend(
          &text, "\nunused tensors: ", PrintableText(absl::StrJoin(*unused, ", "), 2000), "\n");
    }
  }
  if (check.ok()) {
    text += files.tensors().empty() ? "\ncheck     good (vocabulary only, no weights)\n"
                                    : "\ncheck     good\n";
  } else {
    absl::StrAppend(&text, "\ncheck     FAILED: ", check.message(), "\n");
  }
  return text;
}

std::string InspectJson(const ModelFiles& files, const InspectOptions& options,
                        const absl::Status& check) {
  Json root;
  for (const GgufFile& shard : files.shards()) {
    root["files"].push_back({{"name", shard.name()},
                             {"version", shard.version()},
                             {"bytes", shard.file_size()},
                             {"tensors", shard.tensors().size()},
                             {"alignment", shard.alignment()}});
  }
  root["identity"] = absl::StrFormat("%016x", files.fingerprint());
  root["metadata"] = Json::object();
  for (const MetadataEntry& entry : files.metadata().entries()) {
    root["metadata"][PrintableText(entry.key, options.max_string_bytes)] = {
        {"type", entry.DescribeType()},
        {"value", FormatMetadataValue(entry, options.max_array_items, options.max_string_bytes)}};
  }
  if (options.list_tensors) {
    root["tensors"] = Json::array();
    for (const TensorInfo& tensor : files.tensors()) {
      root["tensors"].push_back(
          {{"name", PrintableText(tensor.name, 255)},
           {"type", std::string(TensorTypeName(tensor.type))},
           {"shape", std::vector<uint64_t>(tensor.ne.begin(), tensor.ne.begin() + tensor.n_dims)},
           {"bytes", tensor.byte_size},
           {"file", tensor.shard}});
    }
  }
  const SizeTable sizes = CountSizes(files);
  root["layer_bytes"] = Json::array();
  for (const auto& [layer, bytes] : sizes.layers) {
    root["layer_bytes"].push_back({{"layer", layer}, {"bytes", bytes}});
  }
  root["outside_layers_bytes"] = sizes.outside;
  root["types"] = Json::object();
  for (const auto& [type, total] : sizes.types) {
    root["types"][std::string(type)] = {{"tensors", total.tensors}, {"bytes", total.bytes}};
  }
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(files.metadata(), files.tensors());
  if (config.ok()) {
    root["model"]["architecture"] = std::string(ArchitectureName(config->architecture));
    for (const auto& [name, value] : ConfigRows(*config)) root["model"][name] = value;
  }
  root["good"] = check.ok();
  if (!check.ok()) root["failure"] = std::string(check.message());
  // Broken UTF-8 (a file name) becomes U+FFFD instead of an exception.
  return root.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

absl::Status CheckModel(const ModelFiles& files) {
  const Metadata& metadata = files.metadata();
  if (files.tensors().empty()) {
    LC_ASSIGN_OR_RETURN(const TokenizerSpec vocabulary, LoadTokenizerSpec(metadata));
    return CheckSpecialIds(vocabulary);
  }
  LC_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(metadata, files.tensors()));
  LC_RETURN_IF_ERROR(PlanWeights(config, files.tensors(), 0, config.n_layers).status());
  LC_RETURN_IF_ERROR(CheckRope(files, config));
  LC_ASSIGN_OR_RETURN(const TokenizerSpec spec, LoadTokenizerSpec(metadata));
  LC_RETURN_IF_ERROR(CheckSpecialIds(spec));
  return LoadChatTemplates(metadata).status();
}

std::string InspectModel(const ModelFiles& files, const InspectOptions& options) {
  const absl::Status check = CheckModel(files);
  return options.json ? InspectJson(files, options, check) : InspectText(files, options, check);
}

}  // namespace layercake::model
