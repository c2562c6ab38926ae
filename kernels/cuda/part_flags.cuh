// Flags of partial sums that blocks of a grid leave for each other, one for each block and warp:
// zero between launches, one while the sums are there and nobody has taken them.
#pragma once

#include <cstdint>

namespace layercake::kernels::cuda {

// By a warp that has written its sums.
__device__ __forceinline__ void RaisePartFlag(uint32_t* flag, int lane) {
  __syncwarp();
  if (lane == 0) asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(flag), "r"(1) : "memory");
}

// By a warp that is about to read the sums of blocks [first, end): waits for the flag_of(block) of
// each, and lowers it.
template <typename FlagOf>
__device__ __forceinline__ void TakePartFlags(uint32_t first, uint32_t end, int lane,
                                              const FlagOf& flag_of) {
  for (uint32_t group = first; group < end; group += 32) {
    const uint32_t block = group + static_cast<uint32_t>(lane);
    if (block >= end) continue;
    uint32_t* const flag = flag_of(block);
    uint32_t ready = 0;
    while (ready == 0) {
      asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(ready) : "l"(flag) : "memory");
    }
    *flag = 0;
  }
  __syncwarp();
}

}  // namespace layercake::kernels::cuda
