// The CPU's operations as a GPU backend has them: put off until something is read back, and held
// back for a step whose input is yet to come.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/held_ops.h"
#include "kernels/ops.h"

namespace layercake::stage_worker::testing {

// `ops` outlives it; Flush comes before every copy of the device (FakeDevice::before_copy).
class DeferredOps final : public kernels::Ops, public kernels::HeldOps {
 public:
  explicit DeferredOps(kernels::Ops& ops) : ops_(ops) {}

  absl::StatusOr<std::unique_ptr<kernels::Matrix>> LoadMatrix(
      kernels::WeightType type, int64_t n, int64_t k, absl::Span<const std::byte> bytes) override {
    return ops_.LoadMatrix(type, n, k, bytes);
  }
  absl::StatusOr<std::unique_ptr<kernels::Vector>> LoadVector(
      absl::Span<const float> values) override {
    return ops_.LoadVector(values);
  }
  absl::Status CheckKvType(kernels::KvType type) const override { return ops_.CheckKvType(type); }
  absl::StatusOr<std::unique_ptr<kernels::KvCache>> CreateKvCache(
      const kernels::KvCacheSpec& spec) override {
    return ops_.CreateKvCache(spec);
  }
  absl::Status Prepare(const kernels::StepLimits& limits) override { return ops_.Prepare(limits); }
  uint64_t scratch_bytes() const override { return ops_.scratch_bytes(); }

  absl::Status BeginStep(const kernels::StepRows& rows) override {
    held_ = false;
    list_.clear();
    tokens_ = nullptr;
    auto kept = std::make_shared<Rows>();
    kept->rope_position.assign(rows.rope_position.begin(), rows.rope_position.end());
    kept->kv_position.assign(rows.kv_position.begin(), rows.kv_position.end());
    kept->table_index.assign(rows.table_index.begin(), rows.table_index.end());
    for (const auto& table : rows.block_tables) {
      kept->tables.emplace_back(table.begin(), table.end());
    }
    kept->spans.assign(kept->tables.begin(), kept->tables.end());
    rows_ = kept;
    list_.push_back([this, kept, count = rows.rows] {
      return ops_.BeginStep({.rows = count,
                             .rope_position = kept->rope_position,
                             .kv_position = kept->kv_position,
                             .table_index = kept->table_index,
                             .block_tables = kept->spans});
    });
    return absl::OkStatus();
  }
  absl::Status Embed(const kernels::Matrix& table, absl::Span<const int32_t> tokens,
                     kernels::Buffer x) override {
    tokens_ = std::make_shared<std::vector<int32_t>>(tokens.begin(), tokens.end());
    return Later([this, &table, kept = tokens_, x] { return ops_.Embed(table, *kept, x); });
  }
  absl::Status AttentionInput(const kernels::AttentionWeights& weights, const kernels::Rope& rope,
                              kernels::Buffer x, kernels::KvCache& cache, int layer,
                              kernels::Buffer q) override {
    return Later([=, this, &weights, &rope, &cache] {
      return ops_.AttentionInput(weights, rope, x, cache, layer, q);
    });
  }
  absl::Status Attention(kernels::Buffer q, const kernels::KvCache& cache, int layer, int heads,
                         kernels::Buffer out) override {
    return Later([=, this, &cache] { return ops_.Attention(q, cache, layer, heads, out); });
  }
  absl::Status LinearAdd(const kernels::Matrix& w, const kernels::Vector* bias, kernels::Buffer in,
                         kernels::Buffer x) override {
    return Later([=, this, &w] { return ops_.LinearAdd(w, bias, in, x); });
  }
  absl::Status FfnInput(const kernels::FfnWeights& weights, kernels::Buffer x,
                        kernels::Buffer out) override {
    return Later([=, this, &weights] { return ops_.FfnInput(weights, x, out); });
  }
  absl::Status FindNonFinite(kernels::Buffer x, int width,
                             absl::Span<uint8_t> non_finite) override {
    return Later([=, this] { return ops_.FindNonFinite(x, width, non_finite); });
  }
  absl::Status Logits(const kernels::Vector& norm, float norm_eps, const kernels::Matrix& w,
                      absl::Span<const int32_t> selected, kernels::Buffer x,
                      kernels::Buffer logits) override {
    return Later(
        [=, this, &norm, &w, kept = std::vector<int32_t>(selected.begin(), selected.end())] {
          return ops_.Logits(norm, norm_eps, w, kept, x, logits);
        });
  }
  absl::Status Sample(kernels::Buffer logits, int64_t vocabulary,
                      absl::Span<const kernels::SampleRequest> requests,
                      absl::Span<kernels::SampleResult> results) override {
    return Later([=, this] { return ops_.Sample(logits, vocabulary, requests, results); });
  }
  absl::Status Finish() override {
    LC_RETURN_IF_ERROR(Flush());
    return ops_.Finish();
  }

  absl::Status Hold() override {
    held_ = true;
    ++holds;
    return absl::OkStatus();
  }
  absl::Status Resume(absl::Span<const int32_t> tokens) override {
    if (!std::exchange(held_, false)) return absl::FailedPreconditionError("nothing is held");
    if (tokens_ != nullptr) tokens_->assign(tokens.begin(), tokens.end());
    return absl::OkStatus();
  }

  absl::Status Flush() {
    if (held_) return absl::OkStatus();
    for (const auto& operation : std::exchange(list_, {})) LC_RETURN_IF_ERROR(operation());
    return absl::OkStatus();
  }

  int holds = 0;

 private:
  struct Rows {
    std::vector<int32_t> rope_position, kv_position, table_index;
    std::vector<std::vector<int32_t>> tables;
    std::vector<absl::Span<const int32_t>> spans;
  };
  absl::Status Later(std::function<absl::Status()> operation) {
    list_.push_back(std::move(operation));
    return absl::OkStatus();
  }

  kernels::Ops& ops_;
  std::vector<std::function<absl::Status()>> list_;
  std::shared_ptr<Rows> rows_;  // of operations after a flush in the middle of a step
  std::shared_ptr<std::vector<int32_t>> tokens_;
  bool held_ = false;
};

}  // namespace layercake::stage_worker::testing
