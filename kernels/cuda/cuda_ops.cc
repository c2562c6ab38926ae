#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/step_kernels.h"
#include "kernels/ops_check.h"

namespace layercake::kernels::cuda {
namespace {

float* Floats(Buffer buffer) { return reinterpret_cast<float*>(buffer.address); }
const float* ValuesOf(const Vector* vector) {
  return vector == nullptr ? nullptr : static_cast<const CudaVector*>(vector)->values();
}
const CudaMatrix* AsCuda(const Matrix* matrix) { return static_cast<const CudaMatrix*>(matrix); }
double LargestOf(const Vector* vector) {
  return vector == nullptr ? 0 : static_cast<const CudaVector*>(vector)->largest();
}
uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }

}  // namespace

absl::Status CudaOps::CheckRows(absl::string_view what, const Buffer& buffer, int64_t rows,
                                int64_t width) const {
  if (!prepared_) return absl::FailedPreconditionError("Prepare comes before the first step");
  if (rows < 0 || width < 1 || rows > limits_.max_rows) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", rows, " rows of ", width,
                                                   "; there is room for ", limits_.max_rows));
  }
  return CheckBuffer(what, buffer, MemorySpace::kDevice, rows, width);
}

// ---- recording

Command& CudaOps::Record(CommandKind kind, int rows) {
  list_.commands.push_back({.kind = kind, .rows = rows});
  return list_.commands.back();
}

OperandForms CudaOps::FormsFor(absl::Span<const RecordedProduct> products, int rows) const {
  std::array<const CudaMatrix*, kMaxProducts> matrices{};
  for (size_t i = 0; i < products.size(); ++i) matrices[i] = products[i].w;
  return scratch_.multiplier->FormsFor(absl::MakeConstSpan(matrices.data(), products.size()), rows);
}

void CudaOps::RecordProducts(absl::Span<const RecordedProduct> products, int rows) {
  Command& command = Record(CommandKind::kMultiply, rows);
  command.first_product = static_cast<int32_t>(list_.products.size());
  command.product_count = static_cast<int32_t>(products.size());
  list_.products.insert(list_.products.end(), products.begin(), products.end());
}

void CudaOps::RecordNormOperand(const float* x, const Vector& norm, float eps,
                                absl::Span<const RecordedProduct> products, int rows) {
  Command& command = Record(CommandKind::kNormOperand, rows);
  command.p[0] = x;
  command.p[1] = ValuesOf(&norm);
  command.n[0] = norm.size();
  command.eps_bits = Bits(eps);
  command.forms = FormsFor(products, rows);
  RecordProducts(products, rows);
  list_.commands.back().flags = kOfNormed;
}

absl::Status CudaOps::BeginStep(const StepRows& rows) {
  if (!prepared_) return absl::FailedPreconditionError("Prepare comes before the first step");
  if (held_) Forget();
  if (busy_ || !list_.empty()) LC_RETURN_IF_ERROR(Finish());
  LC_RETURN_IF_ERROR(CheckStepRows(rows));
  if (rows.rows > limits_.max_rows ||
      rows.block_tables.size() > static_cast<size_t>(limits_.max_sequences)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", rows.rows, " rows of ", rows.block_tables.size(),
                     " sequences; at most ", limits_.max_rows, " of ", limits_.max_sequences));
  }
  for (const int32_t position : rows.kv_position) {
    if (position >= 0 && position < limits_.context_tokens) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("a row at position ", position, " of ", limits_.context_tokens));
  }
  rows_ = rows;
  tokens_ = {};
  block_.Rewind(0);
  rows_end_ = 0;
  views_.clear();
  viewed_cache_ = nullptr;
  rope_ = nullptr;
  view_ = -1;
  return absl::OkStatus();
}

