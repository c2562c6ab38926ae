#include "model/weights.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/gguf/metadata_text.h"

namespace layercake::model {
namespace {

// What a role asks of its tensor. `rows` is 0 for a vector of `columns` elements.
struct Wanted {
  WeightRole role;
  std::string name;
  uint64_t rows;
  uint64_t columns;
  bool required;
};

class Planner {
 public:
  Planner(const ModelConfig& config, absl::Span<const TensorInfo> tensors, uint32_t layer_first,
          uint32_t layer_end)
      : config_(config), tensors_(tensors) {
    map_.layer_first = layer_first;
    map_.layer_end = layer_end;
    for (const TensorInfo& tensor : tensors) index_.emplace(tensor.name, &tensor);
  }

  absl::StatusOr<WeightMap> Plan() {
    for (const absl::string_view name : {"rope_factors_long.weight", "rope_factors_short.weight"}) {
      if (!index_.contains(name)) continue;
      return absl::UnimplementedError(
          absl::StrCat("tensor ", name, ": rope scaling of type longrope is not supported"));
    }
    LC_RETURN_IF_ERROR(PlanGlobals());
    for (uint32_t layer = map_.layer_first; layer < map_.layer_end; ++layer) {
      LC_RETURN_IF_ERROR(PlanLayer(layer));
    }
    LC_RETURN_IF_ERROR(RefuseIgnoredTensors());
    CountBytes();
    return std::move(map_);
  }

 private:
  absl::Status PlanGlobals() {
    const bool is_first = map_.layer_first == 0;
    const bool is_last = map_.layer_end == config_.n_layers;
    const uint64_t hidden = config_.hidden_size;
    const uint64_t vocab = config_.vocab_size;
    if (is_first) {
      LC_RETURN_IF_ERROR(
          Add({WeightRole::kTokenEmbedding, "token_embd.weight", vocab, hidden, true}));
    }
    if (is_last) {
      const char* output = config_.tied_output ? "token_embd.weight" : "output.weight";
      LC_RETURN_IF_ERROR(Add({WeightRole::kOutputNorm, "output_norm.weight", 0, hidden, true}));
      LC_RETURN_IF_ERROR(Add({WeightRole::kOutput, output, vocab, hidden, true}));
      LC_RETURN_IF_ERROR(Add({WeightRole::kOutputBias, "output.bias", 0, vocab, false}));
    }
    return Add({WeightRole::kRopeFreqs, "rope_freqs.weight", 0, config_.rope_dim / 2,
                config_.has_rope_factors});
  }

  absl::Status PlanLayer(uint32_t layer) {
    layer_ = static_cast<int32_t>(layer);
    prefix_ = absl::StrCat("blk.", layer, ".");
    const uint64_t hidden = config_.hidden_size;
    const uint64_t ffn = config_.ffn_size;
    const uint64_t head = config_.head_dim;
    LC_RETURN_IF_ERROR(PlanQkv());
    const Wanted wanted[] = {
        {WeightRole::kAttnNorm, "attn_norm.weight", 0, hidden, true},
        {WeightRole::kAttnQNorm, "attn_q_norm.weight", 0, head, config_.qk_norm},
        {WeightRole::kAttnKNorm, "attn_k_norm.weight", 0, head, config_.qk_norm},
        {WeightRole::kAttnOutput, "attn_output.weight", hidden, config_.q_size(), true},
        {WeightRole::kAttnOutputBias, "attn_output.bias", 0, hidden, false},
        {WeightRole::kFfnNorm, "ffn_norm.weight", 0, hidden, true},
        {WeightRole::kFfnGate, "ffn_gate.weight", ffn, hidden, true},
        {WeightRole::kFfnUp, "ffn_up.weight", ffn, hidden, true},
        {WeightRole::kFfnDown, "ffn_down.weight", hidden, ffn, true},
        {WeightRole::kFfnGateBias, "ffn_gate.bias", 0, ffn, false},
        {WeightRole::kFfnUpBias, "ffn_up.bias", 0, ffn, false},
        {WeightRole::kFfnDownBias, "ffn_down.bias", 0, hidden, false},
    };
    for (const Wanted& one : wanted) LC_RETURN_IF_ERROR(Add(one));
    return absl::OkStatus();
  }

  absl::Status PlanQkv() {
    const uint64_t hidden = config_.hidden_size;
    const uint64_t q = config_.q_size();
    const uint64_t kv = config_.kv_size();
    if (index_.contains(absl::StrCat(prefix_, "attn_qkv.weight"))) return PlanFusedQkv();
    const Wanted wanted[] = {
        {WeightRole::kAttnQ, "attn_q.weight", q, hidden, true},
        {WeightRole::kAttnK, "attn_k.weight", kv, hidden, true},
        {WeightRole::kAttnV, "attn_v.weight", kv, hidden, true},
        {WeightRole::kAttnQBias, "attn_q.bias", 0, q, config_.qkv_bias},
        {WeightRole::kAttnKBias, "attn_k.bias", 0, kv, config_.qkv_bias},
        {WeightRole::kAttnVBias, "attn_v.bias", 0, kv, config_.qkv_bias},
    };
    for (const Wanted& one : wanted) LC_RETURN_IF_ERROR(Add(one));
    return absl::OkStatus();
  }

