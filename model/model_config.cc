#include "model/model_config.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/gguf/metadata_text.h"

namespace layercake::model {
namespace {

// Reads "ARCH.name" keys, every number within limits.
class ConfigReader {
 public:
  ConfigReader(const Metadata& metadata, absl::string_view architecture)
      : metadata_(metadata), architecture_(architecture) {}

  std::string Key(absl::string_view name) const { return absl::StrCat(architecture_, ".", name); }
  bool Has(absl::string_view name) const { return metadata_.Has(Key(name)); }

  absl::StatusOr<uint32_t> Number(absl::string_view name, uint32_t max) const {
    LC_ASSIGN_OR_RETURN(const uint64_t value, metadata_.GetU64(Key(name)));
    return InLimits(name, value, max);
  }
  absl::StatusOr<uint32_t> NumberOr(absl::string_view name, uint32_t max, uint32_t fallback) const {
    if (!Has(name)) return fallback;
    return Number(name, max);
  }

  // A number that may be given per layer, as long as all layers agree.
  absl::StatusOr<uint32_t> Uniform(absl::string_view name, uint32_t max, uint32_t n_layers) const {
    LC_ASSIGN_OR_RETURN(const std::vector<uint32_t> values,
                        metadata_.GetU32PerLayer(Key(name), n_layers));
    for (size_t i = 1; i < values.size(); ++i) {
      if (values[i] == values[0]) continue;
      return absl::UnimplementedError(absl::StrCat(
          "metadata key ", Key(name), " is ", values[0], " for layer 0 and ", values[i],
          " for layer ", i, ": layers of different sizes are not supported"));
    }
    return InLimits(name, values[0], max);
  }

  absl::StatusOr<double> FloatOr(absl::string_view name, double min, double max,
                                 double fallback) const {
    LC_ASSIGN_OR_RETURN(const double value, metadata_.GetFloatOr(Key(name), fallback));
    // Written so that NaN fails too.
    if (!(value >= min && value <= max)) {
      return absl::InvalidArgumentError(
          absl::StrCat("metadata key ", Key(name), " = ", value, ", expected ", min, " to ", max));
    }
    return value;
  }

  const Metadata& metadata() const { return metadata_; }

 private:
  absl::StatusOr<uint32_t> InLimits(absl::string_view name, uint64_t value, uint32_t max) const {
    if (value == 0 || value > max) {
      return absl::InvalidArgumentError(
          absl::StrCat("metadata key ", Key(name), " = ", value, ", expected 1 to ", max));
    }
    return static_cast<uint32_t>(value);
  }

  const Metadata& metadata_;
  const absl::string_view architecture_;
};

absl::StatusOr<Architecture> ParseArchitecture(const Metadata& metadata) {
  LC_ASSIGN_OR_RETURN(const absl::string_view name, metadata.GetString("general.architecture"));
  for (const Architecture architecture :
       {Architecture::kLlama, Architecture::kQwen2, Architecture::kQwen3}) {
    if (name == ArchitectureName(architecture)) return architecture;
  }
  return absl::UnimplementedError(absl::StrCat("general.architecture = \"", PrintableText(name, 80),
                                               "\" is not supported; llama, qwen2 and qwen3 are"));
}

// Features that some files of a known architecture have and that would silently change the answer.
absl::Status RefuseUnsupportedFeatures(const ConfigReader& reader) {
  LC_ASSIGN_OR_RETURN(const uint32_t experts,
                      reader.metadata().GetU32Or(reader.Key("expert_count"), 0));
  if (experts > 0) {
    return absl::UnimplementedError(absl::StrCat(reader.Key("expert_count"), " = ", experts,
                                                 ": mixtures of experts are not supported"));
  }
  LC_ASSIGN_OR_RETURN(const bool causal,
                      reader.metadata().GetBoolOr(reader.Key("attention.causal"), true));
  if (!causal) {
    return absl::UnimplementedError(absl::StrCat(reader.Key("attention.causal"),
                                                 " = false: embedding models are not supported"));
  }
  for (const absl::string_view name :
       {"logit_scale", "attention.scale", "final_logit_softcapping", "attn_logit_softcapping",
        "residual_scale", "embedding_scale"}) {
    LC_ASSIGN_OR_RETURN(const double scale, reader.metadata().GetFloatOr(reader.Key(name), 0.0));
    if (scale == 0.0) continue;
    return absl::UnimplementedError(
        absl::StrCat(reader.Key(name), " = ", scale, " is not supported"));
  }
  return absl::OkStatus();
}

absl::Status ReadHeads(const ConfigReader& reader, ModelConfig& config) {
  LC_ASSIGN_OR_RETURN(config.n_heads, reader.Uniform("attention.head_count", ModelLimits::kMaxHeads,
                                                     config.n_layers));
  config.n_kv_heads = config.n_heads;
  if (reader.Has("attention.head_count_kv")) {
    LC_ASSIGN_OR_RETURN(config.n_kv_heads, reader.Uniform("attention.head_count_kv",
                                                          ModelLimits::kMaxHeads, config.n_layers));
  }
  if (config.n_heads % config.n_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        reader.Key("attention.head_count"), " = ", config.n_heads, " is not a multiple of ",
        reader.Key("attention.head_count_kv"), " = ", config.n_kv_heads));
  }
  if (!reader.Has("attention.key_length") && config.hidden_size % config.n_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(reader.Key("embedding_length"), " = ", config.hidden_size,
                     " is not a multiple of ", reader.Key("attention.head_count"), " = ",
                     config.n_heads, ", and there is no ", reader.Key("attention.key_length")));
  }
  const uint32_t width = std::max(1u, config.hidden_size / config.n_heads);
  LC_ASSIGN_OR_RETURN(config.head_dim,
                      reader.NumberOr("attention.key_length", ModelLimits::kMaxHeadDim, width));
  LC_ASSIGN_OR_RETURN(const uint32_t value_dim,
                      reader.NumberOr("attention.value_length", ModelLimits::kMaxHeadDim, width));
  if (value_dim != config.head_dim) {
    return absl::UnimplementedError(
        absl::StrCat(reader.Key("attention.key_length"), " = ", config.head_dim, ", but ",
                     reader.Key("attention.value_length"), " = ", value_dim,
                     ": heads whose keys and values differ in width are not supported"));
  }
  if (config.head_dim % 2 != 0 || config.head_dim > ModelLimits::kMaxHeadDim) {
    return absl::InvalidArgumentError(absl::StrCat("a head is ", config.head_dim,
                                                   " wide; expected an even number of at most ",
                                                   ModelLimits::kMaxHeadDim));
  }
  return absl::OkStatus();
}