absl::StatusOr<int> CudaOps::ViewFor(const CudaKvCache& cache, int heads) {
  const bool known = viewed_cache_ == &cache && viewed_heads_ == heads;
  if (known && view_ >= 0) return view_;
  if (!known || views_.empty()) {
    const KvView kv = cache.View(0);
    const bool tiles = !options_.deterministic && TiledAttentionTakes(context_, kv, heads);
    const int per_tile = tiles ? RowsPerTile(heads, kv.kv_heads) : 0;
    const RowPlan plan = PlanRows(rows_, cache.spec().blocks, kv.block_tokens, per_tile);
    StepView view = {.rows = rows_.rows,
                     .table_stride = plan.table_stride,
                     .decode_count = static_cast<int>(plan.decode_rows.size()),
                     .splits = plan.splits,
                     .tile_count = static_cast<int>(plan.tiles.size())};
    LC_ASSIGN_OR_RETURN(view.kv_position, block_.Append(rows_.kv_position));
    LC_ASSIGN_OR_RETURN(view.rope_position, block_.Append(rows_.rope_position));
    LC_ASSIGN_OR_RETURN(view.table_index, block_.Append(rows_.table_index));
    LC_ASSIGN_OR_RETURN(view.old_positions, block_.Append<int32_t>(plan.old_positions));
    LC_ASSIGN_OR_RETURN(view.decode_rows, block_.Append<int32_t>(plan.decode_rows));
    LC_ASSIGN_OR_RETURN(view.tiles, block_.Append<RowTile>(plan.tiles));
    const auto stride = static_cast<size_t>(plan.table_stride);
    LC_ASSIGN_OR_RETURN(const auto tables,
                        block_.Reserve<int32_t>(rows_.block_tables.size() * stride));
    for (size_t s = 0; s < rows_.block_tables.size(); ++s) {
      const absl::Span<const int32_t> table = rows_.block_tables[s].subspan(0, stride);
      std::copy(table.begin(), table.end(), tables.host + s * stride);
    }
    view.tables = tables.device;
    rows_end_ = block_.used();
    views_.assign(1, view);
    viewed_cache_ = &cache;
    viewed_heads_ = heads;
  }
  view_ = static_cast<int>(list_.views.size());
  list_.views.push_back(views_.front());
  return view_;
}

absl::Status CudaOps::RecordRopeTable(const Rope& rope, int view) {
  if (rope_ == &rope || rope.rope_dims == 0) return absl::OkStatus();
  Command& command = Record(CommandKind::kRopeTable, rows_.rows);
  command.view = view;
  LC_ASSIGN_OR_RETURN(command.p[0], block_.Append<float>(rope.inv_freq));
  rows_end_ = block_.used();
  command.n[0] = rope.rope_dims / 2;
  command.eps_bits = Bits(rope.magnitude);
  rope_ = &rope;
  return absl::OkStatus();
}

void CudaOps::RecordPendingSwiglu() {
  if (swiglu_gate_ == nullptr) return;
  Command& command = Record(CommandKind::kSwiglu, rows_.rows);
  command.p[0] = swiglu_gate_;
  command.p[1] = scratch_.up.address();
  command.n[0] = rows_.rows * swiglu_width_;
  swiglu_gate_ = nullptr;
}

bool CudaOps::MakeGated(const CudaMatrix& next) {
  Command& command = list_.commands.back();  // gate and up, as nothing came since
  const RecordedProduct* const products =
      &list_.products[static_cast<size_t>(command.first_product)];
  if (&scratch_.NormedFor(command.rows) == &scratch_.OperandFor(command.rows) ||
      !scratch_.multiplier->TakesGated(*products[0].w, *products[1].w, next, command.rows)) {
    return false;
  }
  command.flags |= kGated;
  return true;
}

// ---- operations

absl::Status CudaOps::Embed(const Matrix& table, absl::Span<const int32_t> tokens, Buffer x) {
  const auto rows = static_cast<int64_t>(tokens.size());
  LC_RETURN_IF_ERROR(CheckRows("x", x, rows, table.k()));
  LC_RETURN_IF_ERROR(CheckTokens(tokens, table.n()));
  if (rows == 0) return absl::OkStatus();
  RecordPendingSwiglu();
  LC_ASSIGN_OR_RETURN(const auto place, block_.Reserve<int32_t>(tokens.size()));
  std::copy(tokens.begin(), tokens.end(), place.host);
  tokens_ = absl::MakeSpan(place.host, tokens.size());
  token_end_ = table.n();
  rows_end_ = block_.used();
  Command& command = Record(CommandKind::kEmbed, static_cast<int>(rows));
  command.p[0] = &table;
  command.p[1] = place.device;
  command.p[2] = x.address;
  return absl::OkStatus();
}

