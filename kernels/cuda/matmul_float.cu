#include <cuda_fp16.h>

#include "kernels/cuda/matmul_float.h"
#include "kernels/cuda/matmul_float_rows.h"
#include "kernels/cuda/mma.cuh"

namespace layercake::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kSliceRows = 8;    // rows of weights in one mma
constexpr int kChunk = 64;       // columns that a warp takes at a time: 128 bytes of each row
constexpr int kPieceBytes = 16;  // of one lane's read
constexpr int kSliceBytes = 2 * kSliceRows * kChunk;  // of weights, in one chunk

// A block owns a run of 8-row slices and walks over k with kSlices of them at once; its warps share
// k, chunk c going to warp c % kWarps, and are added up in the order of the warps at the end of
// each walk. Weights and activations come through a ring of shared memory that belongs to the warp
// alone, kStages - 1 chunks ahead, across the ends of walks. Rows of activations up to kTokens.
template <int kTokens, int kSlices, int kStages>
struct Shape {
  static constexpr int kTokenTiles = (kTokens + 7) / 8;
  static constexpr int kOutputs = kSlices * 8 * kTokenTiles * kSliceRows;  // of one walk
  static constexpr int kWeightBytes = kSlices * kSliceBytes;               // of one stage
  static constexpr int kStageBytes = kWeightBytes + 4 * kChunk * kTokens;
  static constexpr size_t kPartialBytes = sizeof(float) * kWarps * kOutputs;
  static constexpr size_t kSharedBytes = 2 * kPartialBytes + size_t{kWarps} * kStages * kStageBytes;
};

__host__ __device__ int SliceCount(int64_t n) {
  return static_cast<int>((n + kSliceRows - 1) / kSliceRows);
}

// Which rows of which matrix a slice is.
struct Slice {
  int product;
  int64_t row;
};
__device__ Slice SliceAt(const FloatProducts& products, int index) {
  int product = 0;
  while (product + 1 < products.count && index >= SliceCount(products.product[product].n)) {
    index -= SliceCount(products.product[product].n);
    ++product;
  }
  return {product, int64_t{kSliceRows} * index};
}

// The slices [first, end) of a block: all slices dealt out evenly.
struct SliceRange {
  int first, end;
};
__device__ SliceRange SlicesOfBlock(const FloatProducts& products) {
  int total = 0;
  for (int i = 0; i < products.count; ++i) total += SliceCount(products.product[i].n);
  const int each = total / static_cast<int>(gridDim.x);
  const int more = total % static_cast<int>(gridDim.x);  // this many blocks have one more
  const int block = static_cast<int>(blockIdx.x);
  const int first = block * each + min(block, more);
  return {first, first + each + (block < more ? 1 : 0)};
}

// The stream of a warp's weights: chunk after chunk of one walk, walk after walk. A chunk goes into
// shared memory as [slice][half of the chunk][row][4 pieces], so that a quarter warp reads 128
// bytes at once; eight lanes copy 128 bytes of one row.
template <int kSlices>
class WeightStream {
 public:
  __device__ WeightStream(const FloatProducts& products, SliceRange range, int warp, int lane)
      : products_(products),
        range_(range),
        row_(lane / 8),
        first_column_(warp * kChunk),
        piece_column_(8 * (lane % 8)),
        k_(static_cast<int>(products.k)),
        offset_(512 * (lane % 8 / 4) + 64 * row_ + kPieceBytes * (lane % 4)) {
    column_ = first_column_;
    SetRows();
  }

  __device__ void CopyNext(std::byte* stage) {
    const bool in_row = column_ + piece_column_ < k_;
#pragma unroll
    for (int i = 0; i < 2 * kSlices; ++i) {
      const int row = 4 * (i % 2);  // this lane's, from row_ on
      const bool valid = in_row && row < rows_left_[i / 2];
      const uint16_t* from = from_[i / 2];
      if (valid) from += int64_t{row} * k_ + column_;
      CopyAsync16(stage + kSliceBytes * (i / 2) + 64 * row + offset_, from, valid);
    }
    column_ += kWarps * kChunk;
    if (column_ < k_) return;
    column_ = first_column_;
    range_.first += kSlices;
    SetRows();
  }

