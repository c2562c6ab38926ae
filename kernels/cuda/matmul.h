// Products of activations with weight matrices on one CUDA device.
//
// Everything is enqueued on the context's stream and can be captured into a graph; nothing is
// allocated and nothing waits after creation. For 1 to kDecodeRows rows one family of kernels
// serves each weight type, with one order of additions that depends on the matrices that go
// together and the device's SM count only: a row's result is the same, bit for bit, whatever runs
// beside it. More rows may take other kernels (ChooseProductKernel) with other last bits.
//
// Thread rule: the step thread.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/operand.h"
#include "kernels/cuda/unit_range.h"
#include "kernels/ops.h"
#include "kernels/weight_type.h"

namespace layercake::kernels::cuda {

// The most rows that the decode kernels take at once.
inline constexpr int kDecodeRows = 16;
// The most matrices of one Multiply.
inline constexpr int kMaxProducts = 3;

// A weight matrix in device memory: quantised types as units (unit_layout.h), float types row-major
// as in the file.
class CudaMatrix : public Matrix {
 public:
  CudaMatrix(WeightType type, int64_t n, int64_t k, DeviceArray memory, const UnitRange& range)
      : Matrix(n, k), type_(type), memory_(std::move(memory)), range_(range) {}

  WeightType type() const { return type_; }
  const std::byte* weights() const { return memory_.as<std::byte>(); }
  size_t bytes() const { return memory_.bytes(); }
  // Of types that HasUnitMatmul; zeros otherwise.
  const UnitRange& range() const { return range_; }

 private:
  WeightType type_;
  DeviceArray memory_;
  UnitRange range_;
};

// Copies n rows of RowBytes(type, k) bytes to the device and brings them into its layout. Returns
// when the bytes may be unmapped. InvalidArgument when the sizes do not fit each other;
// ResourceExhausted with sizes when the device has not the room.
absl::StatusOr<std::unique_ptr<CudaMatrix>> UploadMatrix(const Context& context, WeightType type,
                                                         int64_t n, int64_t k,
                                                         absl::Span<const std::byte> bytes);

// out (rows, w.n()) = operand * w^T (+ bias), rows of out `out_stride` floats apart.
struct Product {
  const CudaMatrix* w = nullptr;
  const float* bias = nullptr;  // (n) on the device, or null
  float* out = nullptr;
  int64_t out_stride = 0;
  bool accumulate = false;  // out += instead
};

// silu(x * gate^T + gate_bias) * (x * up^T + up_bias), silu(z) = z / (1 + exp(-z)).
struct GatedProduct {
  const CudaMatrix* gate = nullptr;
  const CudaMatrix* up = nullptr;
  const float* gate_bias = nullptr;  // (n) on the device, or null
  const float* up_bias = nullptr;
  float largest_gate_bias = 0;  // magnitudes
  float largest_up_bias = 0;
};

struct MultiplierLimits {
  int max_rows = 0;
  // The most weights (n * k) of a matrix that will meet more than kDecodeRows rows and NeedsPanels
  // (matmul_large.h): it sizes the scratch that these are unpacked to.
  int64_t max_panel_weights = 0;
  // Matrices of 16-bit floats will meet as many.
  bool float_weights = true;
  // Any rows go through the kernels for few rows, kDecodeRows at a time: a row's result is then the
  // same, bit for bit, in a step of any size. Prompts take several times as long.
  bool deterministic = false;
};

// What products need beside their arguments: scratch for partial sums, library handles.
class Multiplier {
 public:
  static absl::StatusOr<std::unique_ptr<Multiplier>> Create(const Context& context,
                                                            const MultiplierLimits& limits);
  virtual ~Multiplier() = default;

  // The forms that the operand of such products must hold.
  virtual OperandForms FormsFor(absl::Span<const CudaMatrix* const> matrices, int rows) const = 0;

  // 1 to kMaxProducts matrices of equal k that share the operand, which holds FormsFor them.
  // Outputs do not overlap. InvalidArgument for what does not fit; nothing is done for rows = 0.
  virtual absl::Status Multiply(absl::Span<const Product> products, const Operand& operand,
                                int rows) = 0;

  // Whether a gated product of so many rows can become the operand of a product with `next` without
  // being written and read again in between.
  virtual bool TakesGated(const CudaMatrix& gate, const CudaMatrix& up, const CudaMatrix& next,
                          int rows) const = 0;
  // Fills `next`, another operand, in FormsFor what TakesGated was asked about. `operand` was made
  // by NormOperand. InvalidArgument for what does not fit; nothing is done for rows = 0.
  virtual absl::Status MultiplyGated(const GatedProduct& gated, const Operand& operand, int rows,
                                     Operand& next) = 0;
};

// x[r] = row tokens[r] of the table as float32: x (rows, table.k()), tokens (rows) on the device,
// each checked by the caller.
absl::Status EmbedRows(const Context& context, const CudaMatrix& table, const int32_t* tokens,
                       int rows, float* x);

}  // namespace layercake::kernels::cuda
