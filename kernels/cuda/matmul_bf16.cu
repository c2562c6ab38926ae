#include "kernels/cuda/hopper_code.h"
#include "kernels/cuda/matmul_bf16.h"
#include "kernels/cuda/matmul_bf16_sums.cuh"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/ring_place.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/cuda/wgmma_bf16.cuh"

namespace layercake::kernels::cuda {
namespace {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Addresses in shared memory. A stage: a tile of weights, half of it for each warpgroup, then the
// activations.
template <typename Shape>
struct Bf16Ring {
  uint32_t stages;
  uint32_t barriers;

  __device__ uint32_t Stage(int i) const {
    return stages + static_cast<uint32_t>(i) * Shape::kStageBytes;
  }
  __device__ uint32_t Full(int i) const { return barriers + 8 * static_cast<uint32_t>(i); }
  __device__ uint32_t Empty(int i) const { return Full(Shape::kStages + i); }

  __device__ void Init() const {
    for (int i = 0; i < Shape::kStages; ++i) {
      BarrierInit(Full(i), 1);
      BarrierInit(Empty(i), kBf16Warps);
    }
    BarrierInitDone();
  }
};

// The steps of a block's segments, one after another.
template <typename Shape>
class Bf16Steps {
 public:
  __device__ explicit Bf16Steps(const Bf16Arguments& a) : a_(&a), segments_(a.work, blockIdx.x) {
    NextSegment();
  }
  __device__ __forceinline__ void Next() {
    if (++step_ == segment_.end) NextSegment();
  }
  __device__ bool valid() const { return valid_; }
  __device__ const Bf16Item& item() const { return item_; }
  __device__ int column() const { return static_cast<int>(step_) * kBf16Columns; }

 private:
  __device__ void NextSegment() {
    valid_ = segments_.Next(&segment_);
    if (!valid_) return;
    item_ = Bf16ItemAt<Shape>(*a_, segment_.item);
    step_ = segment_.begin;
  }

  const Bf16Arguments* a_;
  UnitSegments segments_;
  bool valid_ = false;
  UnitSegment segment_;
  Bf16Item item_ = {};
  uint32_t step_ = 0;
};

// Copies of boxes of 64 columns; rows and columns that do not exist become zeros.
class BoxCopier {
 public:
  __device__ BoxCopier() {
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(briefly_));
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(long_));
  }
  __device__ __forceinline__ void Copy(uint32_t to, const CUtensorMap& from, int column,
                                       int64_t row, uint32_t barrier, Keep keep) const {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&from), "r"(column), "r"(static_cast<int>(row)), "r"(barrier),
        "l"(keep == Keep::kBriefly ? briefly_ : long_)
        : "memory");
  }

 private:
  uint64_t briefly_, long_;
};

// By one thread. Weights do not wait for the kernel before this one.
template <typename Shape>
__device__ void Produce(const Bf16Arguments& a, const Bf16Ring<Shape>& ring) {
  const BoxCopier copier;
  const auto copy_weights = [&](const Bf16Steps<Shape>& step, int stage) {
    const uint32_t barrier = ring.Full(stage);
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(Shape::kStageBytes)
                 : "memory");
#pragma unroll
    for (int matrix = 0; matrix < (Shape::kGated ? 2 : 1); ++matrix) {
      copier.Copy(ring.Stage(stage) + static_cast<uint32_t>(matrix) * kBf16TileBytes / 2,
                  a.weights[Shape::kGated ? matrix : step.item().product], step.column(),
                  step.item().first_row, barrier, Keep::kBriefly);
    }
  };
  Bf16Steps<Shape> ahead(a);
  for (int stage = 0; stage < Shape::kStages && ahead.valid(); ++stage, ahead.Next()) {
    copy_weights(ahead, stage);
  }
  GridDependencyWait();
  RingPlace<Shape::kStages> stage;
  bool used = false;  // every stage has been filled once
  for (Bf16Steps<Shape> step(a); step.valid(); step.Next()) {
    if (used) {
      // The parity of the turn before this one.
      BarrierWait(ring.Empty(stage.index), stage.parity ^ 1);
      copy_weights(step, stage.index);
    }
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part) {
      copier.Copy(ring.Stage(stage.index) + kBf16TileBytes +
                      static_cast<uint32_t>(part) * Shape::kPartBytes,
                  a.x[part], step.column(), 0, ring.Full(stage.index), Keep::kLong);
    }
    stage.Next();
    used = used || stage.index == 0;
  }
}

// sums += a stage's weights times its activations, 64 columns. Does not wait for the end.
template <typename Shape>
__device__ __forceinline__ void MultiplyStage(uint32_t stage, int warpgroup,
                                              Bf16Chains<Shape>& sums) {
  const uint64_t weights = WgmmaSwizzled(
      stage + static_cast<uint32_t>(warpgroup) * kBf16TileBytes / 2, kBf16GroupBytes, 16);
  const uint64_t x = WgmmaSwizzled(stage + kBf16TileBytes, kBf16GroupBytes, 16);
  // Without this ptxas of CUDA 13.0 waits for each instruction (C7520).
  sums.Hold();
  WgmmaFence();
#pragma unroll
  for (uint32_t k = 0; k < kBf16Columns / 16; ++k) {
    // 16 columns are 32 bytes.
    WgmmaBf16<Shape::kParts * Shape::kTokens>(sums.chain[k % Shape::kChains], weights + k * 32 / 16,
                                              x + k * 32 / 16);
  }
  WgmmaCommit();
}