  // Rows q, k, v of one tensor, in this order; likewise the bias.
  absl::Status PlanFusedQkv() {
    const uint64_t q = config_.q_size();
    const uint64_t kv = config_.kv_size();
    constexpr WeightRole kRoles[] = {WeightRole::kAttnQ, WeightRole::kAttnK, WeightRole::kAttnV};
    constexpr WeightRole kBiases[] = {WeightRole::kAttnQBias, WeightRole::kAttnKBias,
                                      WeightRole::kAttnVBias};
    const size_t weight_at = map_.weights.size();
    LC_RETURN_IF_ERROR(
        Add({WeightRole::kAttnQ, "attn_qkv.weight", q + 2 * kv, config_.hidden_size, true}));
    const Weight fused = map_.weights.back();
    map_.weights.resize(weight_at);
    uint64_t row = 0;
    for (int i = 0; i < 3; ++i) {
      Weight view = fused;
      view.role = kRoles[i];
      view.rows = i == 0 ? q : kv;
      view.tensor_offset = row * fused.row_bytes;
      view.byte_size = view.rows * fused.row_bytes;
      row += view.rows;
      map_.weights.push_back(std::move(view));
    }
    LC_RETURN_IF_ERROR(
        Add({WeightRole::kAttnQBias, "attn_qkv.bias", 0, q + 2 * kv, config_.qkv_bias}));
    if (map_.weights.back().role != WeightRole::kAttnQBias) return absl::OkStatus();
    const Weight bias = map_.weights.back();
    map_.weights.pop_back();
    uint64_t element = 0;
    for (int i = 0; i < 3; ++i) {
      Weight view = bias;
      view.role = kBiases[i];
      view.columns = i == 0 ? q : kv;
      view.row_bytes = view.columns * sizeof(float);
      view.tensor_offset = element * sizeof(float);
      view.byte_size = view.row_bytes;
      element += view.columns;
      map_.weights.push_back(std::move(view));
    }
    return absl::OkStatus();
  }

  std::string StageLayers() const {
    return absl::StrCat("the stage with layers ", map_.layer_first, " to ", map_.layer_end - 1);
  }

  absl::Status Add(const Wanted& wanted) {
    const std::string name = absl::StrCat(prefix_, wanted.name);
    const auto found = index_.find(name);
    if (found == index_.end()) {
      if (!wanted.required) return absl::OkStatus();
      return absl::NotFoundError(absl::StrCat("tensor ", name, " is missing from the model file; ",
                                              StageLayers(), " needs it"));
    }
    const TensorInfo& tensor = *found->second;
    const bool is_vector = wanted.rows == 0;
    const uint64_t rows = is_vector ? 1 : wanted.rows;
    if (tensor.ne != std::array<uint64_t, 4>{wanted.columns, rows, 1, 1}) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", name, " has shape ", tensor.DescribeShape(),
                       ", but the model's metadata ask for {", wanted.columns,
                       is_vector ? "" : absl::StrCat(", ", rows), "}"));
    }
    if (is_vector && tensor.type != TensorType::kF32) {
      return absl::UnimplementedError(absl::StrCat("tensor ", name, " is ",
                                                   TensorTypeName(tensor.type),
                                                   "; norms, biases and rope factors must be F32"));
    }
    Weight weight;
    weight.role = wanted.role;
    weight.layer = layer_;
    weight.tensor_name = name;
    weight.type = tensor.type;
    weight.rows = rows;
    weight.columns = wanted.columns;
    weight.row_bytes = tensor.byte_size / rows;
    weight.byte_size = tensor.byte_size;
    map_.weights.push_back(std::move(weight));
    return absl::OkStatus();
  }

  absl::Status RefuseIgnoredTensors() const {
    absl::flat_hash_set<absl::string_view> used;
    for (const Weight& weight : map_.weights) used.insert(weight.tensor_name);
    for (const TensorInfo& tensor : tensors_) {
      if (!absl::StartsWith(tensor.name, "blk.") || used.contains(tensor.name)) continue;
      const absl::string_view rest = tensor.name.substr(4);
      uint32_t layer = 0;
      if (!absl::SimpleAtoi(rest.substr(0, rest.find('.')), &layer)) continue;
      if (layer < map_.layer_first || layer >= map_.layer_end) continue;
      return absl::UnimplementedError(absl::StrCat(
          "tensor ", PrintableText(tensor.name, 80), " has no place in architecture ",
          ArchitectureName(config_.architecture), " as we run it; ignoring it would answer wrong"));
    }
    return absl::OkStatus();
  }

  void CountBytes() {
    const Weight* embedding = map_.Find(WeightRole::kTokenEmbedding);
    for (const Weight& weight : map_.weights) {
      const bool shared = embedding != nullptr && &weight != embedding &&
                          weight.tensor_name == embedding->tensor_name;
      if (!shared) map_.total_bytes += weight.byte_size;
    }
  }

  const ModelConfig& config_;
  const absl::Span<const TensorInfo> tensors_;
  absl::flat_hash_map<absl::string_view, const TensorInfo*> index_;
  WeightMap map_;
  int32_t layer_ = Weight::kNoLayer;
  std::string prefix_;
};

}  // namespace

