#include "kernels/cuda/matmul_large.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/hopper_code.h"
#include "kernels/cuda/matmul_bf16.h"
#include "kernels/cuda/matmul_units.h"
#include "kernels/cuda/panel_split.h"
#include "kernels/cuda/tiled_matmul.h"
#include "kernels/cuda/unpack.h"

namespace layercake::kernels::cuda {
namespace {

static_assert(kMaxProducts == kMaxScalings && kMaxProducts == kBf16MaxProducts);

// From here on, unpacking a matrix and multiplying it once beats reading its units for every 16
// rows: a unit's bytes, then 2 written and 2 read again per weight, are about five such reads.
constexpr int kMostGroupedRows = 64;

bool Is16BitFloat(WeightType type) { return type == WeightType::kBF16 || type == WeightType::kF16; }

bool MultipliesAsBf16(WeightType type) { return type == WeightType::kBF16 || UnpacksToBf16(type); }

// What weights that are, or become, 16-bit floats are multiplied with.
OperandForms PlainForm(WeightType type) {
  return MultipliesAsBf16(type) ? kBfloat16HighForm : kFloat16Form;
}

class PanelMatmul final : public LargeMatmul {
 public:
  PanelMatmul(const Context& context, DeviceArray panel, int64_t panel_bytes, DeviceArray partials,
              DeviceArray flags, const Bf16Scratch& bf16, std::unique_ptr<CublasLt> library)
      : context_(context),
        panel_(std::move(panel)),
        panel_bytes_(panel_bytes),
        partials_(std::move(partials)),
        flags_(std::move(flags)),
        bf16_(bf16),
        library_(std::move(library)) {}

  bool uses_library() const override { return library_ != nullptr; }

  bool HasGated(WeightType type, int rows) const override {
    return ReadsUnits(type) || TakesBf16(type, rows);
  }

  absl::Status Multiply(absl::Span<const Product> products, const Operand& operand,
                        int rows) override {
    if (products.size() > kMaxProducts) {
      return absl::InvalidArgumentError(
          absl::StrCat(products.size(), " products at once; at most ", kMaxProducts));
    }
    RowScalings scalings;
    scalings.rows = rows;
    for (const Product& product : products) {
      LC_RETURN_IF_ERROR(Check(product, operand, rows));
      const WeightType type = product.w->type();
      if (ReadsUnits(type) || TakesBf16(type, rows)) continue;
      scalings.product[scalings.count++] = ScalingOf(product, operand.view());
    }
    LC_RETURN_IF_ERROR(CudaStatus(ScaleBefore(context_, scalings), "add biases"));
    for (size_t i = 0; i < products.size();) {
      const CudaMatrix& w = *products[i].w;
      const bool by_units = ReadsUnits(w.type());
      if (!by_units && !TakesBf16(w.type(), rows)) {
        LC_RETURN_IF_ERROR(MultiplyOne(products[i++], operand.view(), rows));
        continue;
      }
      size_t end = i + 1;
      while (end < products.size() && products[end].w->type() == w.type() &&
             products[end].w->k() == w.k()) {
        ++end;
      }
      const absl::Span<const Product> together = products.subspan(i, end - i);
      LC_RETURN_IF_ERROR(by_units ? MultiplyByUnits(together, operand.view(), rows)
                                  : MultiplyByBf16(together, operand.view(), rows));
      i = end;
    }
    return CudaStatus(ScaleAfter(context_, scalings), "scale products");
  }

  absl::Status MultiplyGated(const GatedProduct& gated, const Operand& operand, int rows,
                             Operand& next) override {
    const CudaMatrix& gate = *gated.gate;
    const CudaMatrix& up = *gated.up;
    LC_RETURN_IF_ERROR(Check({.w = &gate}, operand, rows));
    if (!HasGated(gate.type(), rows) || up.type() != gate.type() || up.n() != gate.n() ||
        up.k() != gate.k() || &next == &operand || gate.n() % 2 != 0 ||
        (next.forms() & FormOf(gate.type())) == 0 || rows > next.max_rows() ||
        gate.n() > next.max_k()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "no gated product of ", rows, " rows with ", WeightTypeName(gate.type()), " ", gate.n(),
          " x ", gate.k(), " and ", WeightTypeName(up.type()), " ", up.n(), " x ", up.k(),
          " into an operand of ", next.max_rows(), " x ", next.max_k()));
    }
    if (!ReadsUnits(gate.type())) {
      const Product products[] = {{.w = &gate, .bias = gated.gate_bias},
                                  {.w = &up, .bias = gated.up_bias}};
      return MultiplyByBf16(products, operand.view(), rows, next.view().bf16_high);
    }
    LC_RETURN_IF_ERROR(PrepareUnits(gate.type()));
    const OperandView& to = next.view();
    UnitProducts products;
    products.count = 2;
    products.k = gate.k();
    products.product[0] = UnitProductOf({.w = &gate, .bias = gated.gate_bias});
    products.product[1] = UnitProductOf({.w = &up, .bias = gated.up_bias});
    products.swiglu = {.tiles = to.tiles,
                       .tile_groups = to.tile_groups,
                       .half_scale = to.half_scale,
                       .gate_norm = gate.range().largest_row_norm,
                       .up_norm = up.range().largest_row_norm,
                       .gate_bias = gated.largest_gate_bias,
                       .up_bias = gated.largest_up_bias};
    return CudaStatus(MultiplyUnits(context_, gate.type(), products, operand.view(), rows,
                                    {partials_.address(), flags_.as<uint32_t>()}),
                      "multiply gate and up");
  }