 private:
  __device__ void SetRows() {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      from_[slice] = static_cast<const uint16_t*>(products_.product[0].weights);
      rows_left_[slice] = 0;
      if (range_.first + slice >= range_.end) continue;
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
  int row_, first_column_, piece_column_, k_, offset_;
  int column_;
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

// The stream of a warp's activations: each chunk of all rows goes into a stage of the ring as
// [half of the chunk][part][row][4 pieces], so that a quarter warp reads 128 bytes at once.
template <typename Pairs>
class ActivationStream {
 public:
  __device__ ActivationStream(const OperandView& x, int64_t k, int rows, int warp, int lane)
      : k_(static_cast<int>(k)), rows_(rows), row_first_(lane / 16) {
    const int half = (lane / 4) % 2;
    const int part = (lane / 8) % 2;
    const int quarter = lane % 4;
    first_column_ = warp * kChunk + 32 * half + 8 * quarter;
    column_ = first_column_;
    base_ = Pairs::Piece(x, part, 0) + row_first_ * RowBytes();
    offset_ = 64 * ((2 * half + part) * rows + row_first_) + kPieceBytes * quarter;
    first_of_chunk_ = 32 * half + 8 * quarter;
  }

  __device__ void CopyNext(std::byte* stage) {
    const bool valid = column_ < k_;
    const std::byte* from = From(valid);
    std::byte* to = stage + offset_;
    for (int row = row_first_; row < rows_; row += 2) {
      CopyAsync16(to, from, valid);
      from += 2 * RowBytes();
      to += 2 * 64;
    }
    Advance();
  }

  // The first kCount chunks of up to kTokens rows, all read before the first is written: the copies
  // of weights that are under way do not have to be waited for.
  template <int kTokens, int kCount>
  __device__ void CopyFirst(std::byte* stage, int stage_bytes) {
    constexpr int kPieces = (kTokens + 1) / 2;
    uint4 pieces[kCount][kPieces];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const bool valid = column_ < k_;
      const std::byte* const from = From(valid);
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        pieces[i][j] = make_uint4(0, 0, 0, 0);
        if (valid && row_first_ + 2 * j < rows_) {
          pieces[i][j] = __ldcg(reinterpret_cast<const uint4*>(from + 2 * j * RowBytes()));
        }
      }
      Advance();
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        if (row_first_ + 2 * j >= rows_) break;
        *reinterpret_cast<uint4*>(stage + i * stage_bytes + offset_ + 2 * j * 64) = pieces[i][j];
      }
    }
  }

 private:
  __device__ int64_t RowBytes() const { return int64_t{k_} * Pairs::kElementBytes; }
  __device__ const std::byte* From(bool valid) const {
    return base_ + int64_t{valid ? column_ : 0} * Pairs::kElementBytes;
  }
  __device__ void Advance() {
    column_ += kWarps * kChunk;
    if (column_ - first_of_chunk_ >= k_) column_ = first_column_;
  }

  int k_, rows_, row_first_;
  int first_column_, first_of_chunk_, column_, offset_;
  const std::byte* base_;
};

// Adds the partial sums of all warps and writes the walk's results.
template <typename Pairs, typename S>
__device__ void StoreWalk(const FloatProducts& products, const OperandView& x, int rows,
                          SliceRange range, const float* partial) {
  for (int i = static_cast<int>(threadIdx.x); i < S::kOutputs; i += kThreads) {
    const int slice = range.first + i / (8 * S::kTokenTiles * kSliceRows);
    const int token = (i / kSliceRows) % (8 * S::kTokenTiles);
    if (slice >= range.end || token >= rows) continue;
    const Slice at = SliceAt(products, slice);
    const FloatProduct& product = products.product[at.product];
    const int64_t row = at.row + i % kSliceRows;
    if (row >= product.n) continue;
    float sum = partial[i];
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) sum += partial[warp * S::kOutputs + i];
    sum *= Pairs::Scale(x, token);
    if (product.bias != nullptr) sum += product.bias[row];
    float* out = product.out + token * product.out_stride + row;
    *out = product.accumulate ? *out + sum : sum;
  }
}

