// What CudaOps loads and allocates before the first step.
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/matmul_large.h"
#include "kernels/cuda/step_kernels.h"
#include "spdlog/spdlog.h"

namespace layercake::kernels::cuda {
namespace {

constexpr size_t kGraphs = 64;
// Parts of the decode attention beyond this make several launches.
constexpr size_t kMaxPartsBytes = size_t{128} << 20;

}  // namespace

CudaOps::CudaOps(CudaDevice& device, const CudaOpsOptions& options)
    : device_(device),
      options_(options),
      context_(device.context()),
      runner_(context_, scratch_),
      graphs_(context_, kGraphs) {
  device_.set_before_copy([this] { return Flush(); });
}

CudaOps::~CudaOps() { device_.set_before_copy(nullptr); }

absl::StatusOr<std::unique_ptr<Matrix>> CudaOps::LoadMatrix(WeightType type, int64_t n, int64_t k,
                                                            absl::Span<const std::byte> bytes) {
  LC_RETURN_IF_ERROR(device_.MakeCurrent());
  LC_ASSIGN_OR_RETURN(std::unique_ptr<CudaMatrix> matrix,
                      UploadMatrix(context_, type, n, k, bytes));
  matrices_.push_back(matrix.get());
  return matrix;
}

absl::StatusOr<std::unique_ptr<Vector>> CudaOps::LoadVector(absl::Span<const float> values) {
  if (values.empty()) return absl::InvalidArgumentError("a vector without values");
  LC_RETURN_IF_ERROR(device_.MakeCurrent());
  const size_t bytes = values.size() * sizeof(float);
  LC_ASSIGN_OR_RETURN(DeviceArray memory, DeviceArray::Allocate(context_, bytes, "a vector"));
  LC_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(memory.address(), values.data(), bytes,
                                                cudaMemcpyHostToDevice, context_.stream),
                                "load a vector"));
  LC_RETURN_IF_ERROR(device_.Synchronize("load a vector"));
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return std::make_unique<CudaVector>(static_cast<int64_t>(values.size()), std::move(memory),
                                      largest);
}

absl::StatusOr<std::unique_ptr<KvCache>> CudaOps::CreateKvCache(const KvCacheSpec& spec) {
  LC_RETURN_IF_ERROR(device_.MakeCurrent());
  LC_ASSIGN_OR_RETURN(std::unique_ptr<CudaKvCache> cache, CudaKvCache::Create(context_, spec));
  caches_.push_back(spec);
  return cache;
}

OperandForms CudaOps::FormsAt(int rows) const {
  return scratch_.multiplier->FormsFor(matrices_, rows);
}

absl::Status CudaOps::PrepareOperands(const StepLimits& limits) {
  int64_t max_k = 1;
  MultiplierLimits multiplier = {
      .max_rows = limits.max_rows, .float_weights = false, .deterministic = options_.deterministic};
  for (const CudaMatrix* matrix : matrices_) {
    max_k = std::max(max_k, matrix->k());
    multiplier.float_weights = multiplier.float_weights || UnitBytes(matrix->type()) == 0;
    if (NeedsPanels(matrix->type())) {
      multiplier.max_panel_weights =
          std::max(multiplier.max_panel_weights, matrix->n() * matrix->k());
    }
  }
  LC_ASSIGN_OR_RETURN(scratch_.multiplier, Multiplier::Create(context_, multiplier));
  // The forms change a few times with the number of rows, the last time far below max_rows: from
  // there on rows need fewer bytes each.
  const OperandForms most = FormsAt(limits.max_rows);
  int few = limits.max_rows;
  while (few > 1 && FormsAt(few - 1) == most) --few;
  few = FormsAt(few) == most && few > 1 ? few - 1 : few;
  if (most == FormsAt(1)) few = limits.max_rows;
  OperandForms forms = 0;
  for (int rows = 1; rows <= few; ++rows) forms |= FormsAt(rows);
  scratch_.few_rows = few;
  LC_ASSIGN_OR_RETURN(scratch_.few, Operand::Create(context_, few, max_k, forms));
  // Gate and up read one operand while they make another.
  if ((forms & kBfloat16Form) != 0) {
    LC_ASSIGN_OR_RETURN(scratch_.few_normed, Operand::Create(context_, few, limits.hidden, forms));
  }
  if (few < limits.max_rows) {
    LC_ASSIGN_OR_RETURN(scratch_.many, Operand::Create(context_, limits.max_rows, max_k, most));
    if ((most & (kTileForm | kBfloat16HighForm)) != 0) {
      LC_ASSIGN_OR_RETURN(scratch_.normed,
                          Operand::Create(context_, limits.max_rows, limits.hidden, most));
    }
  }
  return absl::OkStatus();
}

