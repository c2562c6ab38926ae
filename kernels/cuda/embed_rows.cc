#include "absl/strings/str_cat.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/unpack.h"

namespace layercake::kernels::cuda {

absl::Status EmbedRows(const Context& context, const CudaMatrix& table, const int32_t* tokens,
                       int rows, float* x) {
  return CudaStatus(
      GatherRows(context, table.type(), table.n(), table.k(), table.weights(), tokens, rows, x),
      absl::StrCat("embed ", rows, " rows"));
}

}  // namespace layercake::kernels::cuda