template <typename Shape>
__device__ __forceinline__ void Consume(const Bf16Arguments& a, const Bf16Ring<Shape>& ring,
                                        float4* exchange, int warp, int lane) {
  // From one lane, so that it is known to be the same in all.
  const int warpgroup = __shfl_sync(~0u, warp / 4, 0);
  Bf16Chains<Shape> chains;
  Bf16Sums<Shape> sums(warp, lane);
  RingPlace<Shape::kStages> stage;
  UnitSegments segments(a.work, blockIdx.x);
  UnitSegment segment;
  while (segments.Next(&segment)) {
    chains.Clear();
    for (uint32_t step = segment.begin; step < segment.end; ++step) {
      BarrierWait(ring.Full(stage.index), stage.parity);
      MultiplyStage<Shape>(ring.Stage(stage.index), warpgroup, chains);
      // At once: the copies have more to do than the tensor cores, which the other warpgroup keeps
      // busy meanwhile.
      WgmmaWait<0>();
      chains.Hold();
      if (lane == 0) BarrierArrive(ring.Empty(stage.index));
      stage.Next();
    }
    sums.Fold(chains);
    if (segment.begin > 0) {
      sums.Leave(a);
      continue;
    }
    const Bf16Item item = Bf16ItemAt<Shape>(a, segment.item);
    if constexpr (!Shape::kGated) sums.AddBefore(a, item);
    if (segment.end < a.work.blocks) sums.Gather(a, (segment.item + 1) * a.work.blocks);
    if constexpr (Shape::kGated) {
      sums.StoreGated(a, item, exchange);
    } else {
      sums.Store(a, item);
    }
  }
}
#endif

// Grid: a.work.grid, all of it on the device at once. A block waits for later ones only, and never
// before it has left what earlier ones wait for.
template <int kTokens, bool kGated, bool kPairs>
__global__ void __launch_bounds__(kBf16Threads, 1)
    Bf16Kernel(const __grid_constant__ Bf16Arguments a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Shape = Bf16Shape<kTokens, kGated, kPairs>;
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ __align__(8) uint64_t barriers[2 * Shape::kStages];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // The exchange stands before the stages, whose place is aligned by hand.
  const uint32_t after_exchange = SharedAddress(shared) + Shape::kExchangeBytes;
  const Bf16Ring<Shape> ring = {
      (after_exchange + kBf16GroupBytes - 1) / kBf16GroupBytes * kBf16GroupBytes,
      SharedAddress(barriers)};
  if (threadIdx.x == 0) ring.Init();
  __syncthreads();
  GridLaunchDependents();
  if (warp == kBf16Warps && lane == 0) {
    Produce<Shape>(a, ring);
    return;
  }
  GridDependencyWait();
  if (warp < kBf16Warps) {
    Consume<Shape>(a, ring, reinterpret_cast<float4*>(shared), warp, lane);
  }
#endif
}

struct Bf16KernelOf {
  void (*function)(Bf16Arguments);
  size_t shared_bytes;
};
template <int kTokens, bool kGated, bool kPairs = false>
Bf16KernelOf KernelWith() {
  return {Bf16Kernel<kTokens, kGated, kPairs>, Bf16Shape<kTokens, kGated, kPairs>::kSharedBytes};
}
template <bool kGated>
Bf16KernelOf KernelOf(int tokens) {
  return tokens == 32   ? KernelWith<32, kGated>()
         : tokens == 64 ? KernelWith<64, kGated>()
         : tokens == 96 ? KernelWith<96, kGated>()
                        : KernelWith<128, kGated>();
}
Bf16KernelOf KernelFor(int tokens, bool gated) {
  return gated ? KernelOf<true>(tokens) : KernelOf<false>(tokens);
}
Bf16KernelOf PairKernelFor(int tokens, bool gated) {
  if (gated) return tokens == 8 ? KernelWith<8, true, true>() : KernelWith<16, true, true>();
  return tokens == 8 ? KernelWith<8, false, true>() : KernelWith<16, false, true>();
}

