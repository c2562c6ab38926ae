// Products with many rows of activations (prompts, big batches): matrix-bound, so weights are made
// f16 or bf16 for the tensor cores.
//
//   BF16 weights    as they are, times bf16 activations (the operand's high half): an output is off
//                   by about 1.7e-3 of its norm, as everywhere where BF16 models are served
//   F16 weights     as they are, times f16 activations under a power of two per row: 2e-4
//   quantised types read as units (matmul_units.h): 4e-4; Q2_K unpacked panel by panel to f16
//                   (weights round to 11 bits), times f16 activations: 3e-4; MXFP4, whose exponents
//                   f16 cannot hold, to bf16: 1.7e-3
//   F32 weights     not here: they stay with the kernels for few rows
//
// BF16 weights at up to 128 rows have a kernel of their own on Hopper (matmul_bf16.h). Other float
// weights and panels are multiplied by the matrix library (cuBLASLt), or by a tiled kernel of ours
// without it. The library's algorithm is chosen once per (bucket of rows, n, k) and kept, so
// that equal calls have equal bits; a row's bits may depend on the bucket.
//
// Thread rule: the step thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/operand.h"
#include "kernels/weight_type.h"

namespace layercake::kernels::cuda {

// Whether `rows` rows are faster here than in groups of kDecodeRows. False for F32, and for rows of
// 16-bit weights that are not aligned to 16 bytes (k not a multiple of 8).
bool LargePathPays(WeightType type, int64_t k, int rows);

// The forms that the large path reads for weights of a type.
OperandForms LargeForms(WeightType type);

// Whether a type goes by panels there.
bool NeedsPanels(WeightType type);

struct LargeMatmulOptions {
  // The most weights (n * k) of a matrix that will come and NeedsPanels: it sizes the panel that
  // they are unpacked to, at most kMaxPanelBytes. 0: none will come.
  int64_t max_panel_weights = 0;
  // Matrices of 16-bit floats will come. Without them and panels nobody needs the library.
  bool float_weights = true;
  // Multiply with our own kernel even where the library is there.
  bool own_kernel = false;
  // Neither units nor matmul_bf16.h: panels, and float weights by the library. Quantised types read
  // kFloat16Form or kBfloat16HighForm then, whatever LargeForms says.
  bool panels_only = false;
};

class LargeMatmul {
 public:
  // Allocates the panel, partial sums and the library's workspace, and says in the log which of the
  // two ways it will go and why. A missing library is no error.
  static absl::StatusOr<std::unique_ptr<LargeMatmul>> Create(const Context& context,
                                                             const LargeMatmulOptions& options);
  virtual ~LargeMatmul() = default;

  // The products of the first `rows` rows of the operand, which holds LargeForms of their types.
  // 1 to kMaxProducts products, any rows >= 1. InvalidArgument for what LargePathPays never takes,
  // or a quantised matrix larger than promised. Enqueues only; the first call of a shape asks the
  // library for an algorithm, which may load its code: make that call outside of a graph's capture.
  virtual absl::Status Multiply(absl::Span<const Product> products, const Operand& operand,
                                int rows) = 0;

  // Whether MultiplyGated takes two matrices of a type, of equal n and k, with so many rows.
  virtual bool HasGated(WeightType type, int rows) const = 0;
  // Multiplier::MultiplyGated where HasGated; `next` has LargeForms of the type.
  virtual absl::Status MultiplyGated(const GatedProduct& gated, const Operand& operand, int rows,
                                     Operand& next) = 0;

  virtual bool uses_library() const = 0;
};

}  // namespace layercake::kernels::cuda
