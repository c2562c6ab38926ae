// The left side of the products: rows of activations made ready once for all matrices that share
// them (q, k and v; gate and up).
//
// Each producer is one kernel whose blocks have a shape that k and the forms decide, never the
// rows: a row's bytes depend on that row alone. Everything is enqueued on the context's stream and
// allocates nothing.
//
// Thread rule: the step thread.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/operand_layout.h"

namespace layercake::kernels::cuda {

class Operand {
 public:
  // Room for `max_rows` rows of `max_k` values in each of `forms`. ResourceExhausted with sizes.
  static absl::StatusOr<std::unique_ptr<Operand>> Create(const Context& context, int max_rows,
                                                         int64_t max_k, OperandForms forms);

  const OperandView& view() const { return view_; }
  int max_rows() const { return max_rows_; }
  int64_t max_k() const { return max_k_; }
  // The forms there is room for.
  OperandForms forms() const { return forms_; }

 private:
  Operand() = default;

  DeviceArray memory_;
  OperandView view_;
  int max_rows_ = 0;
  int64_t max_k_ = 0;
  OperandForms forms_ = 0;
};

// The rows x (rows, k), float32 on the device, in each of `forms`. InvalidArgument when the operand
// has no room for them. Nothing is done for rows = 0.
absl::Status PlainOperand(const Context& context, const float* x, int rows, int64_t k,
                          OperandForms forms, Operand& operand);

// The same of RMSNorm(x) = x / sqrt(mean(x^2) + eps) * weight; weight (k).
absl::Status NormOperand(const Context& context, const float* x, const float* weight, float eps,
                         int rows, int64_t k, OperandForms forms, Operand& operand);

// The same of silu(gate) * up, silu(z) = z / (1 + exp(-z)); gate, up (rows, k), rows `stride`
// floats apart.
absl::Status SwigluOperand(const Context& context, const float* gate, const float* up,
                           int64_t stride, int rows, int64_t k, OperandForms forms,
                           Operand& operand);

}  // namespace layercake::kernels::cuda