// (rows, columns) row-major, read in boxes of `box_rows` rows by 64 columns. Lines of memory come
// alone: in pairs, as 256 bytes of each row, they take 4 % longer.
bool Describe(const Bf16Scratch& scratch, const uint16_t* matrix, int64_t rows, int64_t columns,
              int box_rows, CUtensorMap* map) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(columns) * sizeof(uint16_t)};
  const cuuint32_t box[] = {kBf16Columns, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  return scratch.encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<uint16_t*>(matrix),
                        sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// The activations of a launch.
struct Bf16Rows {
  const uint16_t* high;  // (rows, k)
  const uint16_t* low;   // the same, of pairs; otherwise null
  int rows;
  int tokens;
};

// One launch of a kernel for so many tokens.
cudaError_t Enqueue(const Context& context, const Bf16Products& products, const Bf16Rows& x,
                    const Bf16KernelOf& kernel, const Bf16Scratch& scratch) {
  const bool gated = products.gated != nullptr;
  if (scratch.encode == nullptr || products.count < 1 || products.count > kBf16MaxProducts ||
      (gated && products.count != 2) || products.k < 8 || products.k % 8 != 0 ||
      products.k > kBf16MostColumns) {
    return cudaErrorInvalidValue;
  }
  Bf16Arguments a = {};
  a.count = products.count;
  a.rows = x.rows;
  a.gated = products.gated;
  a.gated_low = products.gated_low;
  a.partials = static_cast<float4*>(scratch.partials);
  a.flags = scratch.flags;
  const int item_rows = gated ? kBf16TileRows / 2 : kBf16TileRows;
  int64_t items = 0;
  for (int i = 0; i < products.count; ++i) {
    const Bf16Product& product = products.product[i];
    a.product[i] = product;
    if (!Describe(scratch, product.weights, product.n, products.k, item_rows, &a.weights[i])) {
      return cudaErrorInvalidValue;
    }
    // Up goes with gate.
    if (!gated || i == 0) items += (product.n + item_rows - 1) / item_rows;
  }
  if (!Describe(scratch, x.high, x.rows, products.k, x.tokens, &a.x[0]) ||
      (x.low != nullptr && !Describe(scratch, x.low, x.rows, products.k, x.tokens, &a.x[1]))) {
    return cudaErrorInvalidValue;
  }
  const int64_t steps = (products.k + kBf16Columns - 1) / kBf16Columns;
  // RunBegin multiplies the steps of two rounds at most with a block's number.
  if (items * steps >= int64_t{1} << 31 ||
      2 * steps * context.sm_count * context.sm_count >= int64_t{1} << 32) {
    return cudaErrorInvalidValue;
  }
  a.work = DealOutUnits(static_cast<uint32_t>(items), static_cast<uint32_t>(steps),
                        static_cast<uint32_t>(context.sm_count));
  return Launch(context, dim3(a.work.grid), dim3(kBf16Threads), kernel.shared_bytes,
                kernel.function, a);
}

}  // namespace

size_t Bf16PartialBytes(int sm_count) {
  return sizeof(float) * static_cast<size_t>(sm_count) * kBf16MostRows * kBf16TileRows;
}
size_t Bf16PairPartialBytes(int sm_count) {
  return sizeof(float) * static_cast<size_t>(sm_count) * kBf16PairRows * kBf16TileRows;
}
size_t Bf16FlagBytes(int sm_count) {
  return sizeof(uint32_t) * static_cast<size_t>(sm_count) * kBf16Warps;
}

cudaError_t PrepareBf16Matmul(const Context& context, PFN_cuTensorMapEncodeTiled_v12000* encode) {
  *encode = nullptr;
  if (!RunsHopperCode(context) || context.max_shared_bytes < kBf16SharedBudget) return cudaSuccess;
  for (const int tokens : {8, 16, 32, 64, 96, 128}) {
    for (const bool gated : {false, true}) {
      const Bf16KernelOf kernel =
          tokens <= kBf16PairRows ? PairKernelFor(tokens, gated) : KernelFor(tokens, gated);
      const cudaError_t error = AllowSharedBytes(kernel.function, kernel.shared_bytes);
      if (error != cudaSuccess) return error;
    }
  }
  constexpr char kEncode[] = "cuTensorMapEncodeTiled";
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(kEncode, &function, 12000, cudaEnableDefault, &found);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(kEncode, &function, cudaEnableDefault, &found);
#endif
  if (error != cudaSuccess) return error;
  if (found == cudaDriverEntryPointSuccess) {
    *encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }
  return cudaSuccess;
}

cudaError_t MultiplyBf16(const Context& context, const Bf16Products& products, const uint16_t* x,
                         int rows, const Bf16Scratch& scratch) {
  if (rows < kBf16LeastRows || rows > kBf16MostRows) return cudaErrorInvalidValue;
  const int tokens = Bf16ItemTokens(rows);
  return Enqueue(context, products, {.high = x, .low = nullptr, .rows = rows, .tokens = tokens},
                 KernelFor(tokens, products.gated != nullptr), scratch);
}

cudaError_t MultiplyBf16Pairs(const Context& context, const Bf16Products& products,
                              const uint16_t* high, const uint16_t* low, int rows,
                              const Bf16Scratch& scratch) {
  const bool gated = products.gated != nullptr;
  if (rows < 1 || rows > kBf16PairRows || low == nullptr ||
      gated != (products.gated_low != nullptr)) {
    return cudaErrorInvalidValue;
  }
  const int tokens = Bf16PairTokens(rows);
  return Enqueue(context, products, {.high = high, .low = low, .rows = rows, .tokens = tokens},
                 PairKernelFor(tokens, gated), scratch);
}

}  // namespace layercake::kernels::cuda
