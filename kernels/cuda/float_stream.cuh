// What the kernels for 16-bit float weights read, as a warp copies it into the stages of its ring
// in shared memory: rows of weights, eight to a slice, and all rows of activations, over the
// columns that are the warp's.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/matmul_float.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/operand_layout.h"

namespace layercake::kernels::cuda {

inline constexpr int kFloatWarps = 8;
inline constexpr int kSliceRows = 8;  // rows of weights in one mma
inline constexpr int kChunk = 64;     // columns that a warp takes at a time: 128 bytes of each row
inline constexpr int kPieceBytes = 16;  // of one lane's read
inline constexpr int kPieceColumns = 8;
// Of one stage. Half a chunk: of whole ones too few would fit beside that which is being
// multiplied.
inline constexpr int kStageColumns = 32;
inline constexpr int kStagesPerChunk = kChunk / kStageColumns;
inline constexpr int kSliceBytes = 2 * kSliceRows * kStageColumns;  // of weights, in one stage

__host__ __device__ inline int SliceCount(int64_t n) {
  return static_cast<int>((n + kSliceRows - 1) / kSliceRows);
}

// Which rows of which matrix a slice is.
struct Slice {
  int product;
  int64_t row;
};
__device__ inline Slice SliceAt(const FloatProducts& products, int index) {
  int product = 0;
  while (product + 1 < products.count && index >= SliceCount(products.product[product].n)) {
    index -= SliceCount(products.product[product].n);
    ++product;
  }
  return {product, int64_t{kSliceRows} * index};
}

// The slices [first, end) of a block, all slices dealt out evenly, and how many a walk takes: the
// walks, as few as can be, are about equal, so that each has as many bytes under way. There are no
// more blocks than slices.
struct SliceRange {
  int first, end, step;
};
template <int kSlices>
__device__ SliceRange SlicesOfBlock(const FloatProducts& products) {
  int total = 0;
  for (int i = 0; i < products.count; ++i) total += SliceCount(products.product[i].n);
  const int each = total / static_cast<int>(gridDim.x);
  const int more = total % static_cast<int>(gridDim.x);  // this many blocks have one more
  const int block = static_cast<int>(blockIdx.x);
  const int first = block * each + min(block, more);
  const int count = each + (block < more ? 1 : 0);
  const int walks = (count + kSlices - 1) / kSlices;
  return {first, first + count, (count + walks - 1) / walks};
}

// Which columns a warp's stages hold, one after another: all of the warp's chunks in each walk.
class ColumnWalk {
 public:
  __device__ ColumnWalk(int warp, int k) : first_(warp * kChunk), k_(k), column_(first_) {}

  __device__ int column() const { return column_; }
  // To the next stage; whether it begins a walk.
  __device__ bool Advance() {
    column_ += kStageColumns;
    if (kStagesPerChunk > 1 && column_ % kChunk != 0) return false;
    column_ += (kFloatWarps - 1) * kChunk;
    if (column_ < k_) return false;
    column_ = first_;
    return true;
  }

 private:
  int first_, k_, column_;
};

// The stream of a warp's weights. They go into a stage as [slice][32 columns][row][4 pieces], so
// that a quarter warp reads 128 bytes at once; kLanes lanes copy a stage's columns of one row.
template <int kSlices>
class WeightStream {
 public:
  __device__ WeightStream(const FloatProducts& products, SliceRange range, int warp, int lane)
      : products_(products),
        range_(range),
        k_(static_cast<int>(products.k)),
        columns_(warp, k_),
        row_(lane / kLanes),
        piece_column_(kPieceColumns * (lane % kLanes)),
        offset_(512 * (lane % kLanes / 4) + 64 * row_ + kPieceBytes * (lane % 4)) {
    SetRows();
  }

  __device__ void CopyNext(std::byte* stage) {
    const int column = columns_.column();
    const bool in_row = column + piece_column_ < k_;
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
#pragma unroll
      for (int row = 0; row < kSliceRows; row += 32 / kLanes) {  // this lane's, from row_ on
        const bool valid = in_row && row < rows_left_[slice];
        const uint16_t* from = from_[slice];
        if (valid) from += int64_t{row} * k_ + column;
        CopyAsync16(stage + kSliceBytes * slice + 64 * row + offset_, from, valid);
      }
    }
    if (!columns_.Advance()) return;
    range_.first += range_.step;
    SetRows();
  }

 private:
  static constexpr int kLanes = kStageColumns / kPieceColumns;

  __device__ void SetRows() {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      from_[slice] = static_cast<const uint16_t*>(products_.product[0].weights);
      rows_left_[slice] = 0;
      if (slice >= range_.step || range_.first + slice >= range_.end) continue;
      const Slice at = SliceAt(products_, range_.first + slice);
      const FloatProduct& product = products_.product[at.product];
      const int64_t row = at.row + row_;
      rows_left_[slice] = static_cast<int>(min(product.n - row, int64_t{kSliceRows}));
      from_[slice] = static_cast<const uint16_t*>(product.weights) + piece_column_;
      if (row < product.n) from_[slice] += row * products_.k;
    }
  }

  const FloatProducts& products_;
  SliceRange range_;
  int k_;
  ColumnWalk columns_;
  int row_, piece_column_, offset_;
  const uint16_t* from_[kSlices];
  int rows_left_[kSlices];  // of the slice, from row_ on
};

