#include "stage_worker/stage_weights.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/rope.h"

namespace layercake::stage_worker {
namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;
constexpr size_t kPageBytes = 4096;

// Reads one byte of every page, so that the disk's waits happen here and not in the first step.
void TouchPages(absl::Span<const std::byte> bytes) {
  unsigned sum = 0;
  for (size_t i = 0; i < bytes.size(); i += kPageBytes) {
    sum += static_cast<unsigned>(*static_cast<const volatile std::byte*>(&bytes[i]));
  }
  static_cast<void>(sum);
}

absl::Status Annotated(const absl::Status& status, absl::string_view tensor) {
  return absl::Status(status.code(), absl::StrCat("load tensor ", tensor, ": ", status.message()));
}

class Fetcher {
 public:
  Fetcher(model::ModelSource& source, uint64_t total, FetchProgress progress)
      : source_(source), total_(total), progress_(progress) {}

  absl::Status Fetch(const model::TensorInfo& tensor, FetchedTensors& into) {
    const std::string name(tensor.name);
    if (const auto mapped = source_.Map(name); mapped.has_value()) {
      for (size_t at = 0; at < mapped->size(); at += kPieceBytes) {
        const absl::Span<const std::byte> piece = mapped->subspan(at, kPieceBytes);
        TouchPages(piece);
        LC_RETURN_IF_ERROR(Count(piece.size()));
      }
      into.tensors[name] = *mapped;
      return absl::OkStatus();
    }
    std::unique_ptr<std::byte[]> copy(new (std::nothrow) std::byte[tensor.byte_size]);
    if (copy == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("load tensor ", name, ": no memory for ", tensor.byte_size, " bytes"));
    }
    const absl::Span<std::byte> bytes(copy.get(), tensor.byte_size);
    for (size_t at = 0; at < bytes.size(); at += kPieceBytes) {
      const absl::Span<std::byte> piece = bytes.subspan(at, kPieceBytes);
      const absl::Status read = source_.Read(name, at, piece);
      if (!read.ok()) return Annotated(read, name);
      LC_RETURN_IF_ERROR(Count(piece.size()));
    }
    into.tensors[name] = bytes;
    into.owned.push_back(std::move(copy));
    return absl::OkStatus();
  }

 private:
  absl::Status Count(size_t bytes) {
    loaded_ += bytes;
    if (progress_(loaded_, total_)) return absl::OkStatus();
    return absl::CancelledError("loading was stopped");
  }

  model::ModelSource& source_;
  const uint64_t total_;
  FetchProgress progress_;
  uint64_t loaded_ = 0;
};

}  // namespace

absl::StatusOr<FetchedTensors> FetchTensors(model::ModelSource& source,
                                            const model::WeightMap& weights,
                                            FetchProgress progress) {
  FetchedTensors fetched;
  Fetcher fetcher(source, weights.total_bytes, progress);
  for (const model::Weight& weight : weights.weights) {
    if (fetched.tensors.contains(weight.tensor_name)) continue;
    const model::TensorInfo* tensor = source.files().FindTensor(weight.tensor_name);
    if (tensor == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("load tensor ", weight.tensor_name, ": the model has none of that name"));
    }
    LC_RETURN_IF_ERROR(fetcher.Fetch(*tensor, fetched));
  }
  return fetched;
}

WeightBuilder::WeightBuilder(const model::ModelConfig& config, const model::WeightMap& plan,
                             FetchedTensors fetched, std::unique_ptr<model::ModelSource> source,
                             kernels::Ops& ops)
    : config_(config), plan_(plan), ops_(ops) {
  weights_.fetched = std::move(fetched);
  weights_.source = std::move(source);
  weights_.weight_bytes = plan.total_bytes;
  weights_.layers.resize(plan.layer_end - plan.layer_first);
  for (LayerWeights& layer : weights_.layers) {
    layer.attention.norm_eps = config.norm_eps;
    layer.ffn.norm_eps = config.norm_eps;
  }
}

absl::StatusOr<absl::Span<const std::byte>> WeightBuilder::BytesOf(
    const model::Weight& weight) const {
  const auto it = weights_.fetched.tensors.find(weight.tensor_name);
  if (it == weights_.fetched.tensors.end() || weight.tensor_offset > it->second.size() ||
      weight.byte_size > it->second.size() - weight.tensor_offset) {
    return absl::InternalError(absl::StrCat("weight ", model::WeightRoleName(weight.role), " (",
                                            weight.tensor_name, ") was not fetched"));
  }
  return it->second.subspan(weight.tensor_offset, weight.byte_size);
}