// acc += the chunk's weights times its activations.
template <typename Pairs, typename S, int kSlices>
__device__ __forceinline__ void MultiplyChunk(const std::byte* stage, int rows, int lane,
                                              const int (&token_offset)[S::kTokenTiles],
                                              const float (&inverse)[S::kTokenTiles],
                                              float (&acc)[kSlices][S::kTokenTiles][4]) {
  using Mma = typename Pairs::Mma;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint4 high[S::kTokenTiles], low[S::kTokenTiles];
#pragma unroll
    for (int m = 0; m < S::kTokenTiles; ++m) {
      const std::byte* const at = stage + 128 * half * rows + token_offset[m];
      high[m] = *reinterpret_cast<const uint4*>(at);
      low[m] = *reinterpret_cast<const uint4*>(at + 64 * rows);
      Pairs::Split(high[m], low[m], inverse[m]);
    }
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      const uint4 w =
          *reinterpret_cast<const uint4*>(stage + kSliceBytes * i + 512 * half + 16 * lane);
#pragma unroll
      for (int m = 0; m < S::kTokenTiles; ++m) {
        Mma16816(Mma{}, acc[i][m], high[m].x, low[m].x, high[m].y, low[m].y, w.x, w.y);
        Mma16816(Mma{}, acc[i][m], high[m].z, low[m].z, high[m].w, low[m].w, w.z, w.w);
      }
    }
  }
}

// The warp's sums to its place among the partial sums; acc = 0.
template <typename S, int kSlices>
__device__ __forceinline__ void LeavePartials(float (&acc)[kSlices][S::kTokenTiles][4], int lane,
                                              float* partial) {
  float* const own = partial + (lane / 4) * kSliceRows + 2 * (lane % 4);
#pragma unroll
  for (int i = 0; i < kSlices; ++i) {
#pragma unroll
    for (int m = 0; m < S::kTokenTiles; ++m) {
      float* const a = acc[i][m];
      *reinterpret_cast<float2*>(own + 8 * (i * S::kTokenTiles + m) * kSliceRows) =
          make_float2(a[0] + a[2], a[1] + a[3]);
      a[0] = a[1] = a[2] = a[3] = 0;
    }
  }
}

template <typename Pairs, int kTokens, int kSlices, int kStages>
__global__ void __launch_bounds__(kThreads, 1)
    PairKernel(const __grid_constant__ FloatProducts products,
               const __grid_constant__ OperandView x, int rows) {
  using S = Shape<kTokens, kSlices, kStages>;
  constexpr int kTokenTiles = S::kTokenTiles;
  extern __shared__ __align__(16) std::byte shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* const partials = reinterpret_cast<float*>(shared);
  std::byte* const ring = shared + 2 * S::kPartialBytes + warp * kStages * S::kStageBytes;
  const int chunks = (static_cast<int>(products.k) + kChunk - 1) / kChunk;
  const int own_chunks = (chunks - warp + kWarps - 1) / kWarps;
  SliceRange range = SlicesOfBlock(products);

  GridLaunchDependents();
  WeightStream<kSlices> weights(products, range, warp, lane);
  if (own_chunks > 0) {
    for (int i = 0; i < kStages - 1; ++i) {
      weights.CopyNext(ring + i * S::kStageBytes);
      CopyAsyncCommit();
    }
  }
  GridDependencyWait();

  // Rows of activations that do not exist are read as ones that do, and not stored.
  int token_offset[kTokenTiles];
  float inverse[kTokenTiles];
#pragma unroll
  for (int m = 0; m < kTokenTiles; ++m) {
    const int token = (8 * m + lane / 4) % rows;
    token_offset[m] = S::kWeightBytes + 64 * token + kPieceBytes * (lane % 4);
    inverse[m] = Pairs::InverseScale(x, token);
  }
  float acc[kSlices][kTokenTiles][4] = {};
  int parity = 0;  // of the walk

  const auto end_walk = [&]() {
    float* const partial = partials + parity * (kWarps * S::kOutputs);
    LeavePartials<S, kSlices>(acc, lane, partial + warp * S::kOutputs);
    // One barrier a walk is enough: who writes this half again has passed the next walk's barrier,
    // and so has everyone who reads it now.
    __syncthreads();
    StoreWalk<Pairs, S>(products, x, rows, range, partial);
    range.first += kSlices;
    parity ^= 1;
  };

  if (own_chunks <= 0) {
    while (range.first < range.end) end_walk();
    return;
  }
  ActivationStream<Pairs> activations(x, products.k, rows, warp, lane);
  activations.template CopyFirst<kTokens, kStages - 1>(ring + S::kWeightBytes, S::kStageBytes);
  int stage = 0;
  int left = own_chunks;  // chunks of this walk
  while (true) {
    CopyAsyncWait<kStages - 2>();
    __syncwarp();
    // The stage read before this one is free: all lanes have passed the barrier above since.
    std::byte* const free = ring + (stage == 0 ? kStages - 1 : stage - 1) * S::kStageBytes;
    weights.CopyNext(free);
    activations.CopyNext(free + S::kWeightBytes);
    CopyAsyncCommit();
    MultiplyChunk<Pairs, S, kSlices>(ring + stage * S::kStageBytes, rows, lane, token_offset,
                                     inverse, acc);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if (--left > 0) continue;
    end_walk();
    left = own_chunks;
    if (range.first >= range.end) return;
  }
}

