// The CPU backend: kernels/ops.h over the table of kernels/cpu/cpu_kernels.h and a thread pool.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/aligned_floats.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/kv_cache.h"
#include "kernels/cpu/rope_table.h"
#include "kernels/cpu/sampler.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace layercake::kernels {

// Rows of the model file, used where they lie: a product unpacks them as it goes.
class CpuMatrix final : public Matrix {
 public:
  CpuMatrix(WeightType type, int64_t n, int64_t k, const std::byte* bytes)
      : Matrix(n, k),
        type_(type),
        row_bytes_(RowBytes(type, k)),
        bytes_(reinterpret_cast<const uint8_t*>(bytes)) {}

  WeightType type() const { return type_; }
  size_t row_bytes() const { return row_bytes_; }
  const uint8_t* bytes() const { return bytes_; }

 private:
  WeightType type_;
  size_t row_bytes_;
  const uint8_t* bytes_;
};

class CpuVector final : public Vector {
 public:
  explicit CpuVector(absl::Span<const float> values)
      : Vector(static_cast<int64_t>(values.size())), values_(values.begin(), values.end()) {}
  const float* values() const { return values_.data(); }

 private:
  std::vector<float> values_;
};

// Thread rule: as Ops says. The pool outlives it.
class CpuOps final : public Ops {
 public:
  CpuOps(ThreadPool& pool, const CpuKernels& kernels);

  absl::StatusOr<std::unique_ptr<Matrix>> LoadMatrix(WeightType type, int64_t n, int64_t k,
                                                     absl::Span<const std::byte> bytes) override;
  absl::StatusOr<std::unique_ptr<Vector>> LoadVector(absl::Span<const float> values) override;
  absl::Status CheckKvType(KvType) const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<KvCache>> CreateKvCache(const KvCacheSpec& spec) override;
  // Scratch memory here grows with the first steps.
  absl::Status Prepare(const StepLimits&) override { return absl::OkStatus(); }
  uint64_t scratch_bytes() const override { return 0; }
  absl::Status BeginStep(const StepRows& rows) override;
  absl::Status Embed(const Matrix& table, absl::Span<const int32_t> tokens, Buffer x) override;
  absl::Status AttentionInput(const AttentionWeights& weights, const Rope& rope, Buffer x,
                              KvCache& cache, int layer, Buffer q) override;
  absl::Status Attention(Buffer q, const KvCache& cache, int layer, int heads, Buffer out) override;
  absl::Status LinearAdd(const Matrix& w, const Vector* bias, Buffer in, Buffer x) override;
  absl::Status FfnInput(const FfnWeights& weights, Buffer x, Buffer out) override;
  absl::Status FindNonFinite(Buffer x, int width, absl::Span<uint8_t> non_finite) override;
  absl::Status Logits(const Vector& norm, float norm_eps, const Matrix& w,
                      absl::Span<const int32_t> selected, Buffer x, Buffer logits) override;
  absl::Status Sample(Buffer logits, int64_t vocabulary, absl::Span<const SampleRequest> requests,
                      absl::Span<SampleResult> results) override;
  // Every operation is done when it returns.
  absl::Status Finish() override { return absl::OkStatus(); }

 private:
  // out = matrix * activations, then += bias when there is one. out: (rows, matrix->n()).
  struct Product {
    const CpuMatrix* matrix = nullptr;
    const CpuVector* bias = nullptr;
    float* out = nullptr;
  };
  // What a norm in front of a product is.
  struct Norm {
    const CpuVector* weight = nullptr;  // null: none
    float eps = 0;
  };

  // Makes rows of x (of k floats; row i is x row index[i], or i without an index) ready for the
  // products of these types.
  void PrepareActivations(const float* x, const int32_t* index, int64_t rows, int64_t k, Norm norm,
                          bool want_ints);
  // All of one k, over the activations prepared last.
  void Multiply(absl::Span<const Product> products, int64_t rows);
  void MultiplyChunk(const Product& product, int64_t n_begin, int64_t n_end, int64_t row_begin,
                     int64_t row_end, int thread);
  void StoreHeads(const AttentionWeights& weights, const Rope& rope, const CpuKvCache& cache,
                  int layer, int row, float* q, float* k, const float* v) const;
  // Runs body(row) for all rows, shared out over the pool.
  void ForRows(int64_t rows, absl::FunctionRef<void(int64_t row)> body);

  ThreadPool& pool_;
  const CpuKernels& kernels_;
  CpuAttention attention_;
  RopeTable rope_table_;
  std::vector<Sampler> samplers_;  // one per thread
  StepRows rows_;

  Activations activations_;  // views of the next four
  AlignedFloats normed_;     // (rows, k)
  AlignedFloats ints_;       // (rows, k) int16
  AlignedFloats groups_;     // scales, sums, half_sums
  AlignedFloats products_;   // outputs that are not the caller's
  AlignedFloats scratch_;    // (threads, MatmulScratchBytes)
};

}  // namespace layercake::kernels