absl::Status CudaOps::AttentionInput(const AttentionWeights& weights, const Rope& rope, Buffer x,
                                     KvCache& cache, int layer, Buffer q) {
  const auto& cuda_cache = static_cast<const CudaKvCache&>(cache);
  LC_RETURN_IF_ERROR(CheckAttentionInput(weights, rope, cache.spec(), layer));
  if (weights.wq->n() > limits_.q_width || weights.wk->n() > limits_.kv_width) {
    return absl::InvalidArgumentError(absl::StrCat("wq gives ", weights.wq->n(), " values and wk ",
                                                   weights.wk->n(), "; prepared ", limits_.q_width,
                                                   " and ", limits_.kv_width));
  }
  const int rows = rows_.rows;
  LC_RETURN_IF_ERROR(CheckRows("x", x, rows, weights.norm->size()));
  LC_RETURN_IF_ERROR(CheckRows("q", q, rows, weights.wq->n()));
  if (rows == 0) return absl::OkStatus();
  RecordPendingSwiglu();
  const int heads = static_cast<int>(weights.wq->n() / cache.spec().head_dim);
  LC_ASSIGN_OR_RETURN(const int view, ViewFor(cuda_cache, heads));
  LC_RETURN_IF_ERROR(RecordRopeTable(rope, view));
  const int64_t kv_width = weights.wk->n();
  // Their biases are added where the results are read, in the kernel that turns them.
  const RecordedProduct products[] = {
      {AsCuda(weights.wq), nullptr, Floats(q), weights.wq->n()},
      {AsCuda(weights.wk), nullptr, scratch_.keys.as<float>(), kv_width},
      {AsCuda(weights.wv), nullptr, scratch_.values.as<float>(), kv_width}};
  RecordNormOperand(Floats(x), *weights.norm, weights.norm_eps, products, rows);
  Command& command = Record(CommandKind::kRopeCache, rows);
  command.view = view;
  command.p[0] = q.address;
  command.p[1] = &cuda_cache;
  command.p[2] = ValuesOf(weights.q_norm);
  command.p[3] = ValuesOf(weights.k_norm);
  command.p[4] = ValuesOf(weights.bq);
  command.p[5] = ValuesOf(weights.bk);
  command.p[6] = ValuesOf(weights.bv);
  command.eps_bits = Bits(weights.norm_eps);
  command.n[0] = layer;
  command.n[1] = heads;
  command.n[2] = rope.rope_dims / 2;
  command.n[3] = rope.pairing == Rope::Pairing::kAdjacent ? 1 : 0;
  return absl::OkStatus();
}

absl::Status CudaOps::Attention(Buffer q, const KvCache& cache, int layer, int heads, Buffer out) {
  const auto& cuda_cache = static_cast<const CudaKvCache&>(cache);
  const KvCacheSpec& spec = cache.spec();
  const int64_t width = int64_t{heads} * spec.head_dim;
  LC_RETURN_IF_ERROR(CheckAttention(spec, layer, heads));
  if (width > limits_.q_width) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention of ", width, " values; prepared ", limits_.q_width));
  }
  LC_RETURN_IF_ERROR(CheckRows("q", q, rows_.rows, width));
  LC_RETURN_IF_ERROR(CheckRows("out", out, rows_.rows, width));
  if (rows_.rows == 0) return absl::OkStatus();
  RecordPendingSwiglu();
  LC_ASSIGN_OR_RETURN(const int view, ViewFor(cuda_cache, heads));
  for (const CommandKind kind : {CommandKind::kDecodeAttention, CommandKind::kTiledAttention}) {
    const StepView& rows = list_.views[static_cast<size_t>(view)];
    const int count = kind == CommandKind::kDecodeAttention ? rows.decode_count : rows.tile_count;
    if (count == 0) continue;
    Command& command = Record(kind, rows_.rows);
    command.view = view;
    command.p[0] = q.address;
    command.p[1] = &cuda_cache;
    command.p[2] = out.address;
    command.n[0] = layer;
    command.n[1] = heads;
  }
  return absl::OkStatus();
}

absl::Status CudaOps::LinearAdd(const Matrix& w, const Vector* bias, Buffer in, Buffer x) {
  const int rows = rows_.rows;
  LC_RETURN_IF_ERROR(CheckRows("in", in, rows, w.k()));
  LC_RETURN_IF_ERROR(CheckRows("x", x, rows, w.n()));
  LC_RETURN_IF_ERROR(CheckVector("the bias", bias, w.n()));
  if (rows == 0) return absl::OkStatus();
  const RecordedProduct product = {AsCuda(&w), ValuesOf(bias), Floats(x), w.n(), 1};
  const bool fused =
      swiglu_gate_ != nullptr && swiglu_gate_ == Floats(in) && swiglu_width_ == w.k();
  if (fused && MakeGated(*product.w)) {
    swiglu_gate_ = nullptr;
    RecordProducts({&product, 1}, rows);
    return absl::OkStatus();
  }
  if (!fused) RecordPendingSwiglu();
  Command& command = Record(fused ? CommandKind::kSwigluOperand : CommandKind::kPlainOperand, rows);
  command.p[0] = in.address;
  if (fused) command.p[1] = scratch_.up.address();
  command.n[0] = w.k();
  command.forms = FormsFor({&product, 1}, rows);
  swiglu_gate_ = nullptr;
  RecordProducts({&product, 1}, rows);
  return absl::OkStatus();
}