absl::string_view WeightRoleName(WeightRole role) {
  switch (role) {
    case WeightRole::kTokenEmbedding:
      return "token_embedding";
    case WeightRole::kOutputNorm:
      return "output_norm";
    case WeightRole::kOutput:
      return "output";
    case WeightRole::kOutputBias:
      return "output_bias";
    case WeightRole::kRopeFreqs:
      return "rope_freqs";
    case WeightRole::kAttnNorm:
      return "attn_norm";
    case WeightRole::kAttnQ:
      return "attn_q";
    case WeightRole::kAttnK:
      return "attn_k";
    case WeightRole::kAttnV:
      return "attn_v";
    case WeightRole::kAttnQBias:
      return "attn_q_bias";
    case WeightRole::kAttnKBias:
      return "attn_k_bias";
    case WeightRole::kAttnVBias:
      return "attn_v_bias";
    case WeightRole::kAttnQNorm:
      return "attn_q_norm";
    case WeightRole::kAttnKNorm:
      return "attn_k_norm";
    case WeightRole::kAttnOutput:
      return "attn_output";
    case WeightRole::kAttnOutputBias:
      return "attn_output_bias";
    case WeightRole::kFfnNorm:
      return "ffn_norm";
    case WeightRole::kFfnGate:
      return "ffn_gate";
    case WeightRole::kFfnUp:
      return "ffn_up";
    case WeightRole::kFfnDown:
      return "ffn_down";
    case WeightRole::kFfnGateBias:
      return "ffn_gate_bias";
    case WeightRole::kFfnUpBias:
      return "ffn_up_bias";
    case WeightRole::kFfnDownBias:
      return "ffn_down_bias";
  }
  return "invalid";
}

const Weight* WeightMap::Find(WeightRole role, int32_t layer) const {
  for (const Weight& weight : weights) {
    if (weight.role == role && weight.layer == layer) return &weight;
  }
  return nullptr;
}

absl::StatusOr<WeightMap> PlanWeights(const ModelConfig& config,
                                      absl::Span<const TensorInfo> tensors, uint32_t layer_first,
                                      uint32_t layer_end) {
  if (layer_first >= layer_end || layer_end > config.n_layers) {
    return absl::InvalidArgumentError(absl::StrCat("plan layers [", layer_first, ", ", layer_end,
                                                   ") of a model of ", config.n_layers, " layers"));
  }
  return Planner(config, tensors, layer_first, layer_end).Plan();
}

absl::StatusOr<std::vector<std::string>> UnusedTensors(const ModelConfig& config,
                                                       absl::Span<const TensorInfo> tensors) {
  LC_ASSIGN_OR_RETURN(const WeightMap map, PlanWeights(config, tensors, 0, config.n_layers));
  absl::flat_hash_set<absl::string_view> used;
  for (const Weight& weight : map.weights) used.insert(weight.tensor_name);
  std::vector<std::string> unused;
  for (const TensorInfo& tensor : tensors) {
    if (!used.contains(tensor.name)) unused.emplace_back(tensor.name);
  }
  return unused;
}

absl::StatusOr<WeightBytes> CountWeightBytes(const ModelConfig& config,
                                             absl::Span<const TensorInfo> tensors) {
  LC_ASSIGN_OR_RETURN(const WeightMap map, PlanWeights(config, tensors, 0, config.n_layers));
  WeightBytes bytes;
  bytes.layers.resize(config.n_layers);
  for (const Weight& weight : map.weights) {
    switch (weight.role) {
      case WeightRole::kTokenEmbedding:
        bytes.embedding += weight.byte_size;
        break;
      case WeightRole::kOutputNorm:
      case WeightRole::kOutput:
      case WeightRole::kOutputBias:
        bytes.head += weight.byte_size;
        break;
      case WeightRole::kRopeFreqs:
        bytes.every_stage += weight.byte_size;
        break;
      default:
        bytes.layers[static_cast<size_t>(weight.layer)] += weight.byte_size;
    }
  }
  return bytes;
}

}  // namespace layercake::model
