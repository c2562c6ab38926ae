#include "stage_worker/testing/tiny_stages.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "model/rope.h"
#include "model/weights.h"
#include "stage_worker/activation_frame.h"

namespace layercake::stage_worker::testing {
namespace {

// The same tensors, but every byte has to be read.
class CopyingSource final : public model::ModelSource {
 public:
  explicit CopyingSource(model::ModelFiles files) : local_(std::move(files)) {}
  const model::ModelFiles& files() const override { return local_.files(); }
  std::optional<absl::Span<const std::byte>> Map(absl::string_view /*name*/) const override {
    return std::nullopt;
  }
  absl::Status Read(absl::string_view name, uint64_t offset, absl::Span<std::byte> out) override {
    return local_.Read(name, offset, out);
  }

 private:
  model::LocalModelSource local_;
};

model::ModelFiles FilesOf(const std::vector<std::byte>& bytes) {
  std::vector<model::GgufFile> shards;
  shards.push_back(model::GgufFile::Parse(bytes, "tiny").value());
  return model::ModelFiles::FromShards(std::move(shards)).value();
}

using Doubles = std::vector<double>;

class Reference {
 public:
  explicit Reference(const TinyModel& model)
      : config_(model.config()),
        source_(model.Source()),
        plan_(
            model::PlanWeights(config_, source_->files().tensors(), 0, config_.n_layers).value()) {}

  std::vector<Doubles> Run(const std::vector<int32_t>& tokens) {
    const Doubles factors = Floats(model::WeightRole::kRopeFreqs, model::Weight::kNoLayer);
    rope_ = model::ComputeRopeTable(config_, std::vector<float>(factors.begin(), factors.end()))
                .value();
    const Doubles embedding = Floats(model::WeightRole::kTokenEmbedding, -1);
    std::vector<Doubles> x;
    for (const int32_t token : tokens) {
      const auto at = embedding.begin() + static_cast<ptrdiff_t>(token) * config_.hidden_size;
      x.emplace_back(at, at + config_.hidden_size);
    }
    for (int layer = 0; layer < static_cast<int>(config_.n_layers); ++layer) RunLayer(layer, x);
    std::vector<Doubles> logits;
    const Doubles norm = Floats(model::WeightRole::kOutputNorm, -1);
    const Doubles output = Floats(model::WeightRole::kOutput, -1);
    for (const Doubles& row : x) logits.push_back(Product(output, Norm(row, norm)));
    return logits;
  }

