// Thread blocks that work on one thing together: a cluster of Hopper's, which sees each other's
// shared memory, or one block alone.
//
// Every thread of every block of a team calls Sync (or Arrive, then Wait) equally often. A block
// may read or write a peer's memory only between two of them: before the first the peer may not run
// yet, after the last it may be gone.
#pragma once

#include <cstdint>

namespace layercake::kernels::cuda {

template <int kBlocks>
struct BlockTeam {
  __device__ __forceinline__ static int Rank() {
    if constexpr (kBlocks == 1) return 0;
    uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return static_cast<int>(rank);
  }

  // A barrier of all threads of all blocks: what was written before, there or here, is seen after.
  __device__ __forceinline__ static void Sync() {
    if constexpr (kBlocks == 1) {
      __syncthreads();
    } else {
      Arrive();
      Wait();
    }
  }

  // The two halves of a Sync. Between them a thread does what needs no peer.
  __device__ __forceinline__ static void Arrive() {
#if __CUDA_ARCH__ >= 900
    if constexpr (kBlocks > 1) asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
  }
  __device__ __forceinline__ static void Wait() {
#if __CUDA_ARCH__ >= 900
    if constexpr (kBlocks > 1) asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
  }

  // Where block `rank` has what lies at `own` here.
  template <typename T>
  __device__ __forceinline__ static T* At(T* own, int rank) {
    if constexpr (kBlocks == 1) return own;
#if __CUDA_ARCH__ >= 900
    uint64_t address = 0;
    asm("mapa.u64 %0, %1, %2;"
        : "=l"(address)
        : "l"(reinterpret_cast<uint64_t>(own)), "r"(static_cast<uint32_t>(rank)));
    return reinterpret_cast<T*>(address);
#else
    return own;
#endif
  }
};

}  // namespace layercake::kernels::cuda