 private:
  // Without partial sums there are panels only.
  bool ReadsUnits(WeightType type) const { return partials_.bytes() > 0 && HasUnitMatmul(type); }
  OperandForms FormOf(WeightType type) const {
    return ReadsUnits(type) ? kTileForm : PlainForm(type);
  }

  absl::Status Check(const Product& product, const Operand& operand, int rows) const {
    const CudaMatrix& w = *product.w;
    if (rows < 1 || rows > operand.max_rows() || w.k() > operand.max_k()) {
      return absl::InvalidArgumentError(absl::StrCat(rows, " rows of ", w.k(),
                                                     " values are not in an operand of ",
                                                     operand.max_rows(), " x ", operand.max_k()));
    }
    if (w.type() == WeightType::kF32 || w.k() % 8 != 0) {
      return absl::InvalidArgumentError(absl::StrCat("the path for many rows takes no ",
                                                     WeightTypeName(w.type()), " rows of ", w.k()));
    }
    if ((operand.forms() & FormOf(w.type())) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the operand lacks the form for ", WeightTypeName(w.type())));
    }
    if (UnitBytes(w.type()) > 0 && !ReadsUnits(w.type()) &&
        PanelRows(w.n(), w.k(), panel_bytes_) == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          w.n(), " x ", w.k(), " weights do not fit a panel of ", panel_bytes_, " bytes"));
    }
    return absl::OkStatus();
  }

  static RowScaling ScalingOf(const Product& product, const OperandView& x) {
    return {.scale = MultipliesAsBf16(product.w->type()) ? nullptr : x.half_scale,
            .bias = product.bias,
            .y = product.out,
            .n = product.w->n(),
            .y_stride = product.out_stride,
            .accumulate = product.accumulate};
  }

  static UnitProduct UnitProductOf(const Product& product) {
    return {.units = product.w->weights(),
            .n = product.w->n(),
            .weight_scale = UnitWeightScale(product.w->range()),
            .bias = product.bias,
            .out = product.out,
            .out_stride = product.out_stride,
            .accumulate = product.accumulate};
  }

  // Whether products of a type go by matmul_bf16.h.
  bool TakesBf16(WeightType type, int rows) const {
    return bf16_.encode != nullptr && type == WeightType::kBF16 && rows >= kBf16LeastRows &&
           rows <= kBf16MostRows;
  }

  // Models have a few of the types that there are.
  absl::Status PrepareUnits(WeightType type) {
    const uint64_t bit = uint64_t{1} << static_cast<int>(type);
    if ((prepared_units_ & bit) != 0) return absl::OkStatus();
    LC_RETURN_IF_ERROR(CudaStatus(PrepareUnitMatmul(context_, type),
                                  absl::StrCat("prepare products with ", WeightTypeName(type))));
    prepared_units_ |= bit;
    return absl::OkStatus();
  }

  // Products of one type and k.
  absl::Status MultiplyByUnits(absl::Span<const Product> products, const OperandView& x, int rows) {
    LC_RETURN_IF_ERROR(PrepareUnits(products[0].w->type()));
    UnitProducts together;
    together.k = products[0].w->k();
    for (const Product& product : products) {
      together.product[together.count++] = UnitProductOf(product);
    }
    return CudaStatus(MultiplyUnits(context_, products[0].w->type(), together, x, rows,
                                    {partials_.address(), flags_.as<uint32_t>()}),
                      "multiply units");
  }

  // Products of one k; `gated`: as Bf16Products says.
  absl::Status MultiplyByBf16(absl::Span<const Product> products, const OperandView& x, int rows,
                              uint16_t* gated = nullptr) {
    Bf16Products together;
    together.k = products[0].w->k();
    together.gated = gated;
    for (const Product& product : products) {
      together.product[together.count++] = {
          .weights = reinterpret_cast<const uint16_t*>(product.w->weights()),
          .n = product.w->n(),
          .bias = product.bias,
          .out = product.out,
          .out_stride = product.out_stride,
          .accumulate = product.accumulate};
    }
    return CudaStatus(MultiplyBf16(context_, together, x.bf16_high, rows, bf16_),
                      "multiply BF16 weights");
  }

  // Between ScaleBefore and ScaleAfter.
  absl::Status MultiplyOne(const Product& product, const OperandView& x, int rows) {
    const CudaMatrix& w = *product.w;
    const bool bf16 = MultipliesAsBf16(w.type());
    MatmulProblem problem = {.bf16 = bf16,
                             .x = bf16 ? x.bf16_high : x.half,
                             .y = product.out,
                             .n = w.n(),
                             .k = w.k(),
                             .rows = rows,
                             .y_stride = product.out_stride,
                             .accumulate = AddsToBefore(ScalingOf(product, x))};
    if (Is16BitFloat(w.type())) {
      problem.w = reinterpret_cast<const uint16_t*>(w.weights());
      return Solve(problem);
    }
    return SolveByPanels(w, problem);
  }

  absl::Status SolveByPanels(const CudaMatrix& w, MatmulProblem problem) {
    const int64_t panel_rows = PanelRows(w.n(), w.k(), panel_bytes_);
    auto* const panel = panel_.as<uint16_t>();
    problem.w = panel;
    for (int64_t first = 0; first < w.n(); first += panel_rows) {
      const int64_t end = std::min(first + panel_rows, w.n());
      LC_RETURN_IF_ERROR(
          CudaStatus(UnpackRows(context_, w.type(), w.n(), w.k(), w.weights(), first, end, panel),
                     absl::StrCat("unpack ", WeightTypeName(w.type()))));
      problem.n = end - first;
      LC_RETURN_IF_ERROR(Solve(problem));
      problem.y += problem.n;
    }
    return absl::OkStatus();
  }

  absl::Status Solve(const MatmulProblem& problem) {
    if (library_ != nullptr) return library_->Multiply(problem);
    return CudaStatus(TiledMatmul(context_, problem), "multiply many rows");
  }

  const Context context_;
  const DeviceArray panel_;
  const int64_t panel_bytes_;
  const DeviceArray partials_;  // empty: no products by units
  const DeviceArray flags_;
  const Bf16Scratch bf16_;  // in the same partial sums and flags
  const std::unique_ptr<CublasLt> library_;
  uint64_t prepared_units_ = 0;  // types, by bits
};

}  // namespace