absl::StatusOr<RopeScalingType> ParseScalingType(const ConfigReader& reader) {
  // Files without a type but with a factor are linear.
  LC_ASSIGN_OR_RETURN(const absl::string_view name,
                      reader.metadata().GetStringOr(reader.Key("rope.scaling.type"), "linear"));
  for (const RopeScalingType type :
       {RopeScalingType::kNone, RopeScalingType::kLinear, RopeScalingType::kYarn}) {
    if (name == RopeScalingTypeName(type)) return type;
  }
  return absl::UnimplementedError(absl::StrCat(reader.Key("rope.scaling.type"), " = \"",
                                               PrintableText(name, 80),
                                               "\" is not supported; none, linear and yarn are"));
}

absl::Status ReadRopeScaling(const ConfigReader& reader, ModelConfig& config) {
  constexpr double kMaxFactor = 1e4;
  RopeScaling& scaling = config.rope_scaling;
  LC_ASSIGN_OR_RETURN(scaling.type, ParseScalingType(reader));
  const absl::string_view factor_key =
      reader.Has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
  // Converters write 0 for "no scaling".
  LC_ASSIGN_OR_RETURN(const double factor, reader.FloatOr(factor_key, 0.0, kMaxFactor, 0.0));
  scaling.factor = factor == 0.0 ? 1.0 : factor;
  if (scaling.type == RopeScalingType::kNone ||
      (scaling.type == RopeScalingType::kLinear && scaling.factor == 1.0)) {
    scaling.type = RopeScalingType::kNone;
    scaling.factor = 1.0;
    return absl::OkStatus();
  }
  if (scaling.type == RopeScalingType::kLinear) return absl::OkStatus();
  LC_ASSIGN_OR_RETURN(scaling.original_context_length,
                      reader.NumberOr("rope.scaling.original_context_length",
                                      ModelLimits::kMaxContextLength, config.context_length));
  const RopeScaling defaults;
  LC_ASSIGN_OR_RETURN(scaling.ext_factor, reader.FloatOr("rope.scaling.yarn_ext_factor", 0.0, 1.0,
                                                         defaults.ext_factor));
  const bool has_yarn_key = reader.Has("rope.scaling.yarn_attn_factor");
  LC_ASSIGN_OR_RETURN(
      scaling.attn_factor,
      reader.FloatOr(has_yarn_key ? "rope.scaling.yarn_attn_factor" : "rope.scaling.attn_factor",
                     1e-3, 1e3, defaults.attn_factor));
  LC_ASSIGN_OR_RETURN(scaling.beta_fast,
                      reader.FloatOr("rope.scaling.yarn_beta_fast", 1e-3, 1e6, defaults.beta_fast));
  LC_ASSIGN_OR_RETURN(scaling.beta_slow,
                      reader.FloatOr("rope.scaling.yarn_beta_slow", 1e-3, 1e6, defaults.beta_slow));
  LC_ASSIGN_OR_RETURN(scaling.log_multiplier, reader.FloatOr("rope.scaling.yarn_log_multiplier",
                                                             0.0, 1e3, defaults.log_multiplier));
  return absl::OkStatus();
}

