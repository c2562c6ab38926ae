#include "kernels/cuda/repack_kernel.h"
#include "kernels/cuda/unit_format.h"

namespace layercake::kernels::cuda {
namespace {

constexpr int kThreads = 128;

struct RepackArguments {
  const uint8_t* file;
  uint8_t* units;
  int64_t n;
  int64_t k;
  int64_t row_begin;
  int64_t row_bytes;
  int block_row_bytes;  // of 256 columns
};

// One 32-bit word of a unit. `row` gives the bytes of a row of the unit.
template <WeightType kType, typename Row>
__device__ uint32_t UnitWord(int word, Row row) {
  constexpr UnitFormat kFormat = UnitFormatOf(kType);
  constexpr int kMainWords = kFormat.main == MainPlane::kNone   ? 0
                             : kFormat.main == MainPlane::kByte ? kBytePlaneBytes / 4
                                                                : kNibblePlaneBytes / 4;
  const int lane = word / 4 % 32;
  const int i = word % 4;
  uint32_t value = 0;
  const auto place = [&](const BitField& field, uint32_t code) {
    value |= (code & ((1u << field.width) - 1u)) << (8 * (field.byte % 4) + field.shift);
  };
  if (word < kMainWords) {
    const RowBytesView bytes = row(RegisterRow(lane, i));
    for (int j = word / 128; j < 8; j += kFormat.main == MainPlane::kByte ? 8 : 4) {
      for (int b = 0; b < 4; ++b) {
        place(
            MainPlaceOf(kFormat.main, j, lane, i, b),
            StoredCode(kType, bytes, RegisterColumn(j, lane, i, b)) >> PlaneShift(kFormat, false));
      }
    }
    return value;
  }
  if (kFormat.pair >= 0 && word >= kFormat.pair / 4 &&
      word < (kFormat.pair + kPairPlaneBytes) / 4) {
    const RowBytesView bytes = row(RegisterRow(lane, i));
    const int first = 2 * ((word - kFormat.pair / 4) / 128);
    for (int f = 0; f < 4; ++f) {
      const int j = first + (f & 1) + 4 * (f >> 1);
      for (int b = 0; b < 4; ++b) {
        place(PairPlaceOf(j, lane, i, b),
              StoredCode(kType, bytes, RegisterColumn(j, lane, i, b)) >> PlaneShift(kFormat, true));
      }
    }
    return value;
  }
  if (kFormat.bit >= 0 && word >= kFormat.bit / 4 && word < (kFormat.bit + kBitPlaneBytes) / 4) {
    const RowBytesView bytes = row(RegisterRow(lane, i));
    for (int j = 0; j < 8; ++j) {
      for (int b = 0; b < 4; ++b) {
        place(BitPlaceOf(j, lane, i, b), StoredCode(kType, bytes, RegisterColumn(j, lane, i, b)));
      }
    }
    return value;
  }
  const int plane = kFormat.header_row_bytes[1] != 0 && word >= kFormat.header[1] / 4 ? 1 : 0;
  for (int b = 0; b < 4; ++b) {
    const int at = 4 * word + b - kFormat.header[plane];
    const RowBytesView bytes = row(at / kFormat.header_row_bytes[plane]);
    value |= bytes.At(HeaderByteOf(kType, plane, at % kFormat.header_row_bytes[plane])) << (8 * b);
  }
  return value;
}

// grid: (column blocks, unit rows of the piece).
template <WeightType kType>
__global__ void __launch_bounds__(kThreads) RepackKernel(RepackArguments arguments) {
  GridDependencyWait();
  const int64_t block = blockIdx.x;
  const int64_t unit_row = arguments.row_begin / kUnitRows + blockIdx.y;
  const auto row = [&](int r) {
    const int64_t at = unit_row * kUnitRows + r;
    const int64_t begin = block * arguments.block_row_bytes;
    const int64_t left = arguments.row_bytes - begin;
    const int bytes = at >= arguments.n                  ? 0
                      : left < arguments.block_row_bytes ? static_cast<int>(left)
                                                         : arguments.block_row_bytes;
    return RowBytesView{arguments.file + (at - arguments.row_begin) * arguments.row_bytes + begin,
                        bytes};
  };
  auto* unit = reinterpret_cast<uint32_t*>(arguments.units +
                                           UnitIndex(arguments.n, arguments.k, unit_row, block) *
                                               int64_t{UnitBytes(kType)});
  for (int word = static_cast<int>(threadIdx.x); word < UnitBytes(kType) / 4; word += kThreads) {
    unit[word] = UnitWord<kType>(word, row);
  }
}

using RepackFunction = void (*)(RepackArguments);

RepackFunction KernelOf(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
      return RepackKernel<WeightType::kQ4_0>;
    case WeightType::kQ4_1:
      return RepackKernel<WeightType::kQ4_1>;
    case WeightType::kQ5_0:
      return RepackKernel<WeightType::kQ5_0>;
    case WeightType::kQ5_1:
      return RepackKernel<WeightType::kQ5_1>;
    case WeightType::kQ8_0:
      return RepackKernel<WeightType::kQ8_0>;
    case WeightType::kQ2_K:
      return RepackKernel<WeightType::kQ2_K>;
    case WeightType::kQ3_K:
      return RepackKernel<WeightType::kQ3_K>;
    case WeightType::kQ4_K:
      return RepackKernel<WeightType::kQ4_K>;
    case WeightType::kQ5_K:
      return RepackKernel<WeightType::kQ5_K>;
    case WeightType::kQ6_K:
      return RepackKernel<WeightType::kQ6_K>;
    case WeightType::kIQ4_NL:
      return RepackKernel<WeightType::kIQ4_NL>;
    case WeightType::kIQ4_XS:
      return RepackKernel<WeightType::kIQ4_XS>;
    case WeightType::kMXFP4:
      return RepackKernel<WeightType::kMXFP4>;
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      break;
  }
  return nullptr;
}

}  // namespace

cudaError_t LaunchRepack(const Context& context, WeightType type, int64_t n, int64_t k,
                         const uint8_t* file, int64_t row_begin, int64_t rows, uint8_t* units) {
  const RepackFunction kernel = KernelOf(type);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  const int row_bytes = UnitBytes(type) / kUnitRows;  // of 256 columns: 8 times 32
  const RepackArguments arguments = {file,     units, n, k, row_begin, k / 32 * row_bytes / 8,
                                     row_bytes};
  const dim3 grid(static_cast<unsigned>(ColumnBlocks(k)),
                  static_cast<unsigned>(UnitRowCount(rows)));
  return Launch(context, grid, dim3(kThreads), 0, kernel, arguments);
}

}  // namespace layercake::kernels::cuda
