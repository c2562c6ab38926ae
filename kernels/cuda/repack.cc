#include "kernels/cuda/repack.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cuda/unit_format.h"

namespace layercake::kernels::cuda {
namespace {

// One row of one unit: its bytes in the file (fewer than 256 columns' worth at the end of k, none
// beyond n).
struct UnitRow {
  size_t offset = 0;
  int bytes = 0;
};

UnitRow FindRow(WeightType type, int64_t n, int64_t k, int64_t row, int64_t block) {
  if (row >= n) return {};
  const size_t row_bytes = RowBytes(type, k);
  const size_t begin = static_cast<size_t>(block) * RowBytes(type, kUnitColumns);
  const size_t bytes = std::min(RowBytes(type, kUnitColumns), row_bytes - begin);
  return {static_cast<size_t>(row) * row_bytes + begin, static_cast<int>(bytes)};
}

void WriteField(uint8_t* bytes, const BitField& field, uint32_t code) {
  bytes[field.byte] = static_cast<uint8_t>(bytes[field.byte] | (code << field.shift));
}

uint32_t ReadPlace(const uint8_t* bytes, const BitField& field) {
  return (static_cast<uint32_t>(bytes[field.byte]) >> field.shift) & ((1u << field.width) - 1u);
}

// visit(j, lane, i, b) for each weight of row `row` of a unit.
template <typename Visit>
void ForEachWeight(int row, Visit visit) {
  for (int j = 0; j < 8; ++j) {
    for (int t = 0; t < 4; ++t) {
      for (int half = 0; half < 2; ++half) {
        for (int b = 0; b < 4; ++b) visit(j, (row % 8) * 4 + t, (row / 8) + 2 * half, b);
      }
    }
  }
}

void PackRow(WeightType type, const RowBytesView& from, int row, uint8_t* unit) {
  const UnitFormat format = UnitFormatOf(type);
  ForEachWeight(row, [&](int j, int lane, int i, int b) {
    const uint32_t code = StoredCode(type, from, RegisterColumn(j, lane, i, b));
    if (format.main != MainPlane::kNone) {
      WriteField(unit, MainPlaceOf(format.main, j, lane, i, b), code >> PlaneShift(format, false));
    }
    if (format.pair >= 0) {
      WriteField(unit + format.pair, PairPlaceOf(j, lane, i, b),
                 (code >> PlaneShift(format, true)) & 3u);
    }
    if (format.bit >= 0) WriteField(unit + format.bit, BitPlaceOf(j, lane, i, b), code & 1u);
  });
  for (int plane = 0; plane < 2; ++plane) {
    uint8_t* header = unit + format.header[plane] + row * format.header_row_bytes[plane];
    for (int i = 0; i < format.header_row_bytes[plane]; ++i) {
      header[i] = static_cast<uint8_t>(from.At(HeaderByteOf(type, plane, i)));
    }
  }
}

// The first `bytes` bytes of the row.
void UnpackUnitRow(WeightType type, const uint8_t* unit, int row, int bytes, uint8_t* to) {
  const UnitFormat format = UnitFormatOf(type);
  uint8_t whole[272] = {};  // Q8_0 has the longest row of 256 columns
  ForEachWeight(row, [&](int j, int lane, int i, int b) {
    uint32_t code = 0;
    if (format.main != MainPlane::kNone) {
      code |= ReadPlace(unit, MainPlaceOf(format.main, j, lane, i, b)) << PlaneShift(format, false);
    }
    if (format.pair >= 0) {
      code |= ReadPlace(unit + format.pair, PairPlaceOf(j, lane, i, b)) << PlaneShift(format, true);
    }
    if (format.bit >= 0) code |= ReadPlace(unit + format.bit, BitPlaceOf(j, lane, i, b));
    code ^= static_cast<uint32_t>(format.inverted);
    const CodeFields fields = CodeFieldsOf(type, RegisterColumn(j, lane, i, b));
    WriteField(whole, fields.low, code & ((1u << fields.low.width) - 1u));
    if (fields.high.width != 0) WriteField(whole, fields.high, code >> fields.low.width);
  });
  for (int plane = 0; plane < 2; ++plane) {
    const uint8_t* header = unit + format.header[plane] + row * format.header_row_bytes[plane];
    for (int i = 0; i < format.header_row_bytes[plane]; ++i) {
      whole[HeaderByteOf(type, plane, i)] = header[i];
    }
  }
  std::memcpy(to, whole, static_cast<size_t>(bytes));
}

// visit(unit byte offset, row of the unit, where the row is in the file).
template <typename Visit>
void ForEachUnitRow(WeightType type, int64_t n, int64_t k, Visit visit) {
  for (int64_t unit_row = 0; unit_row < UnitRowCount(n); ++unit_row) {
    for (int64_t block = 0; block < ColumnBlocks(k); ++block) {
      const auto offset = static_cast<size_t>(UnitIndex(n, k, unit_row, block)) *
                          static_cast<size_t>(UnitBytes(type));
      for (int row = 0; row < kUnitRows; ++row) {
        visit(offset, row, FindRow(type, n, k, unit_row * kUnitRows + row, block));
      }
    }
  }
}

}  // namespace

int64_t UnitsBytes(WeightType type, int64_t n, int64_t k) {
  const int64_t most = std::numeric_limits<int64_t>::max() / 2;
  if (n <= 0 || k <= 0 || n > most || k > most || UnitBytes(type) == 0) return 0;
  const int64_t rows = UnitRowCount(n);
  const int64_t blocks = ColumnBlocks(k);
  if (rows > most / blocks || rows * blocks > most / UnitBytes(type)) return 0;
  return rows * blocks * UnitBytes(type);
}

void RepackToUnits(WeightType type, int64_t n, int64_t k, absl::Span<const std::byte> file,
                   absl::Span<std::byte> units) {
  std::memset(units.data(), 0, units.size());
  const auto* from = reinterpret_cast<const uint8_t*>(file.data());
  auto* to = reinterpret_cast<uint8_t*>(units.data());
  ForEachUnitRow(type, n, k, [&](size_t unit, int row, const UnitRow& in_file) {
    PackRow(type, {from + in_file.offset, in_file.bytes}, row, to + unit);
  });
}

void RepackToFile(WeightType type, int64_t n, int64_t k, absl::Span<const std::byte> units,
                  absl::Span<std::byte> file) {
  const auto* from = reinterpret_cast<const uint8_t*>(units.data());
  auto* to = reinterpret_cast<uint8_t*>(file.data());
  ForEachUnitRow(type, n, k, [&](size_t unit, int row, const UnitRow& in_file) {
    if (in_file.bytes == 0) return;
    UnpackUnitRow(type, from + unit, row, in_file.bytes, to + in_file.offset);
  });
}

}  // namespace layercake::kernels::cuda
