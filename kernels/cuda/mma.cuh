// Tensor core instructions, reads for them and copies that more than one kernel uses.
#pragma once

#include <cstdint>

namespace layercake::kernels::cuda {

struct Bf16Mma {};
struct F16Mma {};

// d += a (16 x 16, rows) * b (16 x 8, columns). Lane (g = lane / 4, t = lane % 4) holds
//   a[0] (g, 2t..), a[1] (g + 8, 2t..), a[2] (g, 2t + 8..), a[3] (g + 8, 2t + 8..),
//   b[0] (2t.., g), b[1] (2t + 8.., g), d[0..1] (g, 2t..), d[2..3] (g + 8, 2t..).
__device__ __forceinline__ void Mma16816(Bf16Mma, float (&d)[4], uint32_t a0, uint32_t a1,
                                         uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void Mma16816(F16Mma, float (&d)[4], uint32_t a0, uint32_t a1,
                                         uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four matrices of 8 x 8 halves: lane i gives the address of row i % 8 (16 bytes in shared memory)
// of matrix i / 8, and gets of each matrix the halves 2 (i % 4).. of row i / 4.
__device__ __forceinline__ void LoadMatrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// Asynchronous copies of 16 bytes from global to shared memory, past L1; zeros when not `valid`
// (then `global` need not be readable). Without a cache policy: nvcc 13.0 emits an illegal
// instruction for a policy that it keeps in a loop.
__device__ __forceinline__ void CopyAsync16(void* shared, const void* global, bool valid) {
  const auto target = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void CopyAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kPending groups of this thread are still under way.
template <int kPending>
__device__ __forceinline__ void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace layercake::kernels::cuda
