// A ring of shared-memory stages between one producer warp and the consumers: barriers and copies.
// Hopper copies in bulk; Ampere and Ada with cp.async, which arrives on the same kind of barrier.
#pragma once

#include <cstdint>

namespace layercake::kernels::cuda {

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void BarrierInit(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers known to the copy engine; the block's barrier follows.
__device__ __forceinline__ void BarrierInitDone() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ __forceinline__ void BarrierArrive(uint32_t barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier)
               : "memory");
}

// Until the phase of parity `parity` is over. The hint lets the hardware hold the thread for so
// many nanoseconds instead of having it ask again and again beside those who compute.
__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1, %2;\n"
      "@done bra finished;\nbra again;\nfinished:\n}" ::"r"(barrier),
      "r"(parity), "r"(1000000)
      : "memory");
#else
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
      "@done bra finished;\nbra again;\nfinished:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

// How long copied lines stay in the L2 cache.
enum class Keep : uint8_t { kBriefly, kLong };

// The copies of one stage, by the producer warp. Hopper: lane 0 does everything, and its barrier
// counts one arrival and the bytes. Otherwise every lane copies its share and arrives when that has
// landed: the barrier counts 32 arrivals.
class StageCopier {
 public:
#if __CUDA_ARCH__ >= 900
  static constexpr int kArrivals = 1;

  __device__ explicit StageCopier(int lane) : active_(lane == 0) {
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(briefly_));
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(long_));
  }
  // Before the first copy of a stage: how many bytes will land in all.
  __device__ void Expect(uint32_t barrier, uint32_t bytes) const {
    if (active_) {
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                   : "memory");
    }
  }
  // Multiples of 16 bytes, aligned so.
  __device__ void Copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier,
                       Keep keep) const {
    if (active_) {
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
          "[%0], [%1], %2, [%3], %4;" ::"r"(to),
          "l"(from), "r"(bytes), "r"(barrier), "l"(keep == Keep::kBriefly ? briefly_ : long_)
          : "memory");
    }
  }
  // After the last copy of a stage.
  __device__ void Finish(uint32_t) const {}
  __device__ bool active() const { return active_; }

 private:
  bool active_;
  uint64_t briefly_;
  uint64_t long_;
#else
  static constexpr int kArrivals = 32;

  __device__ explicit StageCopier(int lane) : lane_(lane) {}
  __device__ void Expect(uint32_t, uint32_t) const {}
  __device__ void Copy(uint32_t to, const void* from, uint32_t bytes, uint32_t, Keep) const {
    for (uint32_t at = static_cast<uint32_t>(lane_) * 16; at < bytes; at += 32 * 16) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at),
                   "l"(static_cast<const char*>(from) + at)
                   : "memory");
    }
  }
  __device__ void Finish(uint32_t barrier) const {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
  }
  __device__ bool active() const { return true; }

 private:
  int lane_;
#endif
};

}  // namespace layercake::kernels::cuda
