#include "tests/gpu/peer_death_kernels.h"

namespace layercake::testing {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 132;

__device__ uint64_t Nanoseconds() {
  uint64_t now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__global__ void Fill(uint32_t* to, size_t count, uint32_t value, uint64_t nanoseconds) {
  const uint64_t began = Nanoseconds();
  volatile uint32_t* out = to;
  do {
    for (size_t i = blockIdx.x * size_t{kThreads} + threadIdx.x; i < count;
         i += size_t{kThreads} * kBlocks) {
      out[i] = value;
    }
  } while (Nanoseconds() - began < nanoseconds);
}

__global__ void Spin(const volatile uint32_t* stop, uint64_t nanoseconds) {
  const uint64_t began = Nanoseconds();
  while (*stop == 0 && Nanoseconds() - began < nanoseconds) {
  }
}

__global__ void Trap() { asm volatile("trap;"); }

}  // namespace

cudaError_t LaunchFill(uint32_t* to, size_t count, uint32_t value, cudaStream_t stream) {
  return LaunchFillFor(to, count, value, 0, stream);
}

cudaError_t LaunchFillFor(uint32_t* to, size_t count, uint32_t value, uint64_t nanoseconds,
                          cudaStream_t stream) {
  Fill<<<kBlocks, kThreads, 0, stream>>>(to, count, value, nanoseconds);
  return cudaGetLastError();
}

cudaError_t LaunchSpin(const uint32_t* stop, uint64_t nanoseconds, cudaStream_t stream) {
  Spin<<<1, 1, 0, stream>>>(stop, nanoseconds);
  return cudaGetLastError();
}

cudaError_t LaunchTrap(cudaStream_t stream) {
  Trap<<<1, 1, 0, stream>>>();
  return cudaGetLastError();
}

}  // namespace layercake::testing