 private:
  Doubles Floats(model::WeightRole role, int32_t layer) const {
    const model::Weight* weight = plan_.Find(role, layer);
    if (weight == nullptr) return {};
    LC_CHECK(weight->type == model::TensorType::kF32, weight->tensor_name);
    const auto bytes =
        source_->Map(weight->tensor_name)->subspan(weight->tensor_offset, weight->byte_size);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return {values.begin(), values.end()};
  }
  Doubles Norm(absl::Span<const double> x, const Doubles& weight) const {
    double sum = 0;
    for (const double value : x) sum += value * value;
    const double scale = 1 / std::sqrt(sum / static_cast<double>(x.size()) + config_.norm_eps);
    Doubles out;
    for (size_t i = 0; i < x.size(); ++i) out.push_back(x[i] * scale * weight[i]);
    return out;
  }
  static Doubles Product(const Doubles& w, const Doubles& x, const Doubles& bias = {}) {
    Doubles y(w.size() / x.size());
    for (size_t n = 0; n < y.size(); ++n) {
      for (size_t k = 0; k < x.size(); ++k) y[n] += w[n * x.size() + k] * x[k];
      if (!bias.empty()) y[n] += bias[n];
    }
    return y;
  }
  static void Add(Doubles& x, const Doubles& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  // Per-head norm (where there is one) and rotation.
  void Turn(Doubles& heads, const Doubles& norm, size_t position) const {
    const size_t width = config_.head_dim;
    const size_t half = config_.rope_dim / 2;
    for (size_t at = 0; at < heads.size(); at += width) {
      if (!norm.empty()) {
        const Doubles normed = Norm(absl::MakeConstSpan(heads).subspan(at, width), norm);
        std::copy(normed.begin(), normed.end(), heads.begin() + static_cast<ptrdiff_t>(at));
      }
      for (size_t j = 0; j < half; ++j) {
        const bool adjacent = config_.rope_style == model::RopeStyle::kNorm;
        double& a = heads[at + (adjacent ? 2 * j : j)];
        double& b = heads[at + (adjacent ? 2 * j + 1 : j + half)];
        const double angle = static_cast<double>(position) * rope_.inv_freq[j];
        const double c = std::cos(angle) * rope_.magnitude_scale;
        const double s = std::sin(angle) * rope_.magnitude_scale;
        const double turned = a * c - b * s;
        b = a * s + b * c;
        a = turned;
      }
    }
  }
  Doubles Attend(const Doubles& q, const std::vector<Doubles>& k, const std::vector<Doubles>& v,
                 size_t position) const {
    const size_t width = config_.head_dim;
    Doubles out(q.size());
    for (size_t h = 0; h < config_.n_heads; ++h) {
      const size_t kv = h / (config_.n_heads / config_.n_kv_heads) * width;
      Doubles scores;
      for (size_t p = 0; p <= position; ++p) {
        double dot = 0;
        for (size_t i = 0; i < width; ++i) dot += q[h * width + i] * k[p][kv + i];
        scores.push_back(dot / std::sqrt(static_cast<double>(width)));
      }
      const double max = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (double& score : scores) sum += score = std::exp(score - max);
      for (size_t p = 0; p <= position; ++p) {
        for (size_t i = 0; i < width; ++i) out[h * width + i] += scores[p] / sum * v[p][kv + i];
      }
    }
    return out;
  }
  void RunLayer(int layer, std::vector<Doubles>& x) const {
    using model::WeightRole;
    const auto w = [&](WeightRole role) { return Floats(role, layer); };
    std::vector<Doubles> k;
    std::vector<Doubles> v;
    for (size_t p = 0; p < x.size(); ++p) {
      const Doubles h = Norm(x[p], w(WeightRole::kAttnNorm));
      Doubles q = Product(w(WeightRole::kAttnQ), h, w(WeightRole::kAttnQBias));
      k.push_back(Product(w(WeightRole::kAttnK), h, w(WeightRole::kAttnKBias)));
      v.push_back(Product(w(WeightRole::kAttnV), h, w(WeightRole::kAttnVBias)));
      Turn(q, w(WeightRole::kAttnQNorm), p);
      Turn(k.back(), w(WeightRole::kAttnKNorm), p);
      Add(x[p],
          Product(w(WeightRole::kAttnOutput), Attend(q, k, v, p), w(WeightRole::kAttnOutputBias)));
      const Doubles f = Norm(x[p], w(WeightRole::kFfnNorm));
      Doubles gate = Product(w(WeightRole::kFfnGate), f, w(WeightRole::kFfnGateBias));
      const Doubles up = Product(w(WeightRole::kFfnUp), f, w(WeightRole::kFfnUpBias));
      for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
      Add(x[p], Product(w(WeightRole::kFfnDown), gate, w(WeightRole::kFfnDownBias)));
    }
  }

  const model::ModelConfig config_;
  const std::unique_ptr<model::ModelSource> source_;
  const model::WeightMap plan_;
  model::RopeTable rope_;
};

}  // namespace

TinyModel::TinyModel(const model::testing::GgufBuilder& builder) : bytes_(builder.Build()) {
  const model::ModelFiles files = FilesOf(bytes_);
  config_ = model::ReadModelConfig(files.metadata(), files.tensors()).value();
}

std::unique_ptr<model::ModelSource> TinyModel::Source(bool mapped) const {
  if (mapped) return std::make_unique<model::LocalModelSource>(FilesOf(bytes_));
  return std::make_unique<CopyingSource>(FilesOf(bytes_));
}

uint64_t TinyModel::fingerprint() const { return FilesOf(bytes_).fingerprint(); }

v1::Assignment TinyModel::Assign(int stage, int stages) const {
  v1::Assignment a;
  const auto layers = static_cast<int>(config_.n_layers);
  a.set_term(7);
  a.set_epoch(3);
  a.set_stage(stage);
  a.set_stage_count(stages);
  a.set_layer_first(layers * stage / stages);
  a.set_layer_end(layers * (stage + 1) / stages);
  a.set_model_fingerprint(fingerprint());
  a.set_kv_blocks(64);
  a.set_host_kv_blocks(4);
  a.set_kv_block_tokens(4);
  a.set_kv_type(v1::KV_CACHE_TYPE_F32);
  a.set_max_rows(32);
  a.set_max_sequences(8);
  a.set_context_tokens(64);
  a.set_max_in_flight(4);
  a.set_transport("auto");
  a.set_step_timeout_seconds(10);
  a.mutable_ring()->set_plan_slots(4);
  a.mutable_ring()->set_plan_slot_bytes(4096);
  a.mutable_ring()->set_activation_slots(2);
  a.mutable_ring()->set_activation_slot_bytes(
      *MinActivationSlotBytes(a.max_rows(), config_.hidden_size));
  return a;
}

std::unique_ptr<Stage> MakeStage(const TinyModel& model, const v1::Assignment& assignment,
                                 kernels::Device& device, kernels::Ops& ops, bool mapped) {
  LC_CHECK(CheckAssignment(assignment).ok(), CheckAssignment(assignment).ToString());
  const StageLimits limits = LimitsForModel(assignment, model.config()).value();
  std::unique_ptr<model::ModelSource> source = model.Source(mapped);
  const model::WeightMap plan = model::PlanWeights(model.config(), source->files().tensors(),
                                                   static_cast<uint32_t>(limits.layer_first),
                                                   static_cast<uint32_t>(limits.layer_end))
                                    .value();
  FetchedTensors fetched =
      FetchTensors(*source, plan, [](uint64_t, uint64_t) { return true; }).value();
  WeightBuilder builder(model.config(), plan, std::move(fetched), std::move(source), ops);
  while (!builder.Step().value()) {
  }
  return Stage::Create(device, ops, model.config(), builder.Take(), limits, kernels::KvType::kF32)
      .value();
}

std::vector<std::vector<double>> ReferenceLogits(const TinyModel& model,
                                                 const std::vector<int32_t>& tokens) {
  return Reference(model).Run(tokens);
}

double ReferenceLogprob(const std::vector<double>& logits, int32_t token) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - max);
  return logits[static_cast<size_t>(token)] - max - std::log(sum);
}

v1::RowDescriptor RowsOf(uint64_t sequence, const std::vector<int32_t>& tokens, int first,
                         int count, bool sample) {
  v1::RowDescriptor rows;
  rows.set_sequence(sequence);
  rows.set_kv_position(static_cast<uint32_t>(first));
  for (int i = 0; i < count; ++i) rows.add_tokens(tokens[static_cast<size_t>(first + i)]);
  rows.set_known_tokens(static_cast<uint32_t>(count));
  if (sample) {
    std::string bits(static_cast<size_t>((count + 7) / 8), '\0');
    bits[static_cast<size_t>((count - 1) / 8)] = static_cast<char>(1 << ((count - 1) % 8));
    rows.set_sample_bitmap(bits);
  }
  return rows;
}

v1::SequenceBegin BeginOf(uint64_t sequence, uint32_t prompt_tokens) {
  v1::SequenceBegin begin;
  begin.set_sequence(sequence);
  begin.set_prompt_tokens(prompt_tokens);
  v1::ResolvedSampling& sampling = *begin.mutable_sampling();
  sampling.set_top_p(1);
  sampling.set_repetition_penalty(1);
  sampling.set_top_logprobs(0);
  return begin;
}

}  // namespace layercake::stage_worker::testing
