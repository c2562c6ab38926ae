// The CUDA backend of kernels/ops.h. Operations are recorded; Finish, or a copy on the device,
// sends the step's data, enqueues what was recorded, or replays it as a graph, and waits.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/command.h"
#include "kernels/cuda/command_runner.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/graph_cache.h"
#include "kernels/cuda/kv_cache.h"
#include "kernels/cuda/row_plan.h"
#include "kernels/cuda/step_block.h"
#include "kernels/held_ops.h"
#include "kernels/ops.h"

namespace layercake::kernels::cuda {

// Thread rule: as Ops says. The device outlives it.
class CudaOps final : public Ops, public HeldOps {
 public:
  CudaOps(CudaDevice& device, const CudaOpsOptions& options);
  ~CudaOps() override;

  absl::StatusOr<std::unique_ptr<Matrix>> LoadMatrix(WeightType type, int64_t n, int64_t k,
                                                     absl::Span<const std::byte> bytes) override;
  absl::StatusOr<std::unique_ptr<Vector>> LoadVector(absl::Span<const float> values) override;
  absl::Status CheckKvType(KvType) const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<KvCache>> CreateKvCache(const KvCacheSpec& spec) override;
  absl::Status Prepare(const StepLimits& limits) override;
  uint64_t scratch_bytes() const override { return scratch_bytes_; }

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
  absl::Status Finish() override;
  absl::Status Hold() override;
  absl::Status Resume(absl::Span<const int32_t> tokens) override;

  const GraphCache& graphs() const { return graphs_; }

 private:
  // Scratch (cuda_ops_prepare.cc).
  absl::Status PrepareOperands(const StepLimits& limits);
  absl::Status PrepareScratch(const StepLimits& limits);
  size_t StepBlockBytes(const StepLimits& limits) const;
  OperandForms FormsAt(int rows) const;

  // Recording.
  Command& Record(CommandKind kind, int rows);
  // Records the operand first; `norm` null: none.
  void RecordProducts(absl::Span<const RecordedProduct> products, int rows);
  OperandForms FormsFor(absl::Span<const RecordedProduct> products, int rows) const;
  void RecordNormOperand(const float* x, const Vector& norm, float eps,
                         absl::Span<const RecordedProduct> products, int rows);
  // The view of the step's rows for this cache and number of query heads; recorded once.
  absl::StatusOr<int> ViewFor(const CudaKvCache& cache, int heads);
  absl::Status RecordRopeTable(const Rope& rope, int view);
  // Makes the gate and up that were recorded last the operand of `next` at once, where that is
  // possible.
  bool MakeGated(const CudaMatrix& next);
  // SwiGLU whose result is read by anything else than the product that usually follows.
  void RecordPendingSwiglu();
  absl::Status CheckRows(absl::string_view what, const Buffer& buffer, int64_t rows,
                         int64_t width) const;
  absl::Status CheckSampling(Buffer logits, int64_t vocabulary,
                             absl::Span<const SampleRequest> requests, size_t results) const;
  absl::StatusOr<SampleJob> MakeJob(const SampleRequest& request);

  // What is held.
  void Forget();
  absl::Status Flush();
  absl::Status Deliver();

  CudaDevice& device_;
  const CudaOpsOptions options_;
  const Context context_;
  StepLimits limits_;
  bool prepared_ = false;
  // Of what was loaded: sizes of scratch memory.
  std::vector<const CudaMatrix*> matrices_;
  std::vector<KvCacheSpec> caches_;

  StepScratch scratch_;
  uint64_t scratch_bytes_ = 0;
  CommandRunner runner_;
  StepBlock block_;
  GraphCache graphs_;

  // Of the step that is recorded.
  StepRows rows_;
  CommandList list_;
  std::vector<StepView> views_;  // made in this step, for Flush in the middle of it
  const CudaKvCache* viewed_cache_ = nullptr;
  int viewed_heads_ = 0;
  int view_ = -1;
  const Rope* rope_ = nullptr;          // whose table was recorded last
  size_t rows_end_ = 0;                 // of the block: what is behind belongs to samples
  absl::Span<int32_t> tokens_;          // of Embed, in the block
  int64_t token_end_ = 0;               // the vocabulary they are checked against
  const float* swiglu_gate_ = nullptr;  // recorded and not yet used
  int64_t swiglu_width_ = 0;
  absl::Span<uint8_t> non_finite_;  // wanted at Finish
  absl::Span<SampleResult> sampled_;
  bool busy_ = false;  // something is enqueued that was not waited for
  bool held_ = false;  // what is recorded waits for Resume
};

}  // namespace layercake::kernels::cuda