bool LargePathPays(WeightType type, int64_t k, int rows) {
  if (type == WeightType::kF32 || k % 8 != 0) return false;
  return rows > (NeedsPanels(type) ? kMostGroupedRows : kDecodeRows);
}

OperandForms LargeForms(WeightType type) {
  return HasUnitMatmul(type) ? kTileForm : PlainForm(type);
}

bool NeedsPanels(WeightType type) { return UnitBytes(type) > 0 && !HasUnitMatmul(type); }

absl::StatusOr<std::unique_ptr<LargeMatmul>> LargeMatmul::Create(
    const Context& context, const LargeMatmulOptions& options) {
  LC_RETURN_IF_ERROR(CudaStatus(PrepareTiledMatmul(), "prepare the products of many rows"));
  const int64_t panel_bytes = PanelBytes(options.max_panel_weights);
  LC_ASSIGN_OR_RETURN(DeviceArray panel,
                      DeviceArray::Allocate(context, static_cast<size_t>(panel_bytes),
                                            "a panel of unpacked weights"));
  DeviceArray partials;
  DeviceArray flags;
  Bf16Scratch bf16;
  if (!options.panels_only) {
    LC_RETURN_IF_ERROR(CudaStatus(PrepareBf16Matmul(context, &bf16.encode),
                                  "prepare the products of BF16 weights"));
    LC_ASSIGN_OR_RETURN(partials,
                        DeviceArray::Allocate(context,
                                              std::max(UnitPartialBytes(context.sm_count),
                                                       Bf16PartialBytes(context.sm_count)),
                                              "partial sums of many rows"));
    LC_ASSIGN_OR_RETURN(flags, DeviceArray::Allocate(context,
                                                     std::max(UnitFlagBytes(context.sm_count),
                                                              Bf16FlagBytes(context.sm_count)),
                                                     "flags of many rows"));
    bf16.partials = partials.address();
    bf16.flags = flags.as<uint32_t>();
  }
  if (LacksHopperCode(context)) {
    spdlog::warn(
        "this build has no code for sm_90a, so prompts and many streams are slower than this GPU "
        "allows: build with LAYERCAKE_CUDA_ARCHITECTURES=90a");
  }
  std::unique_ptr<CublasLt> library;
  if (options.own_kernel) {
    spdlog::info("products of many rows: own kernel, as asked");
  } else if (!options.float_weights && options.max_panel_weights == 0) {
    spdlog::info("products of many rows: quantised weights as they are");
  } else {
    auto loaded = CublasLt::Load(context, CublasLtNames(std::getenv("CUDA_HOME")));
    if (loaded.ok()) {
      library = *std::move(loaded);
      spdlog::info("products of many rows: {}", library->name());
    } else if (absl::IsNotFound(loaded.status()) || absl::IsUnimplemented(loaded.status())) {
      spdlog::warn("products of many rows: own kernel, slower; {}",
                   std::string(loaded.status().message()));
    } else {
      return loaded.status();
    }
  }
  return std::make_unique<PanelMatmul>(context, std::move(panel), panel_bytes, std::move(partials),
                                       std::move(flags), bf16, std::move(library));
}

}  // namespace layercake::kernels::cuda
