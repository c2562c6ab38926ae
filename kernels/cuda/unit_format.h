// Where each bit of a quantised row stands in the file and in a unit (unit_layout.h). One table for
// the host's and the device's repack; a permutation by construction, since both directions read it.
#pragma once

#include <cstdint>

#include "kernels/cuda/unit_layout.h"

namespace layercake::kernels::cuda {

// Bits [shift, shift + width) of byte `byte` of a row's 256 columns in the file.
struct BitField {
  int byte;
  int shift;
  int width;
};

// A code of a weight: low bits from one field, the bits above from another (width 0: none).
struct CodeFields {
  BitField low;
  BitField high;
};

enum class MainPlane : uint8_t { kNone, kNibble, kTable, kByte };

// The planes of a unit, by byte offset (-1: none). A stored code is the file's code ^ inverted; its
// bits are, from the lowest: the bit plane's, or the pair plane's, then the main plane's.
struct UnitFormat {
  int inverted;
  MainPlane main;
  int pair;
  int bit;
  int header[2];            // offset of each header plane
  int header_row_bytes[2];  // 0: none
};

LAYERCAKE_HOST_DEVICE constexpr UnitFormat UnitFormatOf(WeightType type) {
  switch (type) {
    case WeightType::kQ4_K:
      return {0, MainPlane::kNibble, -1, -1, {2048, 0}, {16, 0}};
    case WeightType::kQ5_K:
      return {0, MainPlane::kNibble, -1, 2048, {2560, 0}, {16, 0}};
    case WeightType::kQ6_K:
      return {32, MainPlane::kNibble, 2048, -1, {3072, 3328}, {16, 2}};
    case WeightType::kQ2_K:
      return {0, MainPlane::kNone, 0, -1, {1024, 1280}, {16, 4}};
    case WeightType::kQ3_K:
      return {4, MainPlane::kNone, 0, 1024, {1536, 1728}, {12, 2}};
    case WeightType::kQ8_0:
      return {0, MainPlane::kByte, -1, -1, {4096, 0}, {16, 0}};
    case WeightType::kQ4_0:
      return {8, MainPlane::kNibble, -1, -1, {2048, 0}, {16, 0}};
    case WeightType::kQ4_1:
      return {0, MainPlane::kNibble, -1, -1, {2048, 2304}, {16, 16}};
    case WeightType::kQ5_0:
      return {16, MainPlane::kNibble, -1, 2048, {2560, 0}, {16, 0}};
    case WeightType::kQ5_1:
      return {0, MainPlane::kNibble, -1, 2048, {2560, 2816}, {16, 16}};
    case WeightType::kIQ4_NL:
      return {0, MainPlane::kTable, -1, -1, {2048, 0}, {16, 0}};
    case WeightType::kIQ4_XS:
    case WeightType::kMXFP4:
      return {0, MainPlane::kTable, -1, -1, {2048, 0}, {8, 0}};
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      break;
  }
  return {0, MainPlane::kNone, -1, -1, {0, 0}, {0, 0}};
}

// The code of column `column` in [0, 256) in the file.
LAYERCAKE_HOST_DEVICE constexpr CodeFields CodeFieldsOf(WeightType type, int column) {
  const int j = column / 32;
  const int c = column % 32;
  // Blocks of 32 keep values 0 to 15 in the low nibbles and 16 to 31 in the high ones.
  const int nibble_byte = c % 16;
  const int nibble_shift = 4 * (c / 16);
  switch (type) {
    case WeightType::kQ4_K:
      return {{16 + 32 * (j / 2) + c, 4 * (j % 2), 4}, {0, 0, 0}};
    case WeightType::kQ5_K:
      return {{48 + 32 * (j / 2) + c, 4 * (j % 2), 4}, {16 + c, j, 1}};
    case WeightType::kQ6_K:
      return {{64 * (j / 4) + 32 * (j % 2) + c, 4 * (j % 4 / 2), 4},
              {128 + 32 * (j / 4) + c, 2 * (j % 4), 2}};
    case WeightType::kQ2_K:
      return {{16 + 32 * (j / 4) + c, 2 * (j % 4), 2}, {0, 0, 0}};
    case WeightType::kQ3_K:
      return {{32 + 32 * (j / 4) + c, 2 * (j % 4), 2}, {c, j, 1}};
    case WeightType::kQ8_0:
      return {{34 * j + 2 + c, 0, 8}, {0, 0, 0}};
    case WeightType::kQ4_0:
    case WeightType::kIQ4_NL:
      return {{18 * j + 2 + nibble_byte, nibble_shift, 4}, {0, 0, 0}};
    case WeightType::kQ4_1:
      return {{20 * j + 4 + nibble_byte, nibble_shift, 4}, {0, 0, 0}};
    case WeightType::kQ5_0:
      return {{22 * j + 6 + nibble_byte, nibble_shift, 4}, {22 * j + 2 + c / 8, c % 8, 1}};
    case WeightType::kQ5_1:
      return {{24 * j + 8 + nibble_byte, nibble_shift, 4}, {24 * j + 4 + c / 8, c % 8, 1}};
    case WeightType::kIQ4_XS:
      return {{8 + 16 * j + nibble_byte, nibble_shift, 4}, {0, 0, 0}};
    case WeightType::kMXFP4:
      return {{17 * j + 1 + nibble_byte, nibble_shift, 4}, {0, 0, 0}};
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      break;
  }
  return {{0, 0, 0}, {0, 0, 0}};
}

// The file's byte that is byte `i` of a row in header plane `plane`.
LAYERCAKE_HOST_DEVICE constexpr int HeaderByteOf(WeightType type, int plane, int i) {
  const int block = i / 2;
  const int half = i % 2 + 2 * plane;
  switch (type) {
    case WeightType::kQ6_K:
      return (plane == 0 ? 192 : 208) + i;
    case WeightType::kQ2_K:
      return (plane == 0 ? 0 : 80) + i;
    case WeightType::kQ3_K:
      return (plane == 0 ? 96 : 108) + i;
    case WeightType::kQ8_0:
      return 34 * block + half;
    case WeightType::kQ4_0:
    case WeightType::kIQ4_NL:
      return 18 * block + half;
    case WeightType::kQ4_1:
      return 20 * block + half;
    case WeightType::kQ5_0:
      return 22 * block + half;
    case WeightType::kQ5_1:
      return 24 * block + half;
    case WeightType::kMXFP4:
      return 17 * i;
    default:
      return i;  // Q4_K, Q5_K, IQ4_XS: the head of the block
  }
}

// Byte of the file's row within its 256 columns; zero beyond `bytes`.
struct RowBytesView {
  const uint8_t* address;
  int bytes;
  LAYERCAKE_HOST_DEVICE constexpr uint32_t At(int i) const { return i < bytes ? address[i] : 0u; }
};

LAYERCAKE_HOST_DEVICE constexpr uint32_t ReadField(const RowBytesView& row, const BitField& field) {
  return (row.At(field.byte) >> field.shift) & ((1u << field.width) - 1u);
}

// The stored code: file code ^ inverted.
LAYERCAKE_HOST_DEVICE constexpr uint32_t StoredCode(WeightType type, const RowBytesView& row,
                                                    int column) {
  const CodeFields fields = CodeFieldsOf(type, column);
  uint32_t code = ReadField(row, fields.low);
  if (fields.high.width != 0) code |= ReadField(row, fields.high) << fields.low.width;
  return code ^ static_cast<uint32_t>(UnitFormatOf(type).inverted);
}

// How far a stored code is shifted down to give its main plane's (or, without one, pair plane's)
// part: the width of the planes below.
LAYERCAKE_HOST_DEVICE constexpr int PlaneShift(const UnitFormat& format, bool pair_plane) {
  const int bit_width = format.bit >= 0 ? 1 : 0;
  if (pair_plane) return bit_width;
  return bit_width + (format.pair >= 0 ? 2 : 0);
}

// Row of the unit and column of weight b of register (j, lane, i).
LAYERCAKE_HOST_DEVICE constexpr int RegisterRow(int lane, int i) { return lane / 4 + 8 * (i & 1); }
LAYERCAKE_HOST_DEVICE constexpr int RegisterColumn(int j, int lane, int i, int b) {
  return 32 * j + 16 * (i >> 1) + 4 * (lane % 4) + b;
}

// A place in a unit: bits [shift, shift + width) of byte `byte`.
// Main plane: the code of register (j, lane, i), weight b.
LAYERCAKE_HOST_DEVICE constexpr BitField MainPlaceOf(MainPlane plane, int j, int lane, int i,
                                                     int b) {
  if (plane == MainPlane::kByte) return {((j * 32 + lane) * 4 + i) * 4 + b, 0, 8};
  const int word = ((j % 4) * 32 + lane) * 4 + i;
  if (plane == MainPlane::kNibble) return {4 * word + b, 4 * (j / 4), 4};
  return {4 * word + b / 2 + 2 * (j / 4), 4 * (b % 2), 4};
}
LAYERCAKE_HOST_DEVICE constexpr BitField PairPlaceOf(int j, int lane, int i, int b) {
  const int word = ((j % 4 / 2) * 32 + lane) * 4 + i;
  return {4 * word + b, 2 * ((j & 1) + 2 * (j / 4)), 2};
}
LAYERCAKE_HOST_DEVICE constexpr BitField BitPlaceOf(int j, int lane, int i, int b) {
  return {4 * (lane * 4 + i) + b, j, 1};
}

}  // namespace layercake::kernels::cuda
