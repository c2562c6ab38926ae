// The matrix library, if the machine has it: opened at run time, so that programs start without.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/tiled_matmul.h"

namespace layercake::kernels::cuda {

// The file names to try, in order: the loader's own path, then `cuda_home`/lib64 (null or empty:
// not).
std::vector<std::string> CublasLtNames(const char* cuda_home);

// For how many rows an algorithm is chosen that `rows` rows will use: 32, 64, 128 and so on to
// 2,048, then multiples of that. rows >= 1.
int64_t RowsBucket(int64_t rows);

// Whether an algorithm may cut k among blocks whose sums are added afterwards. With few outputs
// that is how all multiprocessors get work. From 2^20 on (64 tiles of 128 x 128) the first proposal
// without it was 3 to 8 % faster on an H200 wherever the library would rather have cut: n x rows of
// 4,096 x 256, 5,120 x 256 and 512, 8,192 x 128 and 256, with k of 14,336 to 28,672.
constexpr bool MaySplitK(int64_t bucket, int64_t n) { return bucket * n < int64_t{1} << 20; }

class CublasLt {
 public:
  // NotFound, with what the loader said, when none of `names` opens; Unimplemented when this build
  // knows nothing of the library. Allocates the library's workspace.
  static absl::StatusOr<std::unique_ptr<CublasLt>> Load(const Context& context,
                                                        absl::Span<const std::string> names);
  virtual ~CublasLt() = default;

  // Enqueues the product (TiledMatmul's contract). The algorithm is chosen at the first call of a
  // (RowsBucket, n, k, strides, alignment) and kept: by the library's own estimate and MaySplitK,
  // never by the clock, so that every run of a program adds in the same order.
  virtual absl::Status Multiply(const MatmulProblem& problem) = 0;

  // What was opened, and its version.
  virtual std::string name() const = 0;
};

}  // namespace layercake::kernels::cuda