// The more rows of activations, the more weights share them; what remains of 220 KB is for weights
// under way. A bucket of rows changes no bits.
template <typename Pairs, int kTokens, int kSlices, int kStages>
struct Bucket {
  static constexpr auto kKernel = PairKernel<Pairs, kTokens, kSlices, kStages>;
  static constexpr size_t kBytes = Shape<kTokens, kSlices, kStages>::kSharedBytes;
  static_assert(kBytes <= 227 * 1024);
};
template <typename Pairs>
struct Buckets {
  using Two = Bucket<Pairs, 2, 2, 9>;
  using Four = Bucket<Pairs, 4, 2, 8>;
  using Eight = Bucket<Pairs, 8, 2, 6>;
  using Sixteen = Bucket<Pairs, 16, 4, 3>;
};

template <typename Pairs>
cudaError_t Prepare() {
  using B = Buckets<Pairs>;
  cudaError_t error = AllowSharedBytes(B::Two::kKernel, B::Two::kBytes);
  if (error == cudaSuccess) error = AllowSharedBytes(B::Four::kKernel, B::Four::kBytes);
  if (error == cudaSuccess) error = AllowSharedBytes(B::Eight::kKernel, B::Eight::kBytes);
  if (error == cudaSuccess) error = AllowSharedBytes(B::Sixteen::kKernel, B::Sixteen::kBytes);
  return error;
}

template <typename B>
cudaError_t LaunchBucket(const Context& context, const FloatProducts& products,
                         const OperandView& x, int rows) {
  int slices = 0;
  for (int i = 0; i < products.count; ++i) slices += SliceCount(products.product[i].n);
  const dim3 grid(static_cast<unsigned>(slices < context.sm_count ? slices : context.sm_count));
  return Launch(context, grid, dim3(kThreads), B::kBytes, B::kKernel, products, x, rows);
}

template <typename Pairs>
cudaError_t LaunchPairs(const Context& context, const FloatProducts& products, const OperandView& x,
                        int rows) {
  using B = Buckets<Pairs>;
  if (rows <= 2) return LaunchBucket<typename B::Two>(context, products, x, rows);
  if (rows <= 4) return LaunchBucket<typename B::Four>(context, products, x, rows);
  if (rows <= 8) return LaunchBucket<typename B::Eight>(context, products, x, rows);
  return LaunchBucket<typename B::Sixteen>(context, products, x, rows);
}

}  // namespace

cudaError_t PrepareFloatMatmul() {
  const cudaError_t error = Prepare<Bf16Pairs>();
  return error != cudaSuccess ? error : Prepare<F16Pairs>();
}

cudaError_t MultiplyFloats(const Context& context, const FloatProducts& products,
                           const OperandView& x, int rows) {
  constexpr int64_t kMaxK = int64_t{1} << 30;  // columns are ints in the kernels
  if (rows < 1 || rows > kFloatMaxRows || products.count < 1 ||
      products.count > kFloatMaxProducts || products.k < 1 || products.k > kMaxK) {
    return cudaErrorInvalidValue;
  }
  const bool aligned = products.k % 8 == 0;
  if (products.type == WeightType::kBF16 && aligned) {
    return LaunchPairs<Bf16Pairs>(context, products, x, rows);
  }
  if (products.type == WeightType::kF16 && aligned) {
    return LaunchPairs<F16Pairs>(context, products, x, rows);
  }
  return MultiplyFloatRows(context, products, x, rows);
}

}  // namespace layercake::kernels::cuda
