// Hopper's asynchronous matrix instructions: a warpgroup (four warps, the first a multiple of four)
// multiplies 64 rows from its registers with a tile of 16 x kColumns halves in shared memory.
//
// Only code for sm_90a may use them. Between WgmmaFence and the WgmmaWait that covers it, neither
// the accumulators nor the registers of A may be touched.
#pragma once

#include <cstdint>

namespace layercake::kernels::cuda {

// Before the first instruction, and after registers that the next ones read were written.
__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending committed groups are still under way.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// The compiler may neither move a use of the registers across this place nor give them to others
// before it.
template <int kCount>
__device__ __forceinline__ void HoldRegisters(uint32_t (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void HoldRegisters(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

// A tile of B in shared memory: 8 columns x 16 bytes of k stand together (128 bytes) or, where B is
// read transposed, 8 of k x 16 bytes of columns; neighbours along k are `k_stride` bytes apart,
// neighbours along the columns `column_stride`. No swizzle.
__device__ __forceinline__ uint64_t WgmmaDescriptor(uint32_t address, uint32_t k_stride,
                                                    uint32_t column_stride) {
  return uint64_t{(address & 0x3ffff) >> 4} | uint64_t{k_stride >> 4} << 16 |
         uint64_t{column_stride >> 4} << 32;
}

// The same with a swizzle of 128 bytes: rows of 128 bytes, in groups of 8 that stand `group_stride`
// bytes apart and begin at multiples of 1,024; where rows are wider than 128 bytes, their next 128
// stand `part_stride` away. A row is a column of B, 64 of k, or, where B is read transposed, one of
// k and 64 columns. 16 of k further: 32 bytes, or two groups.
__device__ __forceinline__ uint64_t WgmmaSwizzled(uint32_t address, uint32_t group_stride,
                                                  uint32_t part_stride) {
  return WgmmaDescriptor(address, part_stride, group_stride) | uint64_t{1} << 62;
}

#define LC_ACC8(i)                                                                            \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define LC_ACC16(i) LC_ACC8(i), LC_ACC8(i + 8)
#define LC_NAMES16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define LC_NAMES32 LC_NAMES16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define LC_NAMES48 LC_NAMES32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define LC_NAMES64 LC_NAMES48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

// d += a * b. Of the warp's 16 rows, lane (g = lane / 4, t = lane % 4) holds
//   a[0] (g, k 2t..), a[1] (g + 8, 2t..), a[2] (g, 2t + 8..), a[3] (g + 8, 2t + 8..),
//   d[4n], d[4n + 1] (g, columns 8n + 2t..), d[4n + 2], d[4n + 3] (g + 8, the same).
template <int kColumns, bool kTransposed = false>
__device__ __forceinline__ void Wgmma(float (&d)[kColumns / 2], const uint32_t* a, uint64_t b) {
  static_assert(kColumns == 32 || kColumns == 64 || kColumns == 96 || kColumns == 128);
  if constexpr (kColumns == 32) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {" LC_NAMES16
                 "}, {%16,%17,%18,%19}, %20, 1, 1, 1, %21;"
                 : LC_ACC16(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kTransposed ? 1 : 0));
  } else if constexpr (kColumns == 64) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" LC_NAMES32
                 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, %37;"
                 : LC_ACC16(0), LC_ACC16(16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kTransposed ? 1 : 0));
  } else if constexpr (kColumns == 96) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {" LC_NAMES48
                 "}, {%48,%49,%50,%51}, %52, 1, 1, 1, %53;"
                 : LC_ACC16(0), LC_ACC16(16), LC_ACC16(32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kTransposed ? 1 : 0));
  } else {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" LC_NAMES64
                 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, %69;"
                 : LC_ACC16(0), LC_ACC16(16), LC_ACC16(32), LC_ACC16(48)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kTransposed ? 1 : 0));
  }
}

#undef LC_ACC8
#undef LC_ACC16
#undef LC_NAMES16
#undef LC_NAMES32
#undef LC_NAMES48
#undef LC_NAMES64

}  // namespace layercake::kernels::cuda
