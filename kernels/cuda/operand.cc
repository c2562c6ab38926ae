#include "kernels/cuda/operand.h"

#include <cstddef>
#include <limits>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/operand_kernel.h"

namespace layercake::kernels::cuda {
namespace {

// Sizes of the forms' arrays, in the order of OperandView; each begins at a multiple of 256.
struct Sizes {
  size_t fixed = 0;
  size_t values = 0;
  size_t half = 0;
  size_t half_scale = 0;
  size_t row_norm = 0;
  size_t bf16_high = 0;
  size_t bf16_low = 0;
  size_t tiles = 0;
};

constexpr size_t kAlign = 256;
constexpr size_t Aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// rows and k are below 2^31 each (checked), so no product of theirs with a value's bytes overflows.
Sizes SizesOf(int64_t rows, int64_t k, OperandForms forms) {
  const auto count = static_cast<size_t>(rows) * static_cast<size_t>(k);
  Sizes sizes;
  if ((forms & kFixedForm) != 0) {
    const int64_t groups = (rows + kFixedGroupRows - 1) / kFixedGroupRows;
    sizes.fixed = Aligned(static_cast<size_t>(groups * kFixedGroupRows) *
                          static_cast<size_t>(ColumnBlocks(k)) * sizeof(FixedBlock));
  }
  if ((forms & kFloat32Form) != 0) sizes.values = Aligned(count * sizeof(float));
  if ((forms & kFloat16Form) != 0) sizes.half = Aligned(count * sizeof(uint16_t));
  if ((forms & (kFloat16Form | kTileForm)) != 0) {
    // Kernels of tiles read those of whole groups.
    sizes.half_scale = Aligned(static_cast<size_t>(TileGroups(rows) * kTileTokens) * sizeof(float));
  }
  if ((forms & kTileForm) != 0) {
    sizes.row_norm = sizes.half_scale;
    sizes.tiles = sizeof(uint16_t) *
                  static_cast<size_t>(TilePieceIndex(TileGroups(rows), ColumnBlocks(k), 0, 0));
  }
  if ((forms & (kBfloat16Form | kBfloat16HighForm)) != 0) {
    sizes.bf16_high = Aligned(count * sizeof(uint16_t));
  }
  if ((forms & kBfloat16Form) != 0) sizes.bf16_low = Aligned(count * sizeof(uint16_t));
  return sizes;
}

absl::Status Produce(const Context& context, const OperandSource& source, int rows, int64_t k,
                     OperandForms forms, Operand& operand) {
  if (rows == 0) return absl::OkStatus();
  if (rows < 0 || rows > operand.max_rows() || k < 1 || k > operand.max_k() ||
      (forms & ~operand.forms()) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("an operand of ", rows, " rows of ", k, " values in forms ", forms,
                     " does not fit one made for ", operand.max_rows(), " of ", operand.max_k(),
                     " in forms ", operand.forms()));
  }
  return CudaStatus(LaunchOperand(context, source, rows, k, forms, operand.view()),
                    "make the operand of a product");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Operand>> Operand::Create(const Context& context, int max_rows,
                                                         int64_t max_k, OperandForms forms) {
  if (max_rows < 1 || max_k < 1 || max_k > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no operand has ", max_rows, " rows of ", max_k, " values"));
  }
  const Sizes sizes = SizesOf(max_rows, max_k, forms);
  auto operand = absl::WrapUnique(new Operand());
  LC_ASSIGN_OR_RETURN(
      operand->memory_,
      DeviceArray::Allocate(context,
                            sizes.fixed + sizes.values + sizes.half + sizes.half_scale +
                                sizes.row_norm + sizes.bf16_high + sizes.bf16_low + sizes.tiles,
                            "the operand of the products"));
  std::byte* next = operand->memory_.as<std::byte>();
  const auto take = [&next](size_t bytes) {
    std::byte* at = bytes == 0 ? nullptr : next;
    next += bytes;
    return at;
  };
  operand->view_.fixed = reinterpret_cast<FixedBlock*>(take(sizes.fixed));
  operand->view_.values = reinterpret_cast<float*>(take(sizes.values));
  operand->view_.half = reinterpret_cast<uint16_t*>(take(sizes.half));
  operand->view_.half_scale = reinterpret_cast<float*>(take(sizes.half_scale));
  operand->view_.row_norm = reinterpret_cast<float*>(take(sizes.row_norm));
  operand->view_.bf16_high = reinterpret_cast<uint16_t*>(take(sizes.bf16_high));
  operand->view_.bf16_low = reinterpret_cast<uint16_t*>(take(sizes.bf16_low));
  operand->view_.tiles = reinterpret_cast<uint16_t*>(take(sizes.tiles));
  operand->view_.tile_groups = TileGroups(max_rows);
  operand->max_rows_ = max_rows;
  operand->max_k_ = max_k;
  operand->forms_ = forms;
  return operand;
}

absl::Status PlainOperand(const Context& context, const float* x, int rows, int64_t k,
                          OperandForms forms, Operand& operand) {
  OperandSource source;
  source.kind = OperandSource::Kind::kPlain;
  source.x = x;
  source.stride = k;
  return Produce(context, source, rows, k, forms, operand);
}

absl::Status NormOperand(const Context& context, const float* x, const float* weight, float eps,
                         int rows, int64_t k, OperandForms forms, Operand& operand) {
  OperandSource source;
  source.kind = OperandSource::Kind::kNorm;
  source.x = x;
  source.other = weight;
  source.stride = k;
  source.eps = eps;
  return Produce(context, source, rows, k, forms, operand);
}

absl::Status SwigluOperand(const Context& context, const float* gate, const float* up,
                           int64_t stride, int rows, int64_t k, OperandForms forms,
                           Operand& operand) {
  OperandSource source;
  source.kind = OperandSource::Kind::kSwiglu;
  source.x = gate;
  source.other = up;
  source.stride = stride;
  return Produce(context, source, rows, k, forms, operand);
}

}  // namespace layercake::kernels::cuda