absl::StatusOr<std::vector<float>> WeightBuilder::FloatsOf(const model::Weight& weight) const {
  LC_ASSIGN_OR_RETURN(const absl::Span<const std::byte> bytes, BytesOf(weight));
  if (weight.type != model::TensorType::kF32) {
    return absl::UnimplementedError(absl::StrCat(weight.tensor_name, " is ",
                                                 model::TensorTypeName(weight.type),
                                                 "; norms and biases must be F32"));
  }
  // The file's bytes need not be aligned for floats.
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

absl::Status WeightBuilder::LoadMatrix(const model::Weight& weight) {
  LC_ASSIGN_OR_RETURN(const absl::Span<const std::byte> bytes, BytesOf(weight));
  // The two enumerations hold GGUF's own ids (model/gguf/tensor_type.h).
  const auto type = static_cast<kernels::WeightType>(weight.type);
  absl::StatusOr<std::unique_ptr<kernels::Matrix>> matrix = ops_.LoadMatrix(
      type, static_cast<int64_t>(weight.rows), static_cast<int64_t>(weight.columns), bytes);
  if (!matrix.ok()) return Annotated(matrix.status(), weight.tensor_name);
  const kernels::Matrix* loaded = matrix->get();
  weights_.matrices.push_back(*std::move(matrix));
  if (weight.role == model::WeightRole::kTokenEmbedding) {
    weights_.embedding = loaded;
    return absl::OkStatus();
  }
  if (weight.role == model::WeightRole::kOutput) {
    weights_.output = loaded;
    return absl::OkStatus();
  }
  LayerWeights& layer = weights_.layers[static_cast<size_t>(weight.layer) - plan_.layer_first];
  switch (weight.role) {
    case model::WeightRole::kAttnQ:
      layer.attention.wq = loaded;
      break;
    case model::WeightRole::kAttnK:
      layer.attention.wk = loaded;
      break;
    case model::WeightRole::kAttnV:
      layer.attention.wv = loaded;
      break;
    case model::WeightRole::kAttnOutput:
      layer.attention_out = loaded;
      break;
    case model::WeightRole::kFfnGate:
      layer.ffn.gate = loaded;
      break;
    case model::WeightRole::kFfnUp:
      layer.ffn.up = loaded;
      break;
    case model::WeightRole::kFfnDown:
      layer.ffn_down = loaded;
      break;
    default:
      return absl::UnimplementedError(absl::StrCat(
          "no operation uses ", model::WeightRoleName(weight.role), " (", weight.tensor_name, ")"));
  }
  return absl::OkStatus();
}

absl::Status WeightBuilder::LoadVector(const model::Weight& weight) {
  LC_ASSIGN_OR_RETURN(std::vector<float> values, FloatsOf(weight));
  if (weight.role == model::WeightRole::kRopeFreqs) {
    rope_factors_ = std::move(values);
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<kernels::Vector>> vector = ops_.LoadVector(values);
  if (!vector.ok()) return Annotated(vector.status(), weight.tensor_name);
  const kernels::Vector* loaded = vector->get();
  weights_.vectors.push_back(*std::move(vector));
  if (weight.role == model::WeightRole::kOutputNorm) {
    weights_.output_norm = loaded;
    return absl::OkStatus();
  }
  if (weight.layer == model::Weight::kNoLayer) {
    return absl::UnimplementedError(absl::StrCat(
        "no operation uses ", model::WeightRoleName(weight.role), " (", weight.tensor_name, ")"));
  }
  LayerWeights& layer = weights_.layers[static_cast<size_t>(weight.layer) - plan_.layer_first];
  const std::pair<model::WeightRole, const kernels::Vector**> places[] = {
      {model::WeightRole::kAttnNorm, &layer.attention.norm},
      {model::WeightRole::kAttnQBias, &layer.attention.bq},
      {model::WeightRole::kAttnKBias, &layer.attention.bk},
      {model::WeightRole::kAttnVBias, &layer.attention.bv},
      {model::WeightRole::kAttnQNorm, &layer.attention.q_norm},
      {model::WeightRole::kAttnKNorm, &layer.attention.k_norm},
      {model::WeightRole::kAttnOutputBias, &layer.attention_out_bias},
      {model::WeightRole::kFfnNorm, &layer.ffn.norm},
      {model::WeightRole::kFfnGateBias, &layer.ffn.gate_bias},
      {model::WeightRole::kFfnUpBias, &layer.ffn.up_bias},
      {model::WeightRole::kFfnDownBias, &layer.ffn_down_bias},
  };
  for (const auto& [role, place] : places) {
    if (role != weight.role) continue;
    *place = loaded;
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      "no operation uses ", model::WeightRoleName(weight.role), " (", weight.tensor_name, ")"));
}

absl::StatusOr<bool> WeightBuilder::Step() {
  if (next_ == plan_.weights.size()) {
    LC_RETURN_IF_ERROR(Finish());
    return true;
  }
  const model::Weight& weight = plan_.weights[next_++];
  switch (weight.role) {
    case model::WeightRole::kTokenEmbedding:
    case model::WeightRole::kOutput:
    case model::WeightRole::kAttnQ:
    case model::WeightRole::kAttnK:
    case model::WeightRole::kAttnV:
    case model::WeightRole::kAttnOutput:
    case model::WeightRole::kFfnGate:
    case model::WeightRole::kFfnUp:
    case model::WeightRole::kFfnDown:
      LC_RETURN_IF_ERROR(LoadMatrix(weight));
      break;
    default:
      LC_RETURN_IF_ERROR(LoadVector(weight));
  }
  return false;
}

absl::Status WeightBuilder::Finish() {
  LC_ASSIGN_OR_RETURN(model::RopeTable table, model::ComputeRopeTable(config_, rope_factors_));
  weights_.rope.pairing = config_.rope_style == model::RopeStyle::kNorm
                              ? kernels::Rope::Pairing::kAdjacent
                              : kernels::Rope::Pairing::kHalves;
  weights_.rope.rope_dims = static_cast<int>(config_.rope_dim);
  weights_.rope.inv_freq = std::move(table.inv_freq);
  weights_.rope.magnitude = table.magnitude_scale;
  return absl::OkStatus();
}

StageWeights WeightBuilder::Take() { return std::move(weights_); }

}  // namespace layercake::stage_worker