absl::Status CudaOps::PrepareScratch(const StepLimits& limits) {
  const auto rows = static_cast<size_t>(limits.max_rows);
  const auto logit_rows = static_cast<size_t>(limits.logit_rows);
  const auto floats = [this](size_t count, size_t width, absl::string_view what) {
    return DeviceArray::Allocate(context_, count * width * sizeof(float), what);
  };
  const auto kv_width = static_cast<size_t>(limits.kv_width);
  LC_ASSIGN_OR_RETURN(scratch_.keys, floats(rows, kv_width, "the keys of a step"));
  LC_ASSIGN_OR_RETURN(scratch_.values, floats(rows, kv_width, "the values of a step"));
  LC_ASSIGN_OR_RETURN(scratch_.up, floats(rows, static_cast<size_t>(limits.ffn), "up of a step"));
  LC_ASSIGN_OR_RETURN(scratch_.rope_table, floats(rows, kMaxHeadDim, "the table of rope"));
  LC_ASSIGN_OR_RETURN(scratch_.selected, floats(logit_rows, static_cast<size_t>(limits.hidden),
                                                "the rows whose logits are wanted"));

  // Parts for sixteen rows at the longest context, for one in any case.
  const int splits = SplitBucket(limits.context_tokens / kSplitTokens + 1);
  size_t row_floats = 0;
  int most_heads = 1;
  for (const KvCacheSpec& spec : caches_) {
    const auto heads = static_cast<int>(limits.q_width / spec.head_dim);
    most_heads = std::max(most_heads, heads);
    row_floats = std::max(row_floats, AttentionPartFloats(heads, spec.head_dim, splits));
  }
  const size_t row_bytes = row_floats * sizeof(float);
  const size_t parts =
      std::max(std::min(row_bytes * std::min<size_t>(rows, 16), kMaxPartsBytes), row_bytes);
  LC_ASSIGN_OR_RETURN(scratch_.parts,
                      DeviceArray::Allocate(context_, parts, "parts of the attention"));
  LC_ASSIGN_OR_RETURN(
      scratch_.counters,
      DeviceArray::Allocate(
          context_, rows * static_cast<size_t>(AttentionCounters(most_heads)) * sizeof(int32_t),
          "counters of the attention"));
  scratch_.outcomes_offset = (rows + 255) / 256 * 256;
  const size_t results = scratch_.outcomes_offset + logit_rows * sizeof(SampleOutcome);
  LC_ASSIGN_OR_RETURN(scratch_.results, PinnedArray::Allocate(context_, results, "results"));
  return absl::OkStatus();
}

size_t CudaOps::StepBlockBytes(const StepLimits& limits) const {
  const auto rows = static_cast<size_t>(limits.max_rows);
  const auto logit_rows = static_cast<size_t>(limits.logit_rows);
  const auto vocabulary = static_cast<size_t>(limits.vocabulary);
  const int tokens = SplitBucket(limits.context_tokens / kSplitTokens + 1) * kSplitTokens;
  size_t table = 0;
  for (const KvCacheSpec& spec : caches_) {
    table = std::max(table, static_cast<size_t>(tokens / spec.block_tokens + 1));
  }
  const size_t of_rows = rows * (7 * sizeof(int32_t) + sizeof(RowTile)) +
                         static_cast<size_t>(limits.max_sequences) * table * sizeof(int32_t);
  const size_t seen = std::min(vocabulary, static_cast<size_t>(limits.context_tokens) + 1);
  const size_t of_samples =
      logit_rows * (sizeof(SampleJob) + sizeof(int32_t) + (vocabulary + 31) / 32 * 4 + 16 +
                    seen * (sizeof(DeviceSeenToken) + sizeof(float)) + 64);
  return of_rows + of_samples + (size_t{16} << 10);
}

absl::Status CudaOps::Prepare(const StepLimits& limits) {
  if (limits.max_rows < 1 || limits.max_sequences < 1 || limits.context_tokens < 1 ||
      limits.logit_rows < 0 || limits.vocabulary < 0 || limits.hidden < 1 || limits.q_width < 1 ||
      limits.kv_width < 1 || limits.ffn < 1) {
    return absl::InvalidArgumentError("steps without rows, sequences or widths");
  }
  LC_RETURN_IF_ERROR(device_.MakeCurrent());
  LC_ASSIGN_OR_RETURN(const uint64_t before, device_.FreeBytes());
  LC_RETURN_IF_ERROR(CudaStatus(PrepareAttention(context_), "prepare the attention kernels"));
  LC_RETURN_IF_ERROR(CudaStatus(PrepareSampling(context_), "prepare the sampling kernels"));
  LC_RETURN_IF_ERROR(PrepareOperands(limits));
  LC_RETURN_IF_ERROR(PrepareScratch(limits));
  LC_ASSIGN_OR_RETURN(block_, StepBlock::Create(context_, StepBlockBytes(limits)));
  LC_RETURN_IF_ERROR(device_.Synchronize("allocate the memory of steps"));
  LC_ASSIGN_OR_RETURN(const uint64_t after, device_.FreeBytes());
  scratch_bytes_ = before > after ? before - after : 0;
  uint64_t weights = 0;
  for (const CudaMatrix* matrix : matrices_) weights += matrix->bytes();
  uint64_t kv = 0;
  for (const KvCacheSpec& spec : caches_) kv += KvCacheBytes(spec);
  spdlog::info("{}: weights {} MiB, KV cache {} MiB, scratch {} MiB, {} MiB still free",
               device_.name(), weights >> 20, kv >> 20, scratch_bytes_ >> 20, after >> 20);
  limits_ = limits;
  prepared_ = true;
  return absl::OkStatus();
}

}  // namespace layercake::kernels::cuda
