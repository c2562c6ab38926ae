// Hopper's asynchronous matrix instructions (wgmma.cuh) with both sides in shared memory, bf16.
#pragma once

#include <cstdint>

namespace layercake::kernels::cuda {

#define LC_SUMS8(i)                                                                           \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define LC_SUMS16(i) LC_SUMS8(i), LC_SUMS8(i + 8)
#define LC_LIST8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define LC_LIST16 LC_LIST8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define LC_LIST32 LC_LIST16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define LC_LIST48 LC_LIST32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define LC_LIST64 LC_LIST48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

// d += a * b: 64 rows of A times kColumns columns of B, 16 of k. Both are WgmmaSwizzled, a row of
// either 64 of k. Where d lies: as Wgmma.
template <int kColumns>
__device__ __forceinline__ void WgmmaBf16(float (&d)[kColumns / 2], uint64_t a, uint64_t b) {
  static_assert(kColumns == 16 || kColumns == 32 || kColumns == 64 || kColumns == 96 ||
                kColumns == 128);
  if constexpr (kColumns == 16) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {" LC_LIST8
                 "}, %8, %9, 1, 1, 1, 0, 0;"
                 : LC_SUMS8(0)
                 : "l"(a), "l"(b));
  } else if constexpr (kColumns == 32) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" LC_LIST16
                 "}, %16, %17, 1, 1, 1, 0, 0;"
                 : LC_SUMS16(0)
                 : "l"(a), "l"(b));
  } else if constexpr (kColumns == 64) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" LC_LIST32
                 "}, %32, %33, 1, 1, 1, 0, 0;"
                 : LC_SUMS16(0), LC_SUMS16(16)
                 : "l"(a), "l"(b));
  } else if constexpr (kColumns == 96) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" LC_LIST48
                 "}, %48, %49, 1, 1, 1, 0, 0;"
                 : LC_SUMS16(0), LC_SUMS16(16), LC_SUMS16(32)
                 : "l"(a), "l"(b));
  } else {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" LC_LIST64
                 "}, %64, %65, 1, 1, 1, 0, 0;"
                 : LC_SUMS16(0), LC_SUMS16(16), LC_SUMS16(32), LC_SUMS16(48)
                 : "l"(a), "l"(b));
  }
}

#undef LC_SUMS8
#undef LC_SUMS16
#undef LC_LIST8
#undef LC_LIST16
#undef LC_LIST32
#undef LC_LIST48
#undef LC_LIST64

}  // namespace layercake::kernels::cuda
