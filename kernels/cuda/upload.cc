#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_units.h"
#include "kernels/cuda/repack.h"
#include "kernels/cuda/repack_kernel.h"

namespace layercake::kernels::cuda {
namespace {

// Rows are brought to the device about so many bytes at a time, then repacked there.
constexpr size_t kPieceBytes = size_t{64} << 20;

// Bytes on the device; InvalidArgument for sizes that do not fit each other.
absl::StatusOr<int64_t> DeviceBytes(WeightType type, int64_t n, int64_t k, size_t file_bytes) {
  const BlockShape block = BlockShapeOf(type);
  const int64_t most = int64_t{1} << 31;
  const absl::Status wrong = absl::InvalidArgumentError(
      absl::StrCat("a matrix of ", n, " x ", k, " ", WeightTypeName(type), " in ", file_bytes,
                   " bytes cannot be"));
  if (n < 1 || k < 1 || n >= most || k >= most || block.elements == 0 || k % block.elements != 0) {
    return wrong;
  }
  // Below 2^31 rows of below 2^33 bytes: 64 bits hold it.
  if (RowBytes(type, k) * static_cast<uint64_t>(n) != file_bytes) return wrong;
  return UnitBytes(type) == 0 ? static_cast<int64_t>(file_bytes) : UnitsBytes(type, n, k);
}

absl::Status CopyIn(const Context& context, void* to, const std::byte* from, size_t bytes) {
  return CudaStatus(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, context.stream),
                    "copy weights to the device");
}

// What the products by units need to know, measured by the device once the matrix is there; `room`
// is free for it.
absl::StatusOr<UnitRange> RangeOf(const Context& context, WeightType type, int64_t n, int64_t k,
                                  const uint8_t* units, const DeviceArray& room) {
  UnitRange range;
  if (!HasUnitMatmul(type)) return range;
  static_assert(sizeof(UnitRange) == 3 * sizeof(float));
  LC_RETURN_IF_ERROR(
      CudaStatus(MeasureUnitRange(context, type, n, k, reinterpret_cast<const std::byte*>(units),
                                  room.as<float>()),
                 "measure weights"));
  LC_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(&range, room.address(), sizeof(range),
                                                cudaMemcpyDeviceToHost, context.stream),
                                "measure weights"));
  LC_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(context.stream), "measure weights"));
  return range;
}

absl::StatusOr<UnitRange> CopyAndRepack(const Context& context, WeightType type, int64_t n,
                                        int64_t k, absl::Span<const std::byte> bytes,
                                        uint8_t* units) {
  const size_t row_bytes = RowBytes(type, k);
  const auto tiles = static_cast<int64_t>(kPieceBytes / (row_bytes * kTileRows));
  const int64_t piece_rows = std::min(n, std::max<int64_t>(tiles, 1) * kTileRows);
  LC_ASSIGN_OR_RETURN(DeviceArray piece,
                      DeviceArray::Allocate(context, static_cast<size_t>(piece_rows) * row_bytes,
                                            "room to bring weights in"));
  for (int64_t row = 0; row < n; row += piece_rows) {
    const int64_t rows = std::min(piece_rows, n - row);
    LC_RETURN_IF_ERROR(CopyIn(context, piece.address(),
                              bytes.data() + static_cast<size_t>(row) * row_bytes,
                              static_cast<size_t>(rows) * row_bytes));
    LC_RETURN_IF_ERROR(
        CudaStatus(LaunchRepack(context, type, n, k, piece.as<uint8_t>(), row, rows, units),
                   "repack weights"));
  }
  LC_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(context.stream), "bring weights in"));
  return RangeOf(context, type, n, k, units, piece);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaMatrix>> UploadMatrix(const Context& context, WeightType type,
                                                         int64_t n, int64_t k,
                                                         absl::Span<const std::byte> bytes) {
  LC_ASSIGN_OR_RETURN(const int64_t device_bytes, DeviceBytes(type, n, k, bytes.size()));
  LC_ASSIGN_OR_RETURN(
      DeviceArray memory,
      DeviceArray::Allocate(context, static_cast<size_t>(device_bytes),
                            absl::StrCat("a matrix of ", n, " x ", k, " ", WeightTypeName(type))));
  UnitRange range;
  if (UnitBytes(type) == 0) {
    LC_RETURN_IF_ERROR(CopyIn(context, memory.address(), bytes.data(), bytes.size()));
    LC_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(context.stream), "bring weights in"));
  } else {
    LC_ASSIGN_OR_RETURN(range, CopyAndRepack(context, type, n, k, bytes, memory.as<uint8_t>()));
  }
  return std::make_unique<CudaMatrix>(type, n, k, std::move(memory), range);
}

}  // namespace layercake::kernels::cuda