absl::Status ReadRope(const ConfigReader& reader, ModelConfig& config) {
  config.rope_style =
      config.architecture == Architecture::kLlama ? RopeStyle::kNorm : RopeStyle::kNeox;
  LC_ASSIGN_OR_RETURN(config.rope_dim, reader.NumberOr("rope.dimension_count",
                                                       ModelLimits::kMaxHeadDim, config.head_dim));
  if (config.rope_dim % 2 != 0 || config.rope_dim > config.head_dim) {
    return absl::InvalidArgumentError(
        absl::StrCat(reader.Key("rope.dimension_count"), " = ", config.rope_dim,
                     ", expected an even number of at most the head width ", config.head_dim));
  }
  LC_ASSIGN_OR_RETURN(config.rope_base, reader.FloatOr("rope.freq_base", 1.001, 1e12, 10000.0));
  return ReadRopeScaling(reader, config);
}

const TensorInfo* Find(absl::Span<const TensorInfo> tensors, absl::string_view name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const TensorInfo& tensor) { return tensor.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

absl::Status ReadVocabSize(const ConfigReader& reader, absl::Span<const TensorInfo> tensors,
                           ModelConfig& config) {
  uint64_t size = 0;
  absl::string_view from = "the number of tokenizer.ggml.tokens";
  if (const MetadataEntry* tokens = reader.metadata().Find("tokenizer.ggml.tokens")) {
    size = tokens->count;
  } else if (reader.Has("vocab_size")) {
    LC_ASSIGN_OR_RETURN(size, reader.metadata().GetU64(reader.Key("vocab_size")));
    from = "the vocab_size key";
  } else if (const TensorInfo* embedding = Find(tensors, "token_embd.weight")) {
    size = embedding->ne[1];
    from = "the height of token_embd.weight";
  } else {
    return absl::NotFoundError(
        "the vocabulary size is in no key (tokenizer.ggml.tokens, vocab_size) and no tensor");
  }
  if (size == 0 || size > ModelLimits::kMaxVocabSize) {
    return absl::InvalidArgumentError(
        absl::StrCat(from, " is ", size, ", expected 1 to ", ModelLimits::kMaxVocabSize));
  }
  config.vocab_size = static_cast<uint32_t>(size);
  return absl::OkStatus();
}

void ReadTensorFacts(absl::Span<const TensorInfo> tensors, ModelConfig& config) {
  config.tied_output = Find(tensors, "output.weight") == nullptr;
  config.qkv_bias = config.architecture == Architecture::kQwen2 ||
                    Find(tensors, "blk.0.attn_q.bias") != nullptr ||
                    Find(tensors, "blk.0.attn_qkv.bias") != nullptr;
  config.qk_norm = config.architecture == Architecture::kQwen3 ||
                   Find(tensors, "blk.0.attn_q_norm.weight") != nullptr;
  config.has_rope_factors = Find(tensors, "rope_freqs.weight") != nullptr;
}

}  // namespace

absl::string_view ArchitectureName(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama:
      return "llama";
    case Architecture::kQwen2:
      return "qwen2";
    case Architecture::kQwen3:
      return "qwen3";
  }
  return "invalid";
}

absl::string_view RopeScalingTypeName(RopeScalingType type) {
  switch (type) {
    case RopeScalingType::kNone:
      return "none";
    case RopeScalingType::kLinear:
      return "linear";
    case RopeScalingType::kYarn:
      return "yarn";
  }
  return "invalid";
}

absl::StatusOr<ModelConfig> ReadModelConfig(const Metadata& metadata,
                                            absl::Span<const TensorInfo> tensors) {
  ModelConfig config;
  LC_ASSIGN_OR_RETURN(config.architecture, ParseArchitecture(metadata));
  const ConfigReader reader(metadata, ArchitectureName(config.architecture));
  LC_ASSIGN_OR_RETURN(const absl::string_view name, metadata.GetStringOr("general.name", ""));
  config.name = std::string(name);
  LC_RETURN_IF_ERROR(RefuseUnsupportedFeatures(reader));
  LC_ASSIGN_OR_RETURN(config.n_layers, reader.Number("block_count", ModelLimits::kMaxLayers));
  LC_ASSIGN_OR_RETURN(config.hidden_size,
                      reader.Number("embedding_length", ModelLimits::kMaxHiddenSize));
  LC_ASSIGN_OR_RETURN(config.ffn_size, reader.Uniform("feed_forward_length",
                                                      ModelLimits::kMaxFfnSize, config.n_layers));
  LC_ASSIGN_OR_RETURN(config.context_length,
                      reader.Number("context_length", ModelLimits::kMaxContextLength));
  constexpr absl::string_view kEps = "attention.layer_norm_rms_epsilon";
  if (!reader.Has(kEps)) return reader.metadata().GetFloat(reader.Key(kEps)).status();
  LC_ASSIGN_OR_RETURN(const double eps, reader.FloatOr(kEps, 1e-12, 0.1, 0.0));
  config.norm_eps = static_cast<float>(eps);
  LC_RETURN_IF_ERROR(ReadHeads(reader, config));
  LC_RETURN_IF_ERROR(ReadRope(reader, config));
  LC_RETURN_IF_ERROR(ReadVocabSize(reader, tensors, config));
  ReadTensorFacts(tensors, config);
  return config;
}

}  // namespace layercake::model