// Activations of BF16 weights: the operand's planes, high and low.
struct Bf16Pairs {
  using Mma = Bf16Mma;
  // Where piece `part` (0 high, 1 low) of columns [column, column + 8) of row 0 stands.
  static __device__ const std::byte* Piece(const OperandView& x, int part, int column) {
    return reinterpret_cast<const std::byte*>((part == 0 ? x.bf16_high : x.bf16_low) + column);
  }
  static constexpr int kElementBytes = 2;
  static __device__ float InverseScale(const OperandView&, int) { return 1; }
  static __device__ void Split(uint4&, uint4&, float) {}
  static __device__ float Scale(const OperandView&, int) { return 1; }
};

// Activations of F16 weights: float32 (part 0 the first four columns, part 1 the others), divided
// by the row's power of two and split here.
struct F16Pairs {
  using Mma = F16Mma;
  static __device__ const std::byte* Piece(const OperandView& x, int part, int column) {
    return reinterpret_cast<const std::byte*>(x.values + column + 4 * part);
  }
  static constexpr int kElementBytes = 4;
  static __device__ float InverseScale(const OperandView& x, int row) {
    return 1 / x.half_scale[row];
  }
  static __device__ void SplitTwo(uint32_t a, uint32_t b, float inverse, uint32_t* high,
                                  uint32_t* low) {
    const float2 value = make_float2(__uint_as_float(a) * inverse, __uint_as_float(b) * inverse);
    const __half2 rounded = __float22half2_rn(value);
    const float2 back = __half22float2(rounded);
    const __half2 rest = __float22half2_rn(make_float2(value.x - back.x, value.y - back.y));
    *high = *reinterpret_cast<const uint32_t*>(&rounded);
    *low = *reinterpret_cast<const uint32_t*>(&rest);
  }
  static __device__ void Split(uint4& first, uint4& second, float inverse) {
    uint4 high, low;
    SplitTwo(first.x, first.y, inverse, &high.x, &low.x);
    SplitTwo(first.z, first.w, inverse, &high.y, &low.y);
    SplitTwo(second.x, second.y, inverse, &high.z, &low.z);
    SplitTwo(second.z, second.w, inverse, &high.w, &low.w);
    first = high;
    second = low;
  }
  static __device__ float Scale(const OperandView& x, int row) { return x.half_scale[row]; }
};

// The stream of a warp's activations: a stage's columns of all rows go into it as
// [32 columns][part][row][4 pieces], so that a quarter warp reads 128 bytes at once.
template <typename Pairs>
class ActivationStream {
 public:
  __device__ ActivationStream(const OperandView& x, int64_t k, int rows, int warp, int lane)
      : k_(static_cast<int>(k)),
        rows_(rows),
        row_first_(lane / (2 * kLanes)),
        piece_column_(kPieceColumns * (lane % kLanes)),
        columns_(warp, k_) {
    const int part = lane / kLanes % 2;
    base_ = Pairs::Piece(x, part, piece_column_) + row_first_ * RowBytes();
    offset_ =
        64 * ((2 * (lane % kLanes / 4) + part) * rows + row_first_) + kPieceBytes * (lane % 4);
  }

  __device__ void CopyNext(std::byte* stage) {
    const bool valid = Valid();
    const std::byte* from = From(valid);
    std::byte* to = stage + offset_;
    for (int row = row_first_; row < rows_; row += kRowStep) {
      CopyAsync16(to, from, valid);
      from += kRowStep * RowBytes();
      to += kRowStep * 64;
    }
    columns_.Advance();
  }

  // The first kCount stages of up to kTokens rows, all read before the first is written: the copies
  // of weights that are under way do not have to be waited for.
  template <int kTokens, int kCount>
  __device__ void CopyFirst(std::byte* stage, int stage_bytes) {
    constexpr int kPieces = (kTokens + kRowStep - 1) / kRowStep;
    uint4 pieces[kCount][kPieces];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const bool valid = Valid();
      const std::byte* const from = From(valid);
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        pieces[i][j] = make_uint4(0, 0, 0, 0);
        if (valid && row_first_ + kRowStep * j < rows_) {
          pieces[i][j] = __ldcg(reinterpret_cast<const uint4*>(from + kRowStep * j * RowBytes()));
        }
      }
      columns_.Advance();
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        if (row_first_ + kRowStep * j >= rows_) break;
        *reinterpret_cast<uint4*>(stage + i * stage_bytes + offset_ + kRowStep * j * 64) =
            pieces[i][j];
      }
    }
  }

 private:
  static constexpr int kLanes = kStageColumns / kPieceColumns;  // that copy one part of a row
  static constexpr int kRowStep = 32 / (2 * kLanes);            // rows that a warp copies at once

  __device__ int64_t RowBytes() const { return int64_t{k_} * Pairs::kElementBytes; }
  __device__ bool Valid() const { return columns_.column() + piece_column_ < k_; }
  __device__ const std::byte* From(bool valid) const {
    return base_ + (valid ? int64_t{columns_.column()} * Pairs::kElementBytes : 0);
  }

  int k_, rows_, row_first_, piece_column_;
  ColumnWalk columns_;
  int offset_;
  const std::byte* base_;
};

}  // namespace layercake::kernels::cuda