absl::Status CudaOps::FfnInput(const FfnWeights& weights, Buffer x, Buffer out) {
  LC_RETURN_IF_ERROR(CheckFfn(weights));
  const int rows = rows_.rows;
  const int64_t hidden = weights.norm->size();
  const int64_t ffn = weights.gate->n();
  LC_RETURN_IF_ERROR(CheckRows("x", x, rows, hidden));
  LC_RETURN_IF_ERROR(CheckRows("out", out, rows, ffn));
  if (ffn > limits_.ffn) {
    return absl::InvalidArgumentError(absl::StrCat("an ffn of ", ffn, ", prepared ", limits_.ffn));
  }
  if (rows == 0) return absl::OkStatus();
  RecordPendingSwiglu();
  const RecordedProduct products[] = {
      {AsCuda(weights.gate), ValuesOf(weights.gate_bias), Floats(out), ffn, 0,
       LargestOf(weights.gate_bias)},
      {AsCuda(weights.up), ValuesOf(weights.up_bias), scratch_.up.as<float>(), ffn, 0,
       LargestOf(weights.up_bias)}};
  RecordNormOperand(Floats(x), *weights.norm, weights.norm_eps, products, rows);
  // The product that follows reads gate and up as its operand's producer; anything else that comes
  // first makes the result in `out`.
  swiglu_gate_ = Floats(out);
  swiglu_width_ = ffn;
  return absl::OkStatus();
}

absl::Status CudaOps::FindNonFinite(Buffer x, int width, absl::Span<uint8_t> non_finite) {
  LC_RETURN_IF_ERROR(CheckRows("x", x, static_cast<int64_t>(non_finite.size()), width));
  if (non_finite.empty()) return absl::OkStatus();
  if (!non_finite_.empty()) {
    return absl::FailedPreconditionError("FindNonFinite twice between two Finish");
  }
  RecordPendingSwiglu();
  Command& command = Record(CommandKind::kFindNonFinite, static_cast<int>(non_finite.size()));
  command.p[0] = x.address;
  command.n[0] = width;
  non_finite_ = non_finite;
  return absl::OkStatus();
}

absl::Status CudaOps::Logits(const Vector& norm, float norm_eps, const Matrix& w,
                             absl::Span<const int32_t> selected, Buffer x, Buffer logits) {
  const auto rows = static_cast<int>(selected.size());
  if (rows == 0) return absl::OkStatus();
  LC_RETURN_IF_ERROR(CheckVector("the output norm", &norm, w.k()));
  LC_RETURN_IF_ERROR(CheckRows("logits", logits, rows, w.n()));
  if (rows > limits_.logit_rows || w.k() > limits_.hidden) {
    return absl::InvalidArgumentError(absl::StrCat("logits of ", rows, " rows of ", w.k(),
                                                   "; prepared ", limits_.logit_rows, " of ",
                                                   limits_.hidden));
  }
  LC_ASSIGN_OR_RETURN(const int32_t largest, LargestSelected(selected));
  LC_RETURN_IF_ERROR(CheckRows("x", x, int64_t{largest} + 1, w.k()));
  bool in_place = true;
  for (int i = 0; i < rows; ++i) in_place = in_place && selected[static_cast<size_t>(i)] == i;
  RecordPendingSwiglu();
  const float* from = Floats(x);
  if (!in_place) {
    LC_ASSIGN_OR_RETURN(const int32_t* place, block_.Append(selected));
    Command& command = Record(CommandKind::kGatherRows, rows);
    command.p[0] = x.address;
    command.p[1] = place;
    command.n[0] = w.k();
    from = scratch_.selected.as<float>();
  }
  const RecordedProduct product = {AsCuda(&w), nullptr, Floats(logits), w.n()};
  RecordNormOperand(from, norm, norm_eps, {&product, 1}, rows);
  return absl::OkStatus();
}

}  // namespace layercake::kernels::cuda
