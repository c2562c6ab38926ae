#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "kernels/cuda/decode.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_bf16.h"
#include "kernels/cuda/matmul_float.h"
#include "kernels/cuda/matmul_large.h"
#include "kernels/cuda/product_choice.h"

namespace layercake::kernels::cuda {
namespace {

static_assert(kDecodeRows == kDecodeMaxRows && kDecodeRows == kFloatMaxRows &&
              kDecodeRows == kBf16PairRows);
static_assert(kMaxProducts == kDecodeMaxProducts && kMaxProducts == kFloatMaxProducts &&
              kMaxProducts == kBf16MaxProducts);

// The operand from row `row` on; a multiple of kFixedGroupRows.
OperandView FromRow(const OperandView& view, int64_t row, int64_t k) {
  OperandView from = view;
  const int64_t skip = row * k;
  if (from.fixed != nullptr) from.fixed += FixedBlockIndex(k, row, 0);
  if (from.values != nullptr) from.values += skip;
  if (from.half != nullptr) from.half += skip;
  if (from.half_scale != nullptr) from.half_scale += row;
  if (from.bf16_high != nullptr) from.bf16_high += skip;
  if (from.bf16_low != nullptr) from.bf16_low += skip;
  from.tiles = nullptr;  // no kernel for few rows reads them
  return from;
}

absl::Status Check(absl::Span<const Product> products, const Operand& operand, int rows) {
  if (products.empty() || products.size() > kMaxProducts || rows < 0 || rows > operand.max_rows()) {
    return absl::InvalidArgumentError(absl::StrCat(products.size(), " products of ", rows,
                                                   " rows; the operand has room for ",
                                                   operand.max_rows()));
  }
  for (const Product& product : products) {
    if (product.w == nullptr || product.out == nullptr) {
      return absl::InvalidArgumentError("a product without a matrix or without room for results");
    }
    const CudaMatrix& w = *product.w;
    if (w.k() != products[0].w->k() || w.k() > operand.max_k() || product.out_stride < w.n()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a product with ", w.n(), " x ", w.k(), " into rows of ", product.out_stride,
          " beside one with k = ", products[0].w->k(), "; the operand holds ", operand.max_k()));
    }
  }
  return absl::OkStatus();
}

DecodeProduct DecodeProductOf(const Product& product, int64_t row) {
  return {product.w->type(),
          product.w->weights(),
          product.w->n(),
          product.bias,
          product.out + row * product.out_stride,
          product.out_stride,
          product.accumulate};
}

FloatProduct FloatProductOf(const Product& product, int64_t row) {
  return {product.w->weights(), product.w->n(),
          product.bias,         product.out + row * product.out_stride,
          product.out_stride,   product.accumulate};
}

Bf16Products Bf16ProductsOf(const FloatProducts& products) {
  Bf16Products made;
  made.count = products.count;
  made.k = products.k;
  for (int i = 0; i < products.count; ++i) {
    const FloatProduct& product = products.product[i];
    made.product[i] = {.weights = static_cast<const uint16_t*>(product.weights),
                       .n = product.n,
                       .bias = product.bias,
                       .out = product.out,
                       .out_stride = product.out_stride,
                       .accumulate = product.accumulate};
  }
  return made;
}

class MultiplierImpl final : public Multiplier {
 public:
  MultiplierImpl(const Context& context, const MultiplierLimits& limits, DeviceArray partials,
                 DeviceArray flags, PFN_cuTensorMapEncodeTiled_v12000 encode,
                 std::unique_ptr<LargeMatmul> large)
      : context_(context),
        deterministic_(limits.deterministic),
        partials_(std::move(partials)),
        flags_(std::move(flags)),
        bf16_{encode, partials_.address(), flags_.as<uint32_t>()},
        large_(std::move(large)) {}

  OperandForms FormsFor(absl::Span<const CudaMatrix* const> matrices, int rows) const override {
    OperandForms forms = 0;
    for (const CudaMatrix* matrix : matrices) {
      forms |= FormsOfProduct(matrix->type(), matrix->k(), ChoiceRows(rows));
    }
    return forms;
  }

  absl::Status Multiply(absl::Span<const Product> products, const Operand& operand,
                        int rows) override {
    LC_RETURN_IF_ERROR(Check(products, operand, rows));
    if (rows == 0) return absl::OkStatus();
    // Products of one kind go together; the kind depends on type and rows only.
    std::vector<Product> decode;
    std::vector<Product> floats;
    std::vector<Product> large;
    for (const Product& product : products) {
      const WeightType type = product.w->type();
      if ((FormsOfProduct(type, product.w->k(), ChoiceRows(rows)) & ~operand.forms()) != 0) {
        return absl::InvalidArgumentError(absl::StrCat("the operand lacks a form that ",
                                                       WeightTypeName(type), " weights with ", rows,
                                                       " rows read"));
      }
      switch (ChooseProductKernel(type, product.w->k(), ChoiceRows(rows))) {
        case ProductKernel::kDecode:
          decode.push_back(product);
          break;
        case ProductKernel::kFloat:
          floats.push_back(product);
          break;
        case ProductKernel::kLarge:
          large.push_back(product);
          break;
      }
    }
    if (!large.empty()) {
      if (large_ == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("the multiplier was made for ", kDecodeRows, " rows, not ", rows));
      }
      LC_RETURN_IF_ERROR(large_->Multiply(large, operand, rows));
    }
    for (int row = 0; row < rows; row += kDecodeRows) {
      const int count = std::min(kDecodeRows, rows - row);
      LC_RETURN_IF_ERROR(Decode(decode, operand.view(), row, count));
      LC_RETURN_IF_ERROR(MultiplyFloatTypes(floats, operand.view(), row, count));
    }
    return absl::OkStatus();
  }

  bool TakesGated(const CudaMatrix& gate, const CudaMatrix& up, const CudaMatrix& next,
                  int rows) const override {
    const auto goes_large = [&](const CudaMatrix& w) {
      return ChooseProductKernel(w.type(), w.k(), ChoiceRows(rows)) == ProductKernel::kLarge;
    };
    if (gate.type() != up.type() || gate.n() != up.n() || gate.k() != up.k() ||
        next.k() != gate.n()) {
      return false;
    }
    if (!goes_large(gate)) {
      return !goes_large(next) && TakesBf16Pairs(gate.type(), gate.k()) &&
             TakesBf16Pairs(next.type(), next.k());
    }
    return large_ != nullptr && large_->HasGated(gate.type(), rows) && goes_large(next) &&
           LargeForms(next.type()) == LargeForms(gate.type());
  }

  absl::Status MultiplyGated(const GatedProduct& gated, const Operand& operand, int rows,
                             Operand& next) override {
    const bool few = gated.gate != nullptr &&
                     ChooseProductKernel(gated.gate->type(), gated.gate->k(), ChoiceRows(rows)) !=
                         ProductKernel::kLarge;
    if (gated.gate == nullptr || gated.up == nullptr || (!few && large_ == nullptr) || rows < 0) {
      return absl::InvalidArgumentError(absl::StrCat("no gated product of ", rows, " rows here"));
    }
    if (rows == 0) return absl::OkStatus();
    if (few) return MultiplyGatedPairs(gated, operand, rows, next);
    return large_->MultiplyGated(gated, operand, rows, next);
  }

 private:
  // Whether few rows go by matmul_bf16.h.
  bool TakesBf16Pairs(WeightType type, int64_t k) const {
    return bf16_.encode != nullptr && type == WeightType::kBF16 && k % 8 == 0 &&
           k <= kBf16MostColumns;
  }
  // The rows that the choice of kernels is told of.
  int ChoiceRows(int rows) const { return deterministic_ ? std::min(rows, kDecodeRows) : rows; }

  // Launches of as many products as one kernel takes.
  absl::Status Decode(absl::Span<const Product> products, const OperandView& operand, int row,
                      int rows) {
    std::vector<bool> done(products.size(), false);
    for (size_t first = 0; first < products.size(); ++first) {
      if (done[first]) continue;
      const int64_t k = products[first].w->k();
      WeightType second = products[first].w->type();
      DecodeProducts together;
      together.k = k;
      for (size_t i = first; i < products.size(); ++i) {
        const WeightType type = products[i].w->type();
        const WeightType first_type = products[first].w->type();
        if (done[i] || !DecodeTogether(first_type, type)) continue;
        // A launch takes two types at most.
        if (type != first_type && second != first_type && type != second) continue;
        if (type != first_type) second = type;
        together.product[together.count++] = DecodeProductOf(products[i], row);
        done[i] = true;
      }
      LC_RETURN_IF_ERROR(
          CudaStatus(LaunchDecode(context_, together, FromRow(operand, row, k).fixed, rows,
                                  {partials_.address(), flags_.as<uint32_t>()}),
                     "multiply few rows with quantised weights"));
    }
    return absl::OkStatus();
  }

  absl::Status MultiplyFloatTypes(absl::Span<const Product> products, const OperandView& operand,
                                  int row, int rows) {
    std::vector<bool> done(products.size(), false);
    for (size_t first = 0; first < products.size(); ++first) {
      if (done[first]) continue;
      FloatProducts together;
      together.type = products[first].w->type();
      together.k = products[first].w->k();
      for (size_t i = first; i < products.size(); ++i) {
        if (done[i] || products[i].w->type() != together.type) continue;
        together.product[together.count++] = FloatProductOf(products[i], row);
        done[i] = true;
      }
      const OperandView x = FromRow(operand, row, together.k);
      LC_RETURN_IF_ERROR(CudaStatus(TakesBf16Pairs(together.type, together.k)
                                        ? MultiplyBf16Pairs(context_, Bf16ProductsOf(together),
                                                            x.bf16_high, x.bf16_low, rows, bf16_)
                                        : MultiplyFloats(context_, together, x, rows),
                                    "multiply few rows with float weights"));
    }
    return absl::OkStatus();
  }

  absl::Status MultiplyGatedPairs(const GatedProduct& gated, const Operand& operand, int rows,
                                  Operand& next) {
    const CudaMatrix& gate = *gated.gate;
    const CudaMatrix& up = *gated.up;
    if (!TakesBf16Pairs(gate.type(), gate.k()) || gate.n() % 2 != 0 || up.type() != gate.type() ||
        up.n() != gate.n() || up.k() != gate.k() || &next == &operand ||
        (operand.forms() & next.forms() & kBfloat16Form) == 0 || rows > operand.max_rows() ||
        rows > next.max_rows() || gate.k() > operand.max_k() || gate.n() > next.max_k()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "no gated product of ", rows, " rows with ", WeightTypeName(gate.type()), " ", gate.n(),
          " x ", gate.k(), " and ", WeightTypeName(up.type()), " ", up.n(), " x ", up.k(),
          " into an operand of ", next.max_rows(), " x ", next.max_k()));
    }
    for (int row = 0; row < rows; row += kDecodeRows) {
      const OperandView x = FromRow(operand.view(), row, gate.k());
      const OperandView to = FromRow(next.view(), row, gate.n());
      FloatProducts both;
      both.count = 2;
      both.k = gate.k();
      both.product[0] = FloatProductOf({.w = &gate, .bias = gated.gate_bias}, 0);
      both.product[1] = FloatProductOf({.w = &up, .bias = gated.up_bias}, 0);
      Bf16Products products = Bf16ProductsOf(both);
      products.gated = to.bf16_high;
      products.gated_low = to.bf16_low;
      LC_RETURN_IF_ERROR(CudaStatus(MultiplyBf16Pairs(context_, products, x.bf16_high, x.bf16_low,
                                                      std::min(kDecodeRows, rows - row), bf16_),
                                    "multiply gate and up with few rows"));
    }
    return absl::OkStatus();
  }

  const Context context_;
  const bool deterministic_;
  DeviceArray partials_;
  DeviceArray flags_;
  const Bf16Scratch bf16_;  // in the same partial sums and flags
  std::unique_ptr<LargeMatmul> large_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Multiplier>> Multiplier::Create(const Context& context,
                                                               const MultiplierLimits& limits) {
  LC_RETURN_IF_ERROR(CudaStatus(PrepareDecode(context), "prepare the kernels for few rows"));
  LC_RETURN_IF_ERROR(
      CudaStatus(PrepareFloatMatmul(context), "prepare the kernels for float weights"));
  PFN_cuTensorMapEncodeTiled_v12000 encode = nullptr;
  LC_RETURN_IF_ERROR(
      CudaStatus(PrepareBf16Matmul(context, &encode), "prepare the kernels for BF16 weights"));
  LC_ASSIGN_OR_RETURN(DeviceArray partials,
                      DeviceArray::Allocate(context,
                                            std::max(DecodePartialsBytes(context.sm_count),
                                                     Bf16PairPartialBytes(context.sm_count)),
                                            "partial sums of products"));
  LC_ASSIGN_OR_RETURN(
      DeviceArray flags,
      DeviceArray::Allocate(
          context, std::max(DecodeFlagsBytes(context.sm_count), Bf16FlagBytes(context.sm_count)),
          "flags of products"));
  std::unique_ptr<LargeMatmul> large;
  if (limits.max_rows > kDecodeRows && !limits.deterministic) {
    LargeMatmulOptions options;
    options.max_panel_weights = limits.max_panel_weights;
    options.float_weights = limits.float_weights;
    LC_ASSIGN_OR_RETURN(large, LargeMatmul::Create(context, options));
  }
  return std::make_unique<MultiplierImpl>(context, limits, std::move(partials), std::move(flags),
                                          encode, std::move(large));
}

}  // namespace layercake::kernels::cuda
